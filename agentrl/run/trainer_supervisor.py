"""The trainer as a run needs it: it outlives its process, and its checkpoints are tied to the batches that they contain.

    step ─► batch is consumed ─► save (the trainer writes, and trains on) ─► commit: checkpoint and batches, in one transaction

A trainer that dies, or that fails in the middle of a step, is started again from the last committed checkpoint and goes through
the batches since in their order, and the rest of the run notices nothing. Each command says at which step the run takes the trainer
to be, so that none is obeyed by one that has taken a step which the run did not learn of.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import anyio

from agentrl.errors import (
    AgentRLError,
    CheckpointError,
    CheckpointUrlError,
    DiskError,
    TrainerDiskError,
    TrainerError,
    TrainerLostError,
    TrainerStateError,
    unwritten,
)
from agentrl.run.checkpoint_url import CheckpointUrl
from agentrl.run.run_directory import checkpoint_directory, quarantine, remove_unfinished
from agentrl.run.trainer_client import TrainerClient, Weights
from agentrl.store.batches import TrainedStep, batches
from agentrl.store.manifest import check_files, read_manifest
from agentrl.store.store import Store
from agentrl.system.files import sync
from agentrl.system.tasks import in_thread

T = TypeVar("T")
SAVE_TIMEOUT_S = 300.0
"""Bound of the checkpoint that is made when the run ends."""
MAX_FAILURES = 3
"""How often the trainer may die, or fail in the middle of a step, over one request before the run ends."""


@dataclass
class TrainerSupervisor:
    """A running trainer with the run's store."""

    client: TrainerClient
    store: Store
    run_dir: Path
    keep: int
    """How many checkpoints stay."""
    say: Callable[[str], None]
    """Takes what a user should read."""
    url: CheckpointUrl | None = None
    """Another place of the checkpoints."""
    weights: Weights = field(init=False)
    loaded: anyio.Event = field(default_factory=anyio.Event)
    """Set once it holds the model: no step may be asked for before."""
    _consumed: list[TrainedStep] = field(default_factory=list)
    """The steps that no whole checkpoint contains yet."""
    _saving: int | None = None
    """The step of the checkpoint that is being written."""

    async def load(self) -> Weights:
        """Go on from the last whole checkpoint, or begin with the model as it is.

        What a damaged checkpoint contained is trained again, and checkpointed again.

        Returns:
            The weights that the trainer holds.
        """
        await self._remove_unwanted()
        await self._ask(self._restore)
        if self._consumed:
            await self.checkpoint()
            await self.commit()
        self.loaded.set()
        return self.weights

    async def step(self, groups: list[int]) -> dict[str, float]:
        """Train on some groups.

        Args:
            groups: Their ids.

        Returns:
            The step's metrics. The new weights are `weights`.

        Raises:
            TrainerError: The step failed as often as it is tried, or the trainer cannot be started again.
        """
        step = self.weights.version + 1
        try:
            self.weights, trained, metrics = await self._ask(lambda: self.client.step(groups, step - 1))
        except TrainerStateError as error:
            raise self._failed(f"step {step} failed {MAX_FAILURES + 1} times", error) from error
        self._consumed.append(trained)
        return metrics

    async def commit_if_written(self) -> None:
        """Commit a checkpoint that the trainer has finished writing; never waits for one."""
        if not self.client.saving:
            await self.commit()

    async def save_remaining(self) -> str | None:
        """Checkpoint what no checkpoint contains, within `SAVE_TIMEOUT_S`, also when the run is being cancelled.

        A trainer that holds something else, such as a step whose answer nobody waited for, is started again once and goes
        through what the run knows of. Where that fails too, this returns why: the batches wait in the store, to be trained when
        the run goes on.
        """
        why = f"not written within {SAVE_TIMEOUT_S:g} s"
        with anyio.CancelScope(shield=True), anyio.move_on_after(SAVE_TIMEOUT_S):
            try:
                await self.commit(1)
                for _ in range(2):  # again, if the trainer dies with it
                    if self._consumed:
                        await self.checkpoint(1)
                        await self.commit(1)
                why = "lost with its trainer, twice"
            except (AgentRLError, OSError) as error:
                why = f"not written: {error}"
        if not self._consumed:
            return None
        return (
            f"the last checkpoint was {why}\nThe batches of {len(self._consumed)} steps wait in the store, and are trained on when "
            f"the run goes on with --resume {self.run_dir} (in Python, resume=True)"
        )

    async def checkpoint(self, max_failures: int = MAX_FAILURES) -> None:
        """Begin a checkpoint of the current step, once the one before is committed, while training goes on."""
        await self.commit(max_failures)
        step = self.weights.version
        directory = checkpoint_directory(self.run_dir, step)
        # A checkpoint has the lines of its steps; before the first step there are none.
        with suppress(FileNotFoundError):
            await in_thread(sync, self.run_dir / "metrics.jsonl")
        with self._while_saving(step):
            await in_thread(self.store.begin_checkpoint, directory)
            await self._ask(lambda: self.client.save(directory, step), max_failures)
        self._saving = step

    async def commit(self, max_failures: int = MAX_FAILURES) -> None:
        """Record the checkpoint that was begun, with the batches that it contains, when it is written."""
        if (step := self._saving) is None:
            return
        directory = checkpoint_directory(self.run_dir, step)
        with self._while_saving(step):
            await self._ask(self.client.saved, max_failures)
            if self._saving is None:
                return  # the trainer died with it; the next checkpoint will contain its batches
            await in_thread(read_manifest, directory)  # what has none is no checkpoint
            if self.url is not None:
                await in_thread(self.url.put, directory)
        contained = [trained for trained in self._consumed if trained.step <= step]
        await in_thread(self.store.commit_checkpoint, directory, step, contained)
        self._saving = None
        self._consumed = [trained for trained in self._consumed if trained.step > step]
        await in_thread(self.store.forget_checkpoints, self.keep)
        await self._remove_unwanted()

    async def _ask(self, ask: Callable[[], Awaitable[T]], max_failures: int = MAX_FAILURES) -> T:
        failures, lost_at = 0, 0.0
        while True:
            try:
                if failures:
                    self._saving = None
                    await self.client.start()
                    await self._remove_unwanted()
                    await self._restore()
                    self.say(f"the trainer is back after {time.monotonic() - lost_at:.1f} s")
                return await ask()
            except TrainerLostError as lost:
                failures, lost_at = failures + 1, time.monotonic()
                if failures > max_failures:
                    raise
                self.say(
                    f"{lost}\nstarting the trainer again; it goes through {len(self._consumed)} steps since the last checkpoint"
                )

    async def _remove_unwanted(self) -> None:
        """Delete checkpoints that no commit names, or that are not kept, or are half there. What cannot be deleted at the URL is so later."""
        unwanted = await in_thread(self.store.unwanted_checkpoints)
        await in_thread(remove_unfinished, self.run_dir, unwanted)
        if self.url is not None:
            try:
                await in_thread(self.url.remove_unwanted, {path.name for path in unwanted})
            except CheckpointUrlError as error:
                self.say(f"{error}; what is not wanted any more is left there until the next checkpoint")

    async def _restore(self) -> None:
        """Load the newest whole checkpoint, and go through the batches since.

        These are those that the store knows, because a checkpoint that contained them is damaged, and those that no checkpoint contains
        yet.
        """
        after, checkpoint = await self._newest_whole()
        recorded = await in_thread(self.store.read, lambda db: batches(db, after))
        again = recorded + [one for one in self._consumed if one.step > after + len(recorded)]
        weights = await self.client.load(checkpoint)
        if recorded:
            self.say(
                f"training steps {after + 1} to {after + len(recorded)} again, on the batches that the store names"
            )
        consumed = []
        for before in again:
            weights, trained, _ = await self.client.step(before.group_ids, weights.version)
            consumed.append(trained)
        self.weights, self._consumed = weights, consumed

    async def _newest_whole(self) -> tuple[int, Path | None]:
        """Step and directory of the newest checkpoint that is whole; 0 and None for none. Damaged ones are quarantined."""
        while kept := await in_thread(self.store.kept_checkpoints):
            step, directory = kept[-1]
            try:
                await in_thread(check_files, directory)
            except CheckpointError as damaged:
                if not await self._fetched(directory, damaged):
                    kept_at = await in_thread(quarantine, self.run_dir, directory)
                    await in_thread(self.store.mark_damaged, step, str(damaged))
                    left = f"what is left of it is in {kept_at}" if kept_at else "nothing is left of it"
                    self.say(f"the checkpoint of step {step} is damaged: {damaged}; {left}")
                    continue
            return step, directory
        return 0, None

    async def _fetched(self, directory: Path, damaged: CheckpointError) -> bool:
        """Fetch a checkpoint that is damaged here from the URL, in place of what is left of it; return whether it is whole now."""
        if self.url is None:
            return False
        try:
            await in_thread(self.url.get, directory)
        except (CheckpointError, CheckpointUrlError) as error:
            self.say(f"{directory.name} is damaged, and cannot be had from its URL: {error}")
            return False
        self.say(f"{directory.name} was damaged ({damaged}); it was fetched from {self.url.shown}")
        return True

    @contextmanager
    def _while_saving(self, step: int) -> Iterator[None]:
        """Say what an error means to a user; what was being saved is then saved no more.

        Raises:
            DiskError: The disk refused what was written, and nothing else is to blame.
            TrainerError: Anything else.
        """
        try:
            yield
        except TrainerDiskError as error:
            self._saving = None
            raise DiskError(unwritten(f"the checkpoint of step {step}", error, self.run_dir)) from error
        except (TrainerError, CheckpointUrlError) as error:
            self._saving = None
            raise self._failed(f"the checkpoint of step {step} was not made", error) from error

    def _failed(self, what: str, error: AgentRLError) -> TrainerError:
        remedy = f"What was committed is safe: mend the cause, and go on with --resume {self.run_dir} (in Python, resume=True)"
        return TrainerError(f"{what}: {error}. {remedy}")
