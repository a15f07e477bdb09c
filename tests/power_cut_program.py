"""A run in miniature, for `tests.run.test_power_cut`: the real store, the real trainer and its real checkpoints, on a model of a
few hundred weights. It says in a file what has become durable.

    python -m tests.power_cut_program RUN_DIR MODEL MARKS
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import anyio
import torch

from agentrl.config.run import RunConfig, config_text
from agentrl.record.end_reason import EndReason
from agentrl.run.run_directory import appending, begin_store, write_config
from agentrl.run.run_lock import check_run_dir, prepare_run_dir
from agentrl.run.trainer_client import TrainerClient, Weights
from agentrl.run.trainer_supervisor import TrainerSupervisor
from agentrl.store.batches import TrainedStep
from agentrl.store.changes import CloseGroup, InsertCall, InsertEpisode, OpenGroup
from agentrl.store.episodes import resumed_groups
from agentrl.store.store import Store
from agentrl.store.token_figures import read_figures
from agentrl.system.files import sync
from tests.recorded_run import TrainerOfRun
from tests.store.test_store import kept_choice, outcome

TASKS = "7 tasks 0123, in order, in groups of 2"
GROUPS_PER_BATCH = 2


def config(run_dir: Path, model: Path) -> RunConfig:
    """The run's configuration."""
    trainer = {"checkpoint": {"keep": 1, "every": 2}}
    return RunConfig.model_validate(
        {
            "run_dir": str(run_dir),
            "model": {"path": str(model)},
            "rollout": {"group_size": 2, "batch_size": 4, "window": 1000},
            "trainer": trainer,
        }
    )


class InProcess:
    """The trainer without its process."""

    saving = False

    def __init__(self, run_dir: Path, weights: Path) -> None:
        self._process = TrainerOfRun(run_dir, weights)

    async def load(self, checkpoint: Path | None) -> Weights:
        return self._weights(self._process.load(None if checkpoint is None else str(checkpoint)))

    async def step(self, groups: list[int], after: int) -> tuple[Weights, TrainedStep, dict[str, float]]:
        reply = self._process.step_on(groups, after)
        weights = self._weights(reply)
        trained = replace(TrainedStep.from_json(reply["trained"]), figures=read_figures(weights.path))
        return weights, trained, reply["metrics"]

    async def save(self, directory: Path, step: int) -> None:
        self._process.save(str(directory), step)
        self._process.saved()  # what happens meanwhile would come in another order each time

    async def saved(self) -> None:
        self._process.saved()

    def _weights(self, reply: dict[str, Any]) -> Weights:
        return Weights(reply["version"], Path(reply["weights"]))


def files(directory: Path) -> dict[str, str]:
    """The digests of all files of a checkpoint."""
    found = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def play(store: Store, count: int, version: int) -> list[int]:
    """Hand out tasks until so many groups are ready; their numbers. The first policies earn most, so that an old checkpoint is the best."""
    ready: list[int] = []
    while len(ready) < count:
        group = store.next_group_id()
        store.write([OpenGroup(group, group // 7, group % 7, version)])
        store.write([InsertCall(group, episode_index, kept_choice([5])) for episode_index in range(2)])
        if group % 5 == 3:
            failed = replace(outcome(0.0), reason=EndReason.ERROR, error="lost its way")
            store.write([InsertEpisode(group, 0, 0, failed)])
        for episode_index in range(2):
            reward = float(group % 3 == 2 or episode_index) + (version < 2)
            store.write([InsertEpisode(group, episode_index, 0, outcome(reward, interrupted=episode_index == 1))])
        store.write([CloseGroup(group, rejected="all rewards are equal" if group % 3 == 2 else None)])
        ready += [] if group % 3 == 2 else [group]
    return ready


async def run_once(run_dir: Path, model: Path, mark: Callable[..., None], *, resume: bool, checkpoints: int) -> None:
    """One process of the run. It ends as if killed, after the rename of a checkpoint that it does not commit."""
    settings = config(run_dir, model)
    check_run_dir(run_dir, resume=resume)
    prepare_run_dir(run_dir)
    if not resume:
        write_config(settings)
    with begin_store(run_dir, TASKS, config_text(settings), resume=resume) as store:
        mark(created=True)
        client = InProcess(run_dir, Path(model.parent) / f"weights-{store.restart}")
        trainer = TrainerSupervisor(cast(TrainerClient, client), store, run_dir, keep=1, say=print)
        await trainer.load()
        ready = [group.id for group in store.read(resumed_groups) if group.state == "ready"]
        with appending(run_dir / "metrics.jsonl") as log:
            for number in range(checkpoints + 1):
                batches = []
                for _ in range(2):
                    ready += play(store, GROUPS_PER_BATCH - len(ready), trainer.weights.version)
                    batch, ready = ready[:GROUPS_PER_BATCH], ready[GROUPS_PER_BATCH:]
                    metrics = await trainer.step(batch)
                    batches.append([trainer.weights.version, batch])
                    log.write(json.dumps({"step": trainer.weights.version, **metrics}) + "\n")
                    log.flush()
                sync(run_dir / "metrics.jsonl")
                await trainer.checkpoint()
                step, directory = (
                    trainer.weights.version,
                    run_dir / "checkpoints" / f"step-{trainer.weights.version:06d}",
                )
                mark(written=step, files=files(directory))
                if number < checkpoints:
                    await trainer.commit()
                    mark(committed=step, batches=batches)


def main() -> None:
    """Two starts of one run."""
    run_dir, model, marks = map(Path, sys.argv[1:])
    torch.manual_seed(0)
    with marks.open("w", buffering=1) as log:

        def mark(**said: Any) -> None:
            log.write(json.dumps(said) + "\n")

        anyio.run(lambda: run_once(run_dir, model, mark, resume=False, checkpoints=3))
        anyio.run(lambda: run_once(run_dir, model, mark, resume=True, checkpoints=2))


if __name__ == "__main__":
    main()
