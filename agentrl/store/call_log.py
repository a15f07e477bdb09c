"""The calls of running episodes, and the episodes that have ended, on their way to the store.

    a reply ──────────────┐                                              ┌─► the proxy: the reply is safe
    a change of a group  ─┼─► waiting ─► one transaction, in a thread ───┤
    an ended episode ─────┘    (all that came during the one before)     └─► its number in the store

Each caller goes on when what it gave is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from agentrl.record.recorded_choice import CallLog, Key, RecordedChoice
from agentrl.store.changes import Change, InsertCall
from agentrl.store.rows import CallRow, choice_of
from agentrl.store.store import Store
from agentrl.system.tasks import in_thread


@dataclass(eq=False, kw_only=True)
class EpisodeCallLog(CallLog):
    """One attempt's calls."""

    writer: StoreWriter
    group_id: int
    episode_index: int
    recorded: dict[Key, CallRow]
    """The replies that it started with, as the store has them."""
    _committed: set[Key] = field(default_factory=set)
    """Its replies that were given to the store."""
    _closed: bool = False

    async def commit(self, choice: RecordedChoice) -> None:
        """Commit a reply. Returns when it is in the store."""
        committed = anyio.Event()
        self.enqueue(choice, committed.set)
        await committed.wait()

    def enqueue(self, reply: RecordedChoice | CallRow, committed: Callable[[], object]) -> None:
        """Have a reply committed. `committed` is called when it is in the store, and at once when the attempt has ended."""
        if self._closed:
            committed()
            return
        self._committed.add(reply.key)
        written = self.writer.enqueue(InsertCall(self.group_id, self.episode_index, reply))
        written.add_done_callback(lambda _: None if written.exception() else committed())

    def close(self) -> set[Key]:
        """End the attempt: nothing more of it goes to the store but what `InsertEpisode` holds. Returns the replies that are there."""
        self._closed = True
        return self._committed | self.recorded.keys()


@dataclass(eq=False)
class StoreWriter:
    """Writes the calls of all running episodes, and their ends. Open it with `open_call_log`."""

    store: Store
    _waiting: list[tuple[Change, asyncio.Future[int]]] = field(default_factory=list)
    """Changes for the next transaction, each with what its `write` will return."""
    _due: anyio.Event = field(default_factory=anyio.Event)
    _closed: bool = False
    _failure: BaseException | None = None
    """The reason why nothing more is written."""

    def episode(self, group_id: int, episode_index: int, recorded: Iterable[CallRow] = ()) -> EpisodeCallLog:
        """Return the call log of one attempt, which answers again what is `recorded`."""
        rows = {row.key: row for row in recorded}
        choices = [choice for row in rows.values() if (choice := choice_of(row)) is not None]
        return EpisodeCallLog(
            choices=choices, writer=self, group_id=group_id, episode_index=episode_index, recorded=rows
        )

    def enqueue(self, change: Change) -> asyncio.Future[int]:
        """Have a change written, together with what else waits. Returns what its `write` does, once it is committed."""
        written: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self._failure is not None:
            written.set_exception(self._failure)
        else:
            self._waiting.append((change, written))
            self._due.set()
        return written

    async def commit(self, change: Change) -> int:
        """Write a change, together with what else waits. Returns what its `write` does.

        Raises:
            DiskError: It could not be written.
            StoreError: The same, where the store is damaged.
        """
        return await self.enqueue(change)

    async def run(self) -> None:
        """Write until it is closed, and then what is left. It is not cancelled: what it holds is nowhere else."""
        with anyio.CancelScope(shield=True):
            while self._waiting or not self._closed:
                await self._due.wait()
                transaction, self._waiting, self._due = self._waiting, [], anyio.Event()
                await self._write(transaction)

    def close(self) -> None:
        """End `run`, once it has written what waits."""
        self._closed = True
        self._due.set()

    async def _write(self, transaction: Sequence[tuple[Change, asyncio.Future[int]]]) -> None:
        try:
            results = await in_thread(self.store.write, [change for change, _ in transaction]) if transaction else []
        except BaseException as error:
            self._failure = error
            for _, written in (*transaction, *self._waiting):
                if not written.done():  # who waited for it was cancelled
                    written.set_exception(error)
            raise
        for (_, written), result in zip(transaction, results, strict=True):
            if not written.done():
                written.set_result(result)


@asynccontextmanager
async def open_call_log(store: Store) -> AsyncIterator[StoreWriter]:
    """Yield a writer for the length of the context. What is left at its end is written then."""
    writer = StoreWriter(store)
    async with anyio.create_task_group() as group:
        group.start_soon(writer.run)
        try:
            yield writer
        finally:
            writer.close()
