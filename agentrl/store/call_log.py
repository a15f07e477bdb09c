"""The calls of running episodes, and the episodes that have ended, on their way to the store.

    keep, a reply ────────┐                                              ┌─► the proxy: the reply is safe
    a change of a group  ─┼─► waiting ─► one transaction, in a thread ───┤
    add, an ended episode ┘    (all that came during the one before)     └─► its number in the store

Each caller goes on when what it gave is committed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from agentrl.record.recorded_choice import Key, RecordedCalls, RecordedChoice
from agentrl.store.changes import Change, CommitCall, InsertEpisode
from agentrl.store.outcome import Outcome
from agentrl.store.rows import CallRow, choice_of
from agentrl.store.store import Store
from agentrl.system.tasks import in_thread


@dataclass(eq=False, kw_only=True)
class EpisodeCallLog(RecordedCalls):
    """One attempt's calls. It is `agentrl.proxy.CallLog`."""

    writer: CallLogWriter
    group_id: int
    episode_index: int
    recorded: dict[Key, CallRow]
    """The replies that it started with, as the store has them."""
    closed: bool = False
    """Whether the attempt has ended: its calls are then part of the stored episode, or of no use."""
    kept: set[Key] = field(default_factory=set)
    """Its replies that were given to the store."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kept |= set(self.recorded)

    async def keep(self, choice: RecordedChoice) -> None:
        """Keep a reply. Returns when it is committed."""
        committed = anyio.Event()
        self.put(choice, committed.set)
        await committed.wait()

    def put(self, reply: RecordedChoice | CallRow, committed: Callable[[], object]) -> None:
        """Keep a reply. `committed` is called when it is safe, and when it need not be."""
        if self.closed:
            committed()
            return
        self.kept.add(reply.key)
        self.writer.put(CommitCall(self.group_id, self.episode_index, reply), committed)


@dataclass(eq=False)
class _Transaction:
    """Changes that are committed together."""

    changes: list[Change] = field(default_factory=list)
    committed: list[Callable[[], object]] = field(default_factory=list)
    """Functions to call then."""
    written: list[int] = field(default_factory=list)
    """The results of the changes, once they are committed."""
    ended: anyio.Event = field(default_factory=anyio.Event)
    failure: BaseException | None = None
    """The reason why it was not committed."""


@dataclass(eq=False)
class CallLogWriter:
    """Writes the calls of all running episodes, and their ends. Open it with `open_call_log`."""

    store: Store
    _writing: anyio.Lock = field(default_factory=lambda: anyio.Lock(fast_acquire=True))
    """Held while rows are on their way to the store."""
    _next: _Transaction = field(default_factory=_Transaction)
    _asked: anyio.Event = field(default_factory=anyio.Event)
    _failure: BaseException | None = None
    """The reason why nothing more is written."""

    def episode(self, group_id: int, episode_index: int, recorded: Iterable[CallRow] = ()) -> EpisodeCallLog:
        """Return the call log of one attempt, which answers again what is `recorded`."""
        rows = {row.key: row for row in recorded}
        choices = [choice for row in rows.values() if (choice := choice_of(row)) is not None]
        return EpisodeCallLog(
            choices=choices, writer=self, group_id=group_id, episode_index=episode_index, recorded=rows
        )

    async def add(
        self, group_id: int, episode_index: int, seed: int, outcome: Outcome, call_log: EpisodeCallLog | None = None
    ) -> int:
        """Write an episode that has ended. Returns its number.

        After this, nothing of the attempt that `call_log` is of is on its way to the store.

        Raises:
            DiskError: It could not be written.
            StoreError: The same, where the store is damaged.
        """
        kept: set[Key] = set()
        if call_log is not None:
            call_log.closed, kept = True, call_log.kept
        return await self.change(InsertEpisode(group_id, episode_index, seed, outcome, kept))

    def put(self, change: Change, committed: Callable[[], object]) -> int:
        """Write what has happened, together with what else waits. Returns its index there.

        Args:
            change: What has happened.
            committed: Called when it is written.
        """
        self._next.changes.append(change)
        self._next.committed.append(committed)
        self._asked.set()
        return len(self._next.changes) - 1

    async def change(self, change: Change) -> int:
        """Write what has happened, together with what else waits. Returns what its `write` does.

        Raises:
            DiskError: It could not be written.
            StoreError: The same, where the store is damaged.
        """
        if self._failure is not None:
            raise self._failure
        transaction = self._next
        index = self.put(change, lambda: None)
        await transaction.ended.wait()
        if transaction.failure is not None:
            raise transaction.failure
        return transaction.written[index]

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._asked.wait()
            await self.write()

    async def write(self) -> None:
        """Write what waits. After a failure nothing is written."""
        if self._failure is not None:
            return
        transaction, self._next, self._asked = self._next, _Transaction(), anyio.Event()
        try:
            with anyio.CancelScope(shield=True):  # what it holds is nowhere else now
                async with self._writing:
                    if transaction.changes:
                        transaction.written = await in_thread(self.store.write, transaction.changes)
        except BaseException as error:
            self._failure = error
            for failed in (transaction, self._next):
                failed.failure = error
                failed.ended.set()
            raise
        transaction.ended.set()
        for committed in transaction.committed:
            committed()


@asynccontextmanager
async def open_call_log(store: Store) -> AsyncIterator[CallLogWriter]:
    """Yield a writer for the length of the context. What is left at its end is written then."""
    writer = CallLogWriter(store)
    async with anyio.create_task_group() as group:
        ended = anyio.CancelScope(shield=True)

        async def run() -> None:
            with ended:
                await writer.run()

        group.start_soon(run)
        try:
            yield writer
        finally:
            ended.cancel()
            with anyio.CancelScope(shield=True):
                await writer.write()
