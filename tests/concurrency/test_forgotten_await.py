"""A coroutine that is used as if it were its result says which await is missing, and is a coroutine in every other way."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

import agentrl
from agentrl.concurrency.forgotten_await import says_await
from agentrl.config import RunConfig

EXAMPLE = "answer = await ask(question)"


@says_await(EXAMPLE)
async def ask(question: str) -> str:
    """Answer."""
    await anyio.sleep(0)
    if question == "boom":
        raise ValueError(question)
    return question.upper()


@pytest.mark.parametrize(
    "use",
    [lambda c: c.passed, lambda c: bool(c), lambda c: float(c), lambda c: c[0], lambda c: list(c), lambda c: len(c)],
)
def test_a_use_without_await_names_the_line_that_awaits(use: Any) -> None:
    coroutine: Any = ask("a")
    with pytest.raises((AttributeError, TypeError), match="an await is missing: answer = await ask"):
        use(coroutine)
    assert EXAMPLE in repr(coroutine)
    coroutine.close()


def test_with_await_nothing_is_different() -> None:
    assert ask.__doc__ == "Answer."

    async def main() -> list[str]:
        task = asyncio.create_task(ask("task"))  # takes coroutines alone
        async with asyncio.timeout(5):
            return [await ask("plain"), await task, *await asyncio.gather(ask("gathered"))]

    assert asyncio.run(main()) == ["PLAIN", "TASK", "GATHERED"]
    assert asyncio.run(ask("run")) == "RUN"
    assert anyio.run(ask, "anyio") == "ANYIO"
    with pytest.raises(ValueError, match="boom"):
        anyio.run(ask, "boom")


def test_it_is_cancelled_like_any_other() -> None:
    ended = []

    @says_await("await sleep()")
    async def sleep() -> None:
        try:
            await anyio.sleep(60)
        finally:
            ended.append(True)

    async def main() -> None:
        with anyio.move_on_after(0.05):
            await sleep()

    anyio.run(main)
    assert ended == [True]


@pytest.mark.parametrize("name", ["train", "evaluate", "serve"])
def test_the_public_door_says_it(name: str) -> None:
    coroutine: Any = getattr(agentrl, name)(RunConfig())
    with pytest.raises(AttributeError, match=rf"an await is missing: .*await agentrl\.{name}\("):
        _ = coroutine.metrics
    coroutine.close()


def test_the_methods_of_an_episode_say_it() -> None:
    nobody: Any = None
    episode = agentrl.Episode(task={}, seed=0, client=nobody, base_url="", api_key="", model="")
    sandbox: Any = episode.sandbox()
    with pytest.raises(AttributeError, match=r"'run' from; an await is missing: sandbox = await episode\.sandbox\(\)"):
        sandbox.run(["true"])
    verdict: Any = episode.grade("", [])
    with pytest.raises(AttributeError, match=r"'passed' from; an await is missing: verdict = await episode\.grade"):
        _ = verdict.passed
    sandbox.close()
    verdict.close()


def test_a_workflow_that_returns_what_it_did_not_await_is_told() -> None:
    async def play() -> float:
        return 1.0

    with pytest.raises(
        agentrl.BadRewardError, match=r"of type coroutine; .*an await is missing before what it returns"
    ):
        agentrl.Reward.of(play())
