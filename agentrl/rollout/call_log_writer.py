"""The calls of running episodes, on their way to the store.

Whole replies are written at once, many in one transaction where many come together, and whoever made them waits until they
are safe. What growing replies have so far is written every second.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace

import anyio

from agentrl.concurrency.threads import in_thread
from agentrl.engine.protocol import PartialGeneration
from agentrl.proxy import RecordedCalls
from agentrl.record.recorded_choice import RecordedChoice
from agentrl.rollout.store import Store
from agentrl.rollout.stored_episodes import LoggedCall

PARTIALS_EVERY_S = 1.0
"""What growing replies have is written so often: a crash costs at most so much of each."""


@dataclass(eq=False)
class EpisodeCallLog(RecordedCalls):
    """One attempt's calls. It is `agentrl.proxy.CallLog`."""

    writer: CallLogWriter | None = None
    group_id: int = 0
    episode_index: int = 0
    closed: bool = False
    """Whether the attempt has ended: its calls are then part of the stored episode, or of no use."""

    async def close(self) -> None:
        """Write no more: after this, nothing of the attempt is on its way to the store."""
        assert self.writer is not None
        self.closed = True
        async with self.writer.writing:
            pass

    async def keep(self, choice: RecordedChoice) -> None:
        """Keep a whole reply. Returns when it is committed."""
        assert self.writer is not None
        await self.writer.keep(self, choice)

    def note(self, choice: RecordedChoice) -> None:
        """Keep what a reply has so far, with what is written next."""
        assert self.writer is not None
        self.writer.add_partial(self, choice, PartialGeneration(choice.generation))

    @contextmanager
    def watch(self, choice: RecordedChoice, partial: PartialGeneration) -> Iterator[None]:
        """Keep what a reply has so far, now and then, while the context lasts; and at its end, if it was broken off."""
        assert self.writer is not None
        growing = self.writer.growing
        growing[id(partial)] = (self, choice, partial)
        try:
            yield
        except BaseException:
            self.writer.add_partial(self, choice, partial)
            raise
        finally:
            del growing[id(partial)]


@dataclass(eq=False)
class CallLogWriter:
    """Writes the calls of all running episodes. Open it with `open_call_log`."""

    store: Store
    growing: dict[int, tuple[EpisodeCallLog, RecordedChoice, PartialGeneration]] = field(default_factory=dict)
    writing: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while rows are on their way to the store."""
    _waiting: list[tuple[EpisodeCallLog, RecordedChoice]] = field(default_factory=list)
    _asked: anyio.Event = field(default_factory=anyio.Event)
    _written: anyio.Event = field(default_factory=anyio.Event)
    _partials_at: float = 0.0

    def episode(self, group_id: int, episode_index: int, recorded: Iterable[RecordedChoice] = ()) -> EpisodeCallLog:
        """Return the call log of one attempt, which answers again what is `recorded`."""
        return EpisodeCallLog(recorded, writer=self, group_id=group_id, episode_index=episode_index)

    async def keep(self, call_log: EpisodeCallLog, choice: RecordedChoice) -> None:
        """Write one reply with whatever else there is to write."""
        self._waiting.append((call_log, choice))
        written = self._written
        self._asked.set()
        await written.wait()

    def add_partial(self, call_log: EpisodeCallLog, choice: RecordedChoice, partial: PartialGeneration) -> None:
        """Write, with the next replies, what a reply has so far."""
        so_far = partial.so_far() if partial.so_far else partial.start
        if so_far is not None and so_far.finish == "abort" and so_far.output_ids:
            self._waiting.append((call_log, replace(choice, generation=so_far)))

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            with anyio.move_on_after(PARTIALS_EVERY_S):
                await self._asked.wait()
            await self.write()

    async def write(self) -> None:
        """Write what waits, and, when it is time, what grows."""
        if time.monotonic() - self._partials_at >= PARTIALS_EVERY_S:
            self._partials_at = time.monotonic()
            for growing in list(self.growing.values()):
                self.add_partial(*growing)
        waiting, self._waiting = self._waiting, []
        written, self._written, self._asked = self._written, anyio.Event(), anyio.Event()
        with anyio.CancelScope(shield=True):  # these replies are in no list now
            async with self.writing:
                rows = [
                    LoggedCall(log.group_id, log.episode_index, choice) for log, choice in waiting if not log.closed
                ]
                if rows:
                    await in_thread(self.store.log_calls, rows)
        written.set()


@asynccontextmanager
async def open_call_log(store: Store) -> AsyncIterator[CallLogWriter]:
    """Yield a writer for the length of the context. What is left at its end is written then."""
    writer = CallLogWriter(store)
    async with anyio.create_task_group() as group:
        group.start_soon(writer.run)
        try:
            yield writer
        finally:
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await writer.write()
