"""The trainer as a run needs it: it outlives its process, and its checkpoints are tied to the batches that they contain.

    step ─► batch is consumed ─► save (the trainer writes, and trains on) ─► commit: checkpoint and batches, in one transaction

A trainer that dies is started again from the last committed checkpoint and goes through the batches since in their order: the
weights are then those that it had, and the rest of the run notices nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import anyio
from anyio.to_thread import run_sync as in_thread

from agentrl.errors import DiskError, TrainerError, TrainerLostError
from agentrl.rollout.store import Store
from agentrl.run_directory import checkpoint_directory
from agentrl.trainer_client import TrainerClient, Weights

T = TypeVar("T")
SAVE_TIMEOUT_S = 300.0
"""Bound of the checkpoint that is made when the run ends."""
MAX_LOSSES = 3
"""How often the trainer may die over one request before the run ends."""


@dataclass(frozen=True)
class _Saving:
    step: int
    directory: Path


class DurableTrainer:
    """A running trainer with the run's store. `keep`: how many checkpoints stay; `say`: tells a user what happened."""

    def __init__(
        self, client: TrainerClient, store: Store, run_dir: Path, *, keep: int, say: Callable[[str], None]
    ) -> None:
        self.client = client
        self._store = store
        self._run_dir = run_dir
        self._keep = keep
        self._say = say
        self._consumed: list[tuple[int, list[int]]] = []
        """(step, groups) of the batches that no checkpoint contains yet."""
        self._saving: _Saving | None = None

    async def load(self) -> Weights:
        """Go on from the last checkpoint, or begin with the model as it is."""
        checkpoint = await in_thread(self._store.last_checkpoint)
        self.weights = await self.client.load(checkpoint[1] if checkpoint else None)
        return self.weights

    async def step(self, groups: list[int]) -> dict[str, float]:
        """Train on some groups; the step's metrics. The new weights are `weights`."""
        self.weights, metrics = await self._ask(lambda: self.client.step(groups))
        self._consumed.append((self.weights.version, groups))
        return metrics

    async def checkpoint(self) -> None:
        """Begin a checkpoint of the current step, once the one before is committed. Training goes on meanwhile."""
        await self.commit()
        step = self.weights.version
        directory = checkpoint_directory(self._run_dir, step)
        with anyio.CancelScope(shield=True), self._as_disk_error(step):
            await self._ask(lambda: self.client.save(directory))
        self._saving = _Saving(step, directory)

    async def commit_if_written(self) -> None:
        """Commit a checkpoint that the trainer has finished writing; never waits for one."""
        if not self.client.saving:
            await self.commit()

    async def commit(self) -> None:
        """Record the checkpoint that was begun, with the batches it contains, when it is written."""
        if (saving := self._saving) is None:
            return
        with anyio.CancelScope(shield=True):
            with self._as_disk_error(saving.step):
                await self._ask(self.client.saved)
            if self._saving is not saving:
                return  # the trainer died with it; the next checkpoint will contain its batches
            contained = [batch for batch in self._consumed if batch[0] <= saving.step]
            await in_thread(self._store.commit_checkpoint, saving.step, saving.directory, contained)
            self._saving, self._consumed = None, self._consumed[len(contained) :]
        for old in await in_thread(self._store.forget_checkpoints, self._keep):
            await in_thread(lambda path: shutil.rmtree(path, ignore_errors=True), old)

    async def save_the_rest(self) -> None:
        """Checkpoint what no checkpoint contains, also when the run is being cancelled."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(SAVE_TIMEOUT_S):
            await self.commit()
            while self._consumed:  # again, if the trainer dies with it
                await self.checkpoint()
                await self.commit()

    async def _ask(self, ask: Callable[[], Awaitable[T]]) -> T:
        losses = 0
        while True:
            try:
                if losses:
                    await self._start_again([groups for _, groups in self._consumed])
                return await ask()
            except TrainerLostError as lost:
                losses += 1
                if losses > MAX_LOSSES:
                    raise
                self._say(
                    f"{lost}\nstarting the trainer again; it goes through {len(self._consumed)} steps since the last checkpoint"
                )

    async def _start_again(self, batches: Sequence[list[int]]) -> None:
        self._saving = None
        checkpoint = await in_thread(self._store.last_checkpoint)
        await self.client.start_again()
        await self.client.load(checkpoint[1] if checkpoint else None)
        for groups in batches:
            await self.client.step(groups)

    @contextmanager
    def _as_disk_error(self, step: int) -> Iterator[None]:
        try:
            yield
        except TrainerError as error:
            raise DiskError(f"the checkpoint of step {step}", error, self._run_dir) from error
