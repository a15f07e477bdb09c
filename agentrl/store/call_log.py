"""The calls of running episodes, and the episodes that have ended, on their way to the store.

    a reply ──────────────┐                                              ┌─► the proxy: the reply is safe
    a change of a group  ─┼─► waiting ─► one transaction, in a thread ───┤
    an ended episode ─────┘    (all that came during the one before)     └─► its number in the store

Each caller goes on when what it gave is committed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from agentrl.record.recorded_choice import Key, RecordedCalls, RecordedChoice
from agentrl.store.changes import Change, InsertCall
from agentrl.store.rows import CallRow, choice_of
from agentrl.store.store import Store
from agentrl.system.tasks import in_thread


@dataclass(eq=False, kw_only=True)
class EpisodeCallLog(RecordedCalls):
    """One attempt's calls. It is `agentrl.proxy.CallLog`."""

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
        self.writer.enqueue(InsertCall(self.group_id, self.episode_index, reply), committed)

    def close(self) -> set[Key]:
        """End the attempt: nothing more of it goes to the store but what `InsertEpisode` holds. Returns the replies that are there."""
        self._closed = True
        return self._committed | self.recorded.keys()


@dataclass(eq=False)
class _Transaction:
    """Changes that are committed together."""

    changes: list[Change] = field(default_factory=list)
    committed: list[Callable[[], object]] = field(default_factory=list)
    """Functions to call then."""
    written: list[int] = field(default_factory=list)
    """The results of the changes, once they are committed; empty where that failed."""
    due: anyio.Event = field(default_factory=anyio.Event)
    ended: anyio.Event = field(default_factory=anyio.Event)


@dataclass(eq=False)
class StoreWriter:
    """Writes the calls of all running episodes, and their ends. Open it with `open_call_log`."""

    store: Store
    _next: _Transaction = field(default_factory=_Transaction)
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

    def enqueue(self, change: Change, committed: Callable[[], object]) -> int:
        """Have a change written, together with what else waits. Returns its index there. `committed` is called when it is written."""
        self._next.changes.append(change)
        self._next.committed.append(committed)
        self._next.due.set()
        return len(self._next.changes) - 1

    async def commit(self, change: Change) -> int:
        """Write a change, together with what else waits. Returns what its `write` does.

        Raises:
            DiskError: It could not be written.
            StoreError: The same, where the store is damaged.
        """
        transaction = self._next
        index = self.enqueue(change, lambda: None)
        if self._failure is None:
            await transaction.ended.wait()
        if not transaction.written:
            assert self._failure is not None
            raise self._failure
        return transaction.written[index]

    async def run(self) -> None:
        """Write until it is closed, and then what is left. It is not cancelled: what it holds is nowhere else."""
        with anyio.CancelScope(shield=True):
            while self._next.changes or not self._closed:
                await self._next.due.wait()
                await self._write()

    def close(self) -> None:
        """End `run`, once it has written what waits."""
        self._closed = True
        self._next.due.set()

    async def _write(self) -> None:
        transaction, self._next = self._next, _Transaction()
        try:
            if transaction.changes:
                transaction.written = await in_thread(self.store.write, transaction.changes)
        except BaseException as error:
            self._failure = error
            transaction.ended.set()
            self._next.ended.set()
            raise
        transaction.ended.set()
        for committed in transaction.committed:
            committed()


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
