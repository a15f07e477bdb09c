"""`rollout.trajectories` and `episode.trajectories` over real sessions: what is chosen is part of the record, and stays so."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.config import RolloutConfig, TrainerConfig
from agentrl.episode import Episode
from agentrl.errors import ConfigError
from agentrl.proxy import ChatFormat, SamplingDefaults, open_proxy
from agentrl.record.conversations import Conversation
from agentrl.rollout.alarms import Health
from agentrl.rollout.run_episode import EpisodeRunner, local_runner
from agentrl.rollout.trained_conversations import Trajectories, load_trajectories
from agentrl.rollout.workflow import Workflow
from agentrl.store.call_log import open_call_log
from agentrl.store.changes import InsertEpisode, OpenGroup
from agentrl.store.outcome import Outcome
from agentrl.store.store import Store
from agentrl.trainer.sequences import training_sequences
from tests.policy_by_prompt import PolicyByPrompt

pytestmark = pytest.mark.anyio
FOUND = "It rains in Berlin, and in Bonn."
TITLE = "Weather of two towns"


def tools(*names: str) -> list[Any]:
    parameters = {"type": "object", "properties": {"place": {"type": "string"}}}
    return [
        {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}
        for name in names
    ]


def call(name: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': {'place': 'Berlin'}})}\n</tool_call>"


def policy(prompt: str) -> str:
    spoken = prompt[prompt.rfind("<|im_start|>user") :]
    if "<tool_response>" in spoken:
        return FOUND
    found = re.search(r'"name": ?"(ask_agent|weather)"', prompt)
    return call(found[1]) if found else TITLE


async def agent(episode: Episode) -> float:
    """A conversation, with a title by another model, and a sub-agent."""
    create = episode.client.chat.completions.create

    async def conversation(system: str, tool: str, result: str) -> str:
        messages: list[Any] = [{"role": "system", "content": system}, {"role": "user", "content": "The weather?"}]
        said = (await create(model=episode.model, messages=messages, tools=tools(tool))).choices[0].message
        assert said.tool_calls
        if tool == "ask_agent":
            result = await conversation("You know the weather.", "weather", "It rains.")
        answer = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": result}
        messages += [said.model_dump(exclude_none=True), answer]
        return (await create(model=episode.model, messages=messages, tools=tools(tool))).choices[
            0
        ].message.content or ""

    await create(model="small", messages=[{"role": "user", "content": "Write a title: The weather?"}])
    await conversation("You are an agent.", "ask_agent", "")
    return 1.0


@asynccontextmanager
async def running(
    workflow: Workflow, nano_format: ChatFormat, trajectories: Trajectories = "main", **settings: Any
) -> AsyncIterator[EpisodeRunner]:
    engine = PolicyByPrompt(nano_format, policy)
    async with (
        open_proxy(engine, nano_format, "nano") as proxy,
        local_runner(
            workflow,
            proxy,
            timeout_s=60,
            defaults=SamplingDefaults(),
            trajectories=trajectories,
            **settings,
        ) as runner,
    ):
        yield runner


async def outcome_of(workflow: Workflow, nano_format: ChatFormat, trajectories: Trajectories = "main") -> Outcome:
    async with running(workflow, nano_format, trajectories) as runner:
        return await runner.run({}, 0)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    with await in_thread(Store, tmp_path / "store.sqlite") as store:
        await in_thread(store.begin_restart)
        await in_thread(store.write, [OpenGroup(0, 0, 0)])
        yield store


def trained_texts(store: Store, nano_format: ChatFormat) -> list[str]:
    """What the trainer learns from of what the store holds."""
    sequences = training_sequences(store.episodes([0]), TrainerConfig())
    return [nano_format.decode(path.token_ids[path.loss_mask].tolist()) for of in sequences for path in of]


async def test_a_title_and_a_sub_agent_never_reach_the_trainer_and_nothing_of_them_is_lost(
    nano_format: ChatFormat, store: Store
) -> None:
    outcome = await outcome_of(agent, nano_format)
    assert outcome.error is None
    assert outcome.conversations == 3
    turns = outcome.record.turns
    assert [turn.model for turn in turns] == ["small", *["nano"] * 4]
    assert [turn.left_out for turn in turns] == [True, False, True, True, False]

    await in_thread(store.write, [InsertEpisode(0, 0, 0, outcome)])
    (stored,) = await in_thread(store.episodes, [0])
    assert stored.record.to_json() == outcome.record.to_json()
    assert len(stored.record.turns) == 5
    trained = await in_thread(trained_texts, store, nano_format)
    assert len(trained) == 1
    assert TITLE not in trained[0]
    assert FOUND in trained[0]
    assert "ask_agent" in trained[0]


async def test_conversations_are_counted(nano_format: ChatFormat) -> None:
    async def rewrites(episode: Episode) -> float:
        said = "A long question, of which every word is sent again and again with every call of the client. " * 3
        for number in range(4):
            messages: list[Any] = [{"role": "user", "content": said}]
            await episode.client.chat.completions.create(model=episode.model, messages=messages)
            said += f"Then you said {TITLE!r}, and {number} was what came of it, as far as anybody can say. "
        return 1.0

    health = Health()
    health.attempt_ended(await outcome_of(agent, nano_format), 1)
    health.attempt_ended(await outcome_of(rewrites, nano_format), 2)
    said, figures = health.counts(), health.to_metrics()
    assert (len(health.recent), said["replies"], said["conversations"]) == (2, 9, 7)
    assert figures["rerendered_share"] > 0.4
    assert figures["conversations_mean"] == 3.5
    said_beside = [TITLE, call("weather"), FOUND]
    beside = sum(
        len(nano_format.tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False)) for text in said_beside
    )
    assert figures["left_out_share"] == beside / said["sampled_tokens"]


async def test_all_is_what_it_says(nano_format: ChatFormat, store: Store) -> None:
    async def run(episode: Episode) -> float:
        episode.trajectories = "all"
        return await agent(episode)

    for outcome in (await outcome_of(agent, nano_format, "all"), await outcome_of(run, nano_format)):
        assert all(not turn.left_out and turn.role == "" for turn in outcome.record.turns)
    await in_thread(store.write, [InsertEpisode(0, 0, 0, outcome)])
    trained = await in_thread(trained_texts, store, nano_format)
    assert len(trained) == 3
    assert TITLE in "".join(trained)


async def test_a_function_of_the_workflow_chooses_and_its_faults_are_its_episodes(nano_format: ChatFormat) -> None:
    seen: list[Conversation] = []

    def choose(conversation: Conversation) -> bool | str:
        seen.append(conversation)
        return "solver" if "ask_agent" in conversation.tools else False

    def fails(conversation: Conversation) -> bool:
        raise ValueError(f"no {conversation.model}")

    def with_choice(choice: Any) -> Workflow:
        async def run(episode: Episode) -> float:
            episode.trajectories = choice
            episode.role("solver").reward(0.25)
            return await agent(episode)

        return run

    outcome = await outcome_of(with_choice(choose), nano_format)
    assert [turn.left_out for turn in outcome.record.turns] == [True, False, True, True, False]
    assert [turn.role for turn in outcome.record.turns] == ["", "solver", "", "", "solver"]
    assert [turn.role_reward for turn in outcome.record.turns] == [None, 0.25, None, None, 0.25]
    assert [(one.model, one.system, one.tools) for one in seen] == [
        ("small", "", ()),
        ("nano", "You are an agent.", ("ask_agent",)),
        ("nano", "You know the weather.", ("weather",)),
    ]
    assert [one.reply for one in seen] == [TITLE, FOUND, FOUND]
    for choice, error in ((fails, "no small"), ("side", "episode.trajectories is 'side'"), (len, "TypeError")):
        failed = await outcome_of(with_choice(choice), nano_format)
        assert failed.reason == "trajectories"
        assert error in (failed.error or "")
        assert len(failed.record.turns) == 5


async def test_a_function_that_does_not_end_fails_its_episode(nano_format: ChatFormat) -> None:
    at_the_end = threading.Event()

    def hangs(conversation: Conversation) -> bool:
        return at_the_end.wait(100)

    try:
        async with running(agent, nano_format, hangs, cancel_timeout_s=0.5) as runner:
            with anyio.fail_after(60):
                outcome = await runner.run({}, 0)
    finally:
        at_the_end.set()
    assert "the function of trajectories took longer than 0.5 s: let it wait for nothing" in (outcome.error or "")


async def test_an_episode_that_starts_over_chooses_the_same_and_what_is_stored_stays(
    nano_format: ChatFormat, store: Store
) -> None:
    waits, answered = True, anyio.Event()

    async def run(episode: Episode) -> float:
        reward = await agent(episode)
        if waits:
            answered.set()  # each call is kept before it is answered
            await anyio.sleep_forever()
        return reward

    async with open_call_log(store) as logs, running(run, nano_format) as runner, anyio.create_task_group() as group:
        group.start_soon(runner.run, {}, 0, None, logs.episode(0, 0))
        with anyio.fail_after(60):
            await answered.wait()
        group.cancel_scope.cancel()
    waits = False
    async with open_call_log(store) as logs, running(run, nano_format) as runner:
        call_log = logs.episode(0, 0, await in_thread(store.logged_calls, 0, 0))
        again = await runner.run({}, 0, None, call_log)
    assert call_log.replayed_tokens == sum(len(turn.output_ids) for turn in again.record.turns)
    straight = await outcome_of(agent, nano_format)
    names = ("model", "left_out", "role", "output_ids")
    assert [[vars(turn)[name] for name in names] for turn in again.record.turns] == [
        [vars(turn)[name] for name in names] for turn in straight.record.turns
    ]
    await in_thread(store.write, [InsertEpisode(0, 0, 0, again)])
    assert TITLE not in "".join(await in_thread(trained_texts, store, nano_format)), "whatever the settings say now"


def test_a_function_is_named_and_loaded_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "chooser.py"
    file.write_text("def choose(one):\n    return bool(one.tools)\n\nasync def slow(one):\n    return True\n\nX = 1\n")
    assert load_trajectories("main") == "main"
    chosen = load_trajectories(f"{file}:choose")
    assert callable(chosen)
    for name, error in (
        ("nothing", "cannot be loaded"),
        ("slow", "is no plain function"),
        ("X", "is no plain function"),
    ):
        with pytest.raises(ConfigError, match=error):
            load_trajectories(f"{file}:{name}")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_trajectories("no_such_module_of_mine:choose")
    with pytest.raises(ValueError, match='trajectories = "side" is none of "main", "all" and FILE_OR_MODULE:NAME'):
        RolloutConfig(trajectories="side")
