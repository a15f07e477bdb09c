"""A trainer whose ranks are on machines that share no directory: the same weights to the bit, whatever dies."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.run.audit import audit
from agentrl.run.run_directory import checkpoint_directory, read_config
from agentrl.run.trainer_client import TrainerClient
from agentrl.run.trainer_supervisor import TrainerSupervisor
from agentrl.store.batches import TrainedStep, batches
from agentrl.store.manifest import MANIFEST
from agentrl.store.store import Store
from agentrl.system.host import Host
from agentrl.system.tasks import background_tasks
from tests.components import missing
from tests.other_machine import OtherMachine
from tests.recorded_run import batch, record_run, trainer_of

pytestmark = [pytest.mark.anyio, pytest.mark.soak, pytest.mark.timeout(240)]
RANKS = {"ranks": 2, "step_timeout_s": 60, "advantage": {"kind": "gae"}}


class Machines:
    """Two machines for the two ranks of a trainer; a lost one is replaced by an empty one when the ranks start again."""

    def __init__(self, folder: Path, run_dir: Path) -> None:
        if shutil.which("bwrap") is None:
            missing("bubblewrap is not installed: no machine without the run's directory")
        self._folder, self._run_dir = folder, run_dir
        self.now: list[OtherMachine] = []
        self.starts = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Sequence[Host]]:
        self.starts += 1
        roots = [self._folder / f"machine-{self.starts}-{number}" for number in range(2)]
        for root in roots:
            await in_thread(root.mkdir)
        self.now = [
            OtherMachine(root.name, root, [self._run_dir, *(other for other in roots if other != root)])
            for root in roots
        ]
        yield self.now


@asynccontextmanager
async def running(
    run_dir: Path, machines: Machines, said: list[str], *, resumed: bool = False
) -> AsyncIterator[TrainerSupervisor]:
    """The trainer of a start of the run, on two machines, loaded. `resumed`: the start is not the one that recorded the episodes."""
    config = await in_thread(read_config, run_dir)
    with await in_thread(Store, run_dir / "store.sqlite") as store:
        if resumed:
            await in_thread(store.begin_restart, "tasks", config.model_dump_json())
        async with trainer_of(run_dir, machines.open) as client:
            trainer = TrainerSupervisor(client, store, run_dir, keep=2, say=said.append)
            await trainer.load()
            yield trainer


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> list[TrainedStep]:
    """Three steps of two ranks on this machine, that nothing disturbs."""
    run_dir = tmp_path_factory.mktemp("straight") / "run"
    record_run(run_dir, steps=3, **RANKS)

    async def train() -> list[TrainedStep]:
        async with trainer_of(run_dir) as client:
            return await take_steps(client)

    return asyncio.run(train())


async def take_steps(client: TrainerClient) -> list[TrainedStep]:
    weights, taken = await client.load(None), []
    for step in (1, 2, 3):
        weights, trained, _ = await client.step(batch(step), weights.version)
        taken.append(trained)
    return taken


def trained_in(run_dir: Path) -> list[TrainedStep]:
    with Store(run_dir / "store.sqlite", read_only=True) as store:
        return store.read(batches)


def kept_figures(run_dir: Path) -> list[int]:
    with Store(run_dir / "store.sqlite", read_only=True) as store:
        return store.read(
            lambda db: [one for (one,) in db.execute("SELECT episode FROM token_figures ORDER BY episode")]
        )


async def test_machines_that_share_no_directory_give_the_same_weights_and_checkpoints(
    tmp_path: Path, straight: list[TrainedStep]
) -> None:
    run_dir, said = tmp_path / "run", list[str]()
    await in_thread(lambda: record_run(run_dir, steps=3, **RANKS))
    machines = Machines(tmp_path, run_dir)
    async with running(run_dir, machines, said) as trainer:
        for step in (1, 2):
            metrics = await trainer.step(batch(step))
        assert metrics["logprob_mismatch_tokens"] > 0, "weights of before, which rank 0 alone has on its disk"
        await trainer.checkpoint()
        await trainer.commit()
        first, second = machines.now
        here = trainer.weights.path
        assert here.is_relative_to(tmp_path / "weights"), "the servers are not on rank 0's machine"
        there = [path for path in first.root.rglob(f"{here.name}/*.safetensors") if "checkpoints" not in path.parts]
        assert [path.read_bytes() for path in there] == [path.read_bytes() for path in here.glob("*.safetensors")] != []
    left = [path for machine in (first, second) for path in machine.root.rglob("*.safetensors")]
    assert {path.parent.name for path in left if path.is_relative_to(second.root)} == {"nano"}, "the model alone"
    assert not [path for path in left if "checkpoints" in path.parts], "what was fetched is kept once"
    # Another start, from the checkpoint that was fetched, on other machines.
    async with running(run_dir, machines, said, resumed=True) as trainer:
        assert trainer.weights.version == 2
        await trainer.step(batch(3))
        assert await trainer.save_remaining() is None
    assert await in_thread(trained_in, run_dir) == straight
    kept = [episode for step in straight for episode in step.figures]
    assert await in_thread(kept_figures, run_dir) == kept != [], "figures of tokens come with the weights"
    assert (await in_thread(audit, run_dir)).violations == []
    assert said == []


KILLED: dict[str, Callable[[Machines], None]] = {
    "rank 0": lambda machines: machines.now[0].children[0].kill(),
    "rank 1": lambda machines: machines.now[1].children[0].kill(),
    "the machine of rank 0": lambda machines: machines.now[0].lose(),
    "both machines": lambda machines: [machine.lose() for machine in machines.now] and None,
}


async def kill_when_given(work_dir: Path, kill: Callable[[], None]) -> None:
    """Kill once the episodes of a step are there for the ranks."""
    while not await in_thread(lambda: list(work_dir.glob("batch-*"))):
        await anyio.sleep(0.01)
    kill()


@pytest.mark.parametrize(
    ("during", "killed"),
    [("a step", "rank 1"), ("a step", "both machines"), ("a save", "rank 0"), ("a fetch", "the machine of rank 0")],
)
async def test_what_dies_costs_time_and_nothing_else(
    tmp_path: Path, straight: list[TrainedStep], during: str, killed: str
) -> None:
    run_dir, said = tmp_path / "run", list[str]()
    await in_thread(lambda: record_run(run_dir, steps=3, **RANKS))
    machines = Machines(tmp_path, run_dir)

    def kill() -> None:
        if machines.starts == 1:
            KILLED[killed](machines)

    async with running(run_dir, machines, said) as trainer:
        await trainer.step(batch(1))
        await trainer.checkpoint()
        await trainer.commit()
        if during == "a fetch":
            machines.now[0].on_fetch = lambda arrived: kill()
        async with background_tasks() as tasks:
            if during == "a step":
                tasks.start_soon(kill_when_given, run_dir / "trainer", kill)
            await trainer.step(batch(2))
        await trainer.checkpoint()
        if during == "a save":
            kill()
        await trainer.commit()
        await trainer.step(batch(3))
        assert await trainer.save_remaining() is None
    assert (machines.starts, len(said)) == (2, 2), said
    assert await in_thread(trained_in, run_dir) == straight
    assert (await in_thread(audit, run_dir)).violations == []


async def test_a_checkpoint_that_arrives_damaged_is_none_and_the_next_has_its_steps(
    tmp_path: Path, straight: list[TrainedStep]
) -> None:
    run_dir, said = tmp_path / "run", list[str]()
    await in_thread(lambda: record_run(run_dir, steps=3, **RANKS))
    machines = Machines(tmp_path, run_dir)

    def damage(directory: Path) -> None:
        if (directory / MANIFEST).exists():  # no published weights
            file = directory / "model.safetensors"
            content = file.read_bytes()
            file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    async with running(run_dir, machines, said) as trainer:
        machines.now[0].on_fetch = damage
        await trainer.step(batch(1))
        await trainer.checkpoint()
        await trainer.commit()
        assert "model.safetensors does not hold what was written" in said[0]
        assert not await in_thread(checkpoint_directory(run_dir, 1).exists)
        for step in (2, 3):
            await trainer.step(batch(step))
        assert await trainer.save_remaining() is None
    assert machines.starts == 2
    assert await in_thread(trained_in, run_dir) == straight
    assert (await in_thread(audit, run_dir)).violations == []
