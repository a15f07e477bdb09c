"""An environment is made and closed in threads: whatever is cancelled, what was made is closed."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import gymnasium
import pytest

from agentrl.envs import AsyncToolEnv
from tests.components import wait_until

pytestmark = pytest.mark.anyio


class Counted(gymnasium.Env[Any, Any]):
    """Takes as long to make as the test says, and knows how many of it are open."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)
    made = 0

    def __init__(self, made: threading.Event, open_now: list[Any]) -> None:
        made.wait(10)
        self._open = open_now
        open_now.append(self)
        Counted.made += 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return 0, {}

    def close(self) -> None:
        self._open.remove(self)


@pytest.mark.parametrize("after_s", [0, 0.01, 0.05])
async def test_an_environment_that_is_there_only_after_its_reset_was_cancelled_is_closed(after_s: float) -> None:
    made, open_now, before = threading.Event(), list[Any](), Counted.made
    asked = threading.Event()

    def make() -> Counted:
        asked.set()
        return Counted(made, open_now)

    env = AsyncToolEnv(make)
    async with anyio.create_task_group() as group:
        group.start_soon(env.reset)
        await wait_until(asked.is_set, 40)
        threading.Timer(after_s, made.set).start()
        await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    await env.close()
    await wait_until(lambda: Counted.made > before and not open_now, 40)
