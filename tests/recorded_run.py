"""A run whose episodes are all there, made of random tokens: what a trainer needs, without an engine."""

from __future__ import annotations

import hashlib
import queue
import random
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.config import RunConfig, load_config
from agentrl.models import NANO
from agentrl.record.end_reason import EndReason
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.record.trajectory import TokenRecord
from agentrl.run.checkpoint_url import CheckpointUrl
from agentrl.run.run_directory import read_config, write_config
from agentrl.run.trainer_client import TrainerClient, open_trainer
from agentrl.run.trainer_ranks import Hosts, TrainerRanks
from agentrl.run.trainer_supervisor import TrainerSupervisor
from agentrl.store.batches import write_batch
from agentrl.store.changes import CloseGroup, InsertEpisode, OpenGroup
from agentrl.store.outcome import Outcome
from agentrl.store.store import Store
from agentrl.system.child_process import Child
from agentrl.system.host import Host
from agentrl.trainer.command_loop import TrainerProcess
from agentrl.trainer.model.ranks import Ranks

GROUPS_A_BATCH, GROUP_SIZE = 2, 3
SETTINGS: dict[str, Any] = {
    "minibatches": 2,
    "optimizer": {"lr": 1e-3, "warmup_steps": 3},
    "checkpoint": {"every": 2},
    "tokens_per_pack": 64,
}


def weights_digest(directory: Path) -> str:
    """What tells published weights from others, to the bit."""
    return hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest()


def batch(step: int) -> list[int]:
    """The groups of a step, the first being 1."""
    return [GROUPS_A_BATCH * (step - 1) + i for i in range(GROUPS_A_BATCH)]


def record_run(
    run_dir: Path, steps: int = 4, finish: Callable[[TokenRecord], None] = lambda record: None, **trainer: Any
) -> RunConfig:
    """Make the run: enough groups, ready to be trained on, for so many steps. `finish` changes a record before it is stored."""
    run_dir.mkdir()
    config = load_config(
        (),
        {},
        run_dir=str(run_dir),
        model={"path": str(NANO)},
        rollout={"group_size": GROUP_SIZE, "batch_size": GROUP_SIZE * GROUPS_A_BATCH},
        trainer={**SETTINGS, **trainer},
    )
    write_config(config)
    rng = random.Random(5)
    with Store(run_dir / "store.sqlite") as store:
        store.begin_restart("tasks", config.model_dump_json())
        for group in range(GROUPS_A_BATCH * steps):
            store.write([OpenGroup(group, 0, group)])
            for episode_index in range(GROUP_SIZE):
                record = TokenRecord()
                ids = [rng.randrange(9, 470) for _ in range(24)]
                logprobs = [-rng.random() for _ in range(12)]
                reply = Generation(
                    output_ids=ids[12:], logprobs=logprobs, versions=[VersionSpan(0, 0, 12)], finish="stop"
                )
                record.add("call", None, ids[:12], reply, 1.0)
                finish(record)
                ended = Outcome(reason=EndReason.FINISHED, reward=float(episode_index), metrics={}, record=record)
                store.write([InsertEpisode(group, episode_index, 0, ended)])
            store.write([CloseGroup(group)])
    return config


class TrainerOfRun(TrainerProcess):
    """The trainer process without its process, on the episodes of a run."""

    def __init__(self, run_dir: Path, weights_dir: Path) -> None:
        super().__init__(read_config(run_dir), weights_dir)
        self._store_file = run_dir / "store.sqlite"

    def step_on(self, groups: list[int], after: int | None = None) -> dict[str, Any]:
        """Train on some groups of the run."""
        with tempfile.TemporaryDirectory() as folder:
            return self.step(groups, str(write_batch(self._store_file, groups, Path(folder))), after)


@asynccontextmanager
async def trainer_of(
    run_dir: Path, hosts: Hosts | None = None, lock: int | None = None
) -> AsyncIterator[TrainerClient]:
    """The trainer of a run as a process, or several."""
    config = await in_thread(read_config, run_dir)
    async with open_trainer(run_dir, config, run_dir.parent / "weights", lock=lock, hosts=hosts) as trainer:
        yield trainer


class ThreadTrainer(Child):
    """The trainer process as a thread of this one, which saves its start: it takes lines, and answers them one by one."""

    def __init__(self, run_dir: Path, config: RunConfig) -> None:
        self._process = TrainerProcess(config, run_dir / "weights", Ranks())
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._asked: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run)

    async def write_line(self, line: str) -> None:
        self._asked.put(line)

    async def read_line(self, timeout_s: float) -> str:
        with anyio.fail_after(timeout_s):
            while self._answers.empty():
                await anyio.sleep(0.005)
        return self._answers.get_nowait()

    def _run(self) -> None:
        while (line := self._asked.get()) is not None:
            self._answers.put(self._process.answer(line))

    def end(self) -> None:
        self._asked.put(None)


def cancel_when_asked(client: TrainerClient, scope: anyio.CancelScope, patch: pytest.MonkeyPatch) -> None:
    """Cancel `scope` as soon as the trainer has its next command."""
    write_lines = client._started.write_lines

    async def write_and_cancel(lines: Sequence[str]) -> None:
        await write_lines(lines)
        scope.cancel()

    patch.setattr(client._started, "write_lines", write_and_cancel)


@asynccontextmanager
async def running(
    run_dir: Path, say: Callable[[str], None], keep: int = 2, url: CheckpointUrl | None = None
) -> AsyncIterator[TrainerSupervisor]:
    """The trainer of a start of the run, loaded."""
    config = RunConfig.model_validate_json(await in_thread((run_dir / "config.json").read_text))

    @asynccontextmanager
    async def ranks() -> AsyncIterator[TrainerRanks]:
        child = ThreadTrainer(run_dir, config)
        child.thread.start()
        try:
            yield TrainerRanks([Host()], [child])
        finally:
            child.end()
            with anyio.CancelScope(shield=True):
                await in_thread(child.thread.join)

    with await in_thread(Store, run_dir / "store.sqlite") as store:
        await in_thread(store.begin_restart, "tasks", config.model_dump_json())
        client = TrainerClient(ranks, 60, run_dir, run_dir / "weights")
        await client.start()
        try:
            trainer = TrainerSupervisor(client, store, run_dir, keep=keep, say=say, url=url)
            await trainer.load()
            yield trainer
        finally:
            await client.stop()
