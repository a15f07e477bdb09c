"""Roles of an episode: calls that carry a name, rewards of their own, and calls that are not trained on."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.engine.client import sglang_engine
from agentrl.envs.calculator_env import TOOL
from agentrl.episode import Episode
from agentrl.errors import BadRewardError, EpisodeError
from agentrl.proxy import ChatFormat, SamplingDefaults, open_proxy
from agentrl.record.trajectory import TokenRecord
from agentrl.rollout.run_episode import local_runner
from agentrl.rollout.workflow import Workflow
from agentrl.store.outcome import Outcome

pytestmark = pytest.mark.anyio
USER: list[Any] = [{"role": "user", "content": "1 + 1 ="}]


async def outcome_of(workflow: Workflow, server_url: str, chat_format: ChatFormat) -> Outcome:
    async with (
        sglang_engine([server_url]) as engine,
        open_proxy(engine, chat_format, "nano") as proxy,
        local_runner(workflow, proxy, timeout_s=30, defaults=SamplingDefaults(max_tokens=4)) as runner,
    ):
        return await runner.run({}, 0)


async def test_calls_carry_their_role_and_its_reward(server_url: str, nano_format: ChatFormat) -> None:
    async def run(episode: Episode) -> float:
        await episode.client.chat.completions.create(model=episode.model, messages=USER)
        one, other = episode.role("one"), episode.role("other", trained=False)
        reply = await one.client.chat.completions.create(model=one.model, messages=USER)
        more = [*USER, reply.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "2"}]
        await one.client.chat.completions.create(model=one.model, messages=more)
        # The same role from any other program, by its key.
        body = {"model": other.model, "messages": USER}
        headers = {"Authorization": f"Bearer {other.api_key}"}
        async with await in_thread(httpx2.AsyncClient) as http:
            answer = await http.post(f"{other.base_url}/chat/completions", json=body, headers=headers)
        assert answer.status_code == 200
        episode.mark_failed(reply.id)
        one.reward(0.25)
        return 1.0

    outcome = await outcome_of(run, server_url, nano_format)
    assert outcome.error is None, outcome.error
    record = TokenRecord.from_json(outcome.record.to_json())
    assert [turn.role for turn in record.turns] == ["", "one", "one", "other"]
    assert [turn.role_reward for turn in record.turns] == [None, 0.25, 0.25, None]
    assert [turn.trained for turn in record.turns] == [True, True, True, False]
    assert [turn.failed for turn in record.turns] == [False, True, False, False]
    assert record.turns[2].parent is record.turns[1]
    assert outcome.has_turn_rewards
    masks = [any(path.loss_mask) for path in record.trajectories()]
    assert masks == [True, True, False]


async def test_a_reply_that_was_cut_off_is_marked(server_url: str, nano_format: ChatFormat) -> None:
    async def run(episode: Episode) -> float:
        tools: list[Any] = [TOOL]
        sums: list[Any] = [
            {"role": "user", "content": "State the final answer to the following arithmetic problem: 1 + 1 ="}
        ]
        for bound in (1, 400):
            await episode.client.chat.completions.create(
                model=episode.model, messages=sums, tools=tools, max_tokens=bound, temperature=0
            )
        return 1.0

    outcome = await outcome_of(run, server_url, nano_format)
    assert [turn.truncated for turn in outcome.record.turns] == [True, False]


async def test_a_reward_of_a_role_that_never_spoke_is_said_once(
    server_url: str, nano_format: ChatFormat, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(episode: Episode) -> float:
        episode.role("mute").reward(1.0)
        await episode.client.chat.completions.create(model=episode.model, messages=USER)
        return 0.0

    for _ in range(2):
        assert (await outcome_of(run, server_url, nano_format)).error is None
    assert caplog.text.count("the role 'mute' was rewarded in an episode in which it made no model call") == 1


async def test_the_key_of_a_role_ends_with_its_episode(server_url: str, nano_format: ChatFormat) -> None:
    keys: list[str] = []

    async def run(episode: Episode) -> float:
        keys.append(episode.role("one").api_key)
        await episode.client.chat.completions.create(model=episode.model, messages=USER)
        return 1.0

    async with (
        sglang_engine([server_url]) as engine,
        open_proxy(engine, nano_format, "nano") as proxy,
        local_runner(run, proxy, timeout_s=30, defaults=SamplingDefaults(max_tokens=4)) as runner,
        await in_thread(httpx2.AsyncClient) as http,
    ):
        await runner.run({}, 0)
        for key, status in ((keys[0], 409), ("sk-agentrl-unknown.one", 401)):
            answer = await http.get(f"{proxy.base_url}/models", headers={"Authorization": f"Bearer {key}"})
            assert answer.status_code == status


async def test_nonsense_is_refused(server_url: str, nano_format: ChatFormat) -> None:
    async def run(episode: Episode) -> float:
        with pytest.raises(EpisodeError, match="the role name 'a b' is no word"):
            episode.role("a b")
        with pytest.raises(BadRewardError, match="the reward of the role 'a' is nan"):
            episode.role("a").reward(float("nan"))
        with pytest.raises(EpisodeError, match="no model call of this episode has the id 'x'"):
            episode.mark_failed("x")
        await episode.client.chat.completions.create(model=episode.model, messages=USER)
        return 1.0

    assert (await outcome_of(run, server_url, nano_format)).error is None
