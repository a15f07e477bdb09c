"""The errors that a workflow's author meets first: one line says what is wrong, in which line of the file, and what to write."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from agentrl import Episode
from agentrl.rollout.run_episode import remote_runner
from agentrl.rollout.workflow import Workflow
from agentrl.system.failure_text import failure_line, users_part
from agentrl.testing import ScriptedModel

pytestmark = pytest.mark.anyio


async def ask(episode: Episode) -> Any:
    return await episode.client.chat.completions.create(model=episode.model, messages=[])


async def forgets_await(episode: Episode) -> float:
    reply: Any = episode.client.chat.completions.create(model=episode.model, messages=[])
    return len(reply.choices)  # here


async def awaits_env(episode: Episode) -> float:
    env: Any = await episode.env("agentrl/Calculator-v0")  # type: ignore[misc]  # here
    return await env.play(episode)


async def awaits_log(episode: Episode) -> float:
    await episode.log(turns=1)  # type: ignore[func-returns-value]  # here
    return 1.0


async def reads_another_field(episode: Episode) -> float:
    return float(episode.task["question"])  # here


async def returns_nothing(episode: Episode) -> Any:
    await ask(episode)
    return  # here


async def returns_a_dict(episode: Episode) -> Any:
    await ask(episode)
    return {"reward": 1}  # here


async def returns_a_coroutine(episode: Episode) -> Any:
    async def score() -> float:
        return 1.0

    await ask(episode)
    return score()  # here


async def returns_nan_or_text(episode: Episode) -> Any:
    if (await ask(episode)).choices:
        return float("nan")  # here
    return "1"  # here


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize(
    ("workflow", "what", "remedy"),
    [
        (forgets_await, "AttributeError: 'coroutine' object has no", "`await` is missing before a call"),
        (awaits_env, "TypeError: object AsyncToolEnv can't be used in 'await'", "`await` is too much before a call"),
        (awaits_log, "TypeError: object NoneType can't be used in 'await'", "`await` is too much before a call"),
        (
            reads_another_field,
            "KeyError: 'question'",
            "The task's fields are 'prompt', 'answer': [data.columns] renames",
        ),
        (returns_nothing, "BadRewardError: run(episode) returned None", "a reward is missing after `return`"),
        (returns_a_dict, "BadRewardError: run(episode) returned {'reward': 1}", "return a number or a Reward"),
        (returns_a_coroutine, "BadRewardError: run(episode) returned <coroutine", "an await is missing"),
        (returns_nan_or_text, "BadRewardError: the reward is nan", "it must be a finite number"),
    ],
)
async def test_one_line_has_the_fault_the_line_and_the_remedy_in_train_as_in_eval(
    workflow: Workflow, what: str, remedy: str
) -> None:
    async with (
        ScriptedModel(lambda _: "5").serve() as url,
        remote_runner(workflow, base_url=url, api_key="-", model="m", timeout_s=60) as runner,
    ):
        outcome = await runner.run({"prompt": "2 + 3", "answer": 5}, 0)
    lines, first = inspect.getsourcelines(workflow)
    marked = [str(first + number) for number, line in enumerate(lines) if "# here" in line]
    train, evaluation = failure_line(outcome.error or ""), users_part(outcome.error or "")
    assert train.startswith(what)
    assert f"{__file__}:{' or '.join(marked)} in {workflow.__name__}" in train
    for shown in (train, evaluation):
        assert remedy in shown
    assert "\n" not in train
