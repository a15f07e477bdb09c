"""Run a command's coroutine in the foreground: Ctrl-C ends it in order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from agentrl.system.event_loop import first_signal, run_loop

T = TypeVar("T")


def run_until_signal(main: Callable[[], Awaitable[T]]) -> T:
    """Run `main()` in an event loop. The first SIGINT, SIGTERM or SIGHUP ends it in order, as KeyboardInterrupt."""

    async def until_signal() -> T:
        with anyio.CancelScope() as scope, first_signal(scope.cancel):
            return await main()
        raise KeyboardInterrupt

    return run_loop(until_signal)
