"""`agentrl audit RUN --retrain`: the recorded batches, trained again from scratch, and the weights of every step compared.

A trainer process of its own begins with the model that the run began with and goes through the batches in their order, each under
the configuration of the start that trained it. Where sums are made in one order (one rank, one thread, no GPU, the same kind of
processor and the same torch) every digest is the same, bit for bit; then the weights are what the record says, and nothing else.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

import anyio

from agentrl.concurrency.threads import in_thread
from agentrl.config import RunConfig
from agentrl.errors import StoreError
from agentrl.evaluation.directory import check_no_evaluation
from agentrl.rollout.batches import StoredBatch
from agentrl.rollout.store import Store
from agentrl.rollout.training_history import TrainedStep
from agentrl.run.trainer_client import open_trainer


@dataclass(frozen=True)
class Retrained:
    """The findings of a retraining."""

    steps: int
    """Steps that the run took."""
    same: int
    """Steps, from the first on, after which the weights were the same, bit for bit."""
    exact: bool
    """Whether they should all be."""
    difference: str | None
    """The differences in the first step that has any."""

    @property
    def wrong(self) -> bool:
        """Whether the weights are not what the record says."""
        return self.exact and self.same < self.steps

    def text(self) -> str:
        """Return what a user reads."""
        if self.same == self.steps:
            return f"trained again from scratch: the weights of all {self.steps} steps are the same, bit for bit"
        why = "" if self.exact else "; sums on several threads, ranks or a GPU are rounded in any order"
        wrong = "WRONG: " if self.wrong else ""
        return f"{wrong}trained again from scratch: step {self.same + 1} of {self.steps} differs in its {self.difference}{why}"


async def retrain(run_dir: Path) -> Retrained:
    """Train the recorded batches of the run in `run_dir` again. It writes nothing there.

    Raises:
        StoreError: The record is not enough to do so, or is that of an evaluation.
        TrainerError: The trainer fails.
    """
    parts = await in_thread(_recorded, run_dir)
    recorded = [batch.trained for _, batches in parts for batch in batches]
    again: list[TrainedStep] = []
    exact = True
    async with _scratch_directory() as scratch:
        checkpoint = None
        for number, (config, batches) in enumerate(parts):
            folder = scratch / str(number)
            checkpoint, trained = await _retrain(run_dir, folder, config, batches, checkpoint)
            again += trained
            exact = exact and _one_order(config)
            if again[-1] != batches[-1].trained:
                break  # from here on nothing is the same
    pairs = zip(again, recorded, strict=False)
    same = next((n for n, (one, other) in enumerate(pairs) if one != other), len(again))
    difference = _difference(again[same], recorded[same]) if same < len(recorded) else None
    return Retrained(len(recorded), same, exact, difference)


@asynccontextmanager
async def _scratch_directory() -> AsyncIterator[Path]:
    path = Path(await in_thread(lambda: tempfile.mkdtemp(prefix="agentrl-retrain-")))
    try:
        yield path
    finally:
        with anyio.CancelScope(shield=True):
            await in_thread(lambda: shutil.rmtree(path, ignore_errors=True))


async def _retrain(
    run_dir: Path, folder: Path, config: RunConfig, batches: list[StoredBatch], checkpoint: Path | None
) -> tuple[Path, list[TrainedStep]]:
    """Return the checkpoint after the batches, and their steps; up to the first that differs."""
    await in_thread(folder.mkdir)
    trainer = config.trainer.model_copy(update={"mismatch_sequences": 0})
    async with open_trainer(
        run_dir / "store.sqlite",
        config.model_copy(update={"trainer": trainer}),
        folder / "weights",
        folder / "trainer",
        log=folder / "trainer.log",
    ) as client:
        weights = await client.load(checkpoint)
        first, found = weights.chain, []
        for batch in batches:
            weights, trained, _ = await client.step(batch.trained.group_ids, weights.chain)
            found.append(trained)
            if trained != batch.trained:
                break
        after = folder / "checkpoint"
        await client.save(after, weights.version, weights.chain, first)
        await client.saved()
    return after, found


def _recorded(run_dir: Path) -> list[tuple[RunConfig, list[StoredBatch]]]:
    """Return the batches of a run, by the configuration that they were trained under.

    Raises:
        StoreError: There is no run.
    """
    path = run_dir / "store.sqlite"
    if not path.is_file():
        raise StoreError(f"{run_dir} holds no run")
    with Store(path, read_only=True) as store:
        store.read(partial(check_no_evaluation, path=run_dir))
        batches = store.batches()
        configs = {
            restart: RunConfig.model_validate_json(store.configuration(restart))
            for restart in {b.restart for b in batches}
        }

    def what_counts(batch: StoredBatch) -> str:
        config = configs[batch.restart]
        return f"{config.seed} {config.model.path} {config.trainer.model_dump_json()}"

    alike = [list(found) for _, found in groupby(batches, key=what_counts)]
    return [(configs[found[0].restart], found) for found in alike]


def _one_order(config: RunConfig) -> bool:
    from torch import cuda

    trainer = config.trainer
    on_gpu = trainer.device == "cuda" or (trainer.device == "auto" and cuda.is_available())
    return trainer.ranks == 1 and trainer.threads == 1 and not on_gpu


def _difference(one: TrainedStep, other: TrainedStep) -> str:
    """Return the first thing in which two steps differ, in words."""
    names = {
        "groups": "groups, or the number of their sequences",
        "minibatches": "minibatches",
        "optimizer_steps": "optimizer steps",
        "digest": "weights",
        "chain": "beginning: the model is another one",
    }
    return next(text for name, text in names.items() if getattr(one, name) != getattr(other, name))
