"""Wait until something that other tasks of the same event loop change is so."""

from __future__ import annotations

from collections.abc import Callable

import anyio


class Condition:
    """Wakes every task that waits for a change, each time that one is announced.

    It is like `anyio.Condition`, but without a lock, so that `notify_all` needs no `await`: tasks of one event loop see each other's
    changes whole. Who waits looks again by itself; a change that comes while nobody waits wakes nobody.

        self.ready.append(item)               while not self.ready:
        self.changed.notify_all()     ──►         await self.changed.wait()
    """

    def __init__(self) -> None:
        self._event = anyio.Event()

    def notify_all(self) -> None:
        """Wake all who wait now. Those who wait later wait for the next change."""
        event, self._event = self._event, anyio.Event()
        event.set()

    async def wait(self) -> None:
        """Wait for the next change."""
        await self._event.wait()

    async def wait_for(self, predicate: Callable[[], bool]) -> None:
        """Wait until `predicate()` is true, which is asked now and after every change. What it raises is raised."""
        while not predicate():
            await self.wait()
