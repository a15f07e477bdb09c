"""The calculator of `workflows/calculator.py` with a tool that takes its time, and one episode in twenty that does its worst (AGENTRL_FAULT_RATE times as many).

What it does is drawn anew for each attempt, so that a task is not lost to it. Each is a line of the fault log.
"""

import asyncio
import math
import os
import random
import time
from collections.abc import Awaitable, Callable

import anyio

from agentrl import Episode, Reward

HOSTILE = 0.05 * float(os.environ.get("AGENTRL_FAULT_RATE", "1"))


class Panic(BaseException):
    """Stand for what an extension module raises when it gives up."""


class UnprintableError(Exception):
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


async def run(episode: Episode) -> float | Reward:
    """Play an episode of the calculator, or be hostile."""
    env, rng = episode.env("agentrl/Calculator-v0"), random.Random(episode.seed)
    await env.reset(seed=episode.seed, options=episode.task)
    hostile = "AGENTRL_FAULT_LOG" in os.environ and random.random() < HOSTILE
    while not env.done:
        reply = await episode.client.chat.completions.create(
            model=episode.model, messages=env.messages, tools=env.tools
        )
        if hostile:
            return await be_hostile()
        await anyio.sleep(rng.uniform(0.0, 0.8))
        await env.step(reply.choices[0].message)
    return env.total_reward


async def be_hostile() -> float | Reward:
    """Do one of the things that no workflow should."""
    kind = random.choice(list(KINDS))
    descriptor = os.open(os.environ["AGENTRL_FAULT_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"workflow: {kind}\n".encode())
    os.close(descriptor)
    return await KINDS[kind]()


def raising(make: Callable[[], BaseException]) -> Callable[[], Awaitable[float]]:
    """A hostile end by an exception, a new one each time."""

    async def end() -> float:
        raise make()

    return end


def returning(make: Callable[[], float | Reward]) -> Callable[[], Awaitable[float | Reward]]:
    """A hostile end by a reward."""

    async def end() -> float | Reward:
        return make()

    return end


async def cancels_itself() -> float:
    """Cancel the task that this runs in."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(1)
    return 0.0


async def interrupts() -> float:
    """Raise what Ctrl-C raises."""
    raise KeyboardInterrupt


async def leaves_a_child_that_interrupts() -> float:
    """Leave a task behind that raises what ends an event loop."""
    asyncio.get_running_loop().create_task(interrupts())
    await asyncio.sleep(0.05)
    return 0.0


async def blocks() -> float:
    """Block the event loop for a while."""
    time.sleep(1.0)
    raise ValueError("blocked")


async def swallows_cancellation() -> float:
    """Go on whatever happens."""
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


KINDS: dict[str, Callable[[], Awaitable[float | Reward]]] = {
    "CancelledError": raising(asyncio.CancelledError),
    "KeyboardInterrupt": interrupts,
    "SystemExit": raising(lambda: SystemExit(3)),
    "GeneratorExit": raising(GeneratorExit),
    "panic": raising(Panic),
    "an error without a text": raising(UnprintableError),
    "a lone surrogate": raising(lambda: ValueError("\ud800")),
    "a long error": raising(lambda: ValueError("x" * 10_000_000)),
    "a group": raising(lambda: BaseExceptionGroup("both", [KeyboardInterrupt(), ValueError()])),
    "NaN": returning(lambda: math.nan),
    "1e200": returning(lambda: 1e200),
    "a bad metric": returning(lambda: Reward(0.0, metrics={"\ud800": math.inf})),
    "cancels itself": cancels_itself,
    "a child that interrupts": leaves_a_child_that_interrupts,
    "blocks": blocks,
    "swallows cancellation": swallows_cancellation,
}
