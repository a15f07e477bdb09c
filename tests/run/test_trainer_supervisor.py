"""A step is all or nothing, whatever fails in it; and a checkpoint that is damaged costs time, and nothing else."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from anyio.to_thread import run_sync as in_thread

from agentrl.errors import DiskError, StoreError, TrainerDiskError, TrainerError, TrainerLostError, TrainerStateError
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.record.trajectory import TokenRecord
from agentrl.run.audit import audit
from agentrl.store.batches import TrainedStep, batches
from agentrl.store.manifest import read_manifest
from agentrl.store.store import Store
from agentrl.trainer.command_loop import TrainerProcess
from agentrl.trainer.policies import Policies
from agentrl.trainer.step_metrics import importance_weight_quantiles
from tests.recorded_run import TrainerOfRun, batch, record_run, running, weights_digest

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Taken:
    """A step, and the weights that it gave."""

    trained: TrainedStep
    weights: str


def trained_in(run_dir: Path) -> list[TrainedStep]:
    with Store(run_dir / "store.sqlite") as store:
        return store.read(batches)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> list[Taken]:
    """Four steps that nothing disturbs."""
    run_dir = tmp_path_factory.mktemp("straight") / "run"
    record_run(run_dir)
    process = TrainerOfRun(run_dir, run_dir / "weights")
    process.load(None)
    replies = [process.step_on(batch(step)) for step in range(1, 5)]
    return [Taken(TrainedStep.from_json(one["trained"]), weights_digest(Path(one["weights"]))) for one in replies]


def fails_after(call: int, kind: type, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The method does its work, and at its so-many-th call then fails."""
    original, calls = getattr(kind, method), []

    def failing(*args: Any, **kwargs: Any) -> Any:
        done = original(*args, **kwargs)
        calls.append(1)
        if len(calls) == call:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return done

    monkeypatch.setattr(kind, method, failing)


BOUNDARIES: dict[str, Callable[[pytest.MonkeyPatch, Path], None]] = {
    "memory, after the first optimizer step": lambda patch, _: fails_after(1, torch.optim.AdamW, "step", patch),
    "memory, after the second": lambda patch, _: fails_after(2, torch.optim.AdamW, "step", patch),
    "publishing": lambda patch, weights: (weights / "v2.partial").write_text("in the way") and None,
}


@pytest.mark.parametrize(
    "boundary",
    [pytest.param(name, marks=[pytest.mark.soak] * (name == "memory, after the second")) for name in BOUNDARIES],
)
def test_a_trainer_whose_step_failed_is_never_saved_and_never_goes_on(
    boundary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, straight: list[Taken]
) -> None:
    run_dir, weights = tmp_path / "run", tmp_path / "run" / "weights"
    record_run(run_dir)
    process = TrainerOfRun(run_dir, weights)
    process.load(None)
    process.step_on(batch(1))
    with monkeypatch.context() as patch:
        BOUNDARIES[boundary](patch, weights)
        with pytest.raises((torch.OutOfMemoryError, OSError)):
            process.step_on(batch(2))
    assert process._broken
    for command in (
        lambda: process.save(str(tmp_path / "saved"), 1),
        lambda: process.save(str(tmp_path / "saved"), 2),
        lambda: process.step_on(batch(2)),
        lambda: process.load(None),
    ):
        with pytest.raises(TrainerStateError, match="had failed in its middle"):
            command()
    assert not (tmp_path / "saved").exists()
    (weights / "v2.partial").unlink(missing_ok=True)
    again = TrainerOfRun(run_dir, weights)
    again.load(None)
    assert [again.step_on(batch(step))["trained"] for step in (1, 2)] == [one.trained.to_json() for one in straight[:2]]


def test_a_checkpoint_is_of_the_step_that_the_run_means_or_is_not_made(tmp_path: Path, straight: list[Taken]) -> None:
    record_run(tmp_path / "run")
    process = TrainerOfRun(tmp_path / "run", tmp_path / "weights")
    process.load(None)
    for step in (1, 2):
        process.step_on(batch(step))
    with pytest.raises(TrainerStateError):
        process.save(str(tmp_path / "saved"), 1)
    with pytest.raises(TrainerStateError, match="the trainer is at step 2, and the run at step 1"):
        process.step_on(batch(2), after=1)
    process.save(str(tmp_path / "saved"), 2)
    process.saved()
    manifest = read_manifest(tmp_path / "saved")
    assert (manifest.step, manifest.optimizer_steps) == (2, 4)
    resumed = TrainerOfRun(tmp_path / "run", tmp_path / "weights")
    resumed.load(str(tmp_path / "saved"))
    for step in (3, 4):
        assert weights_digest(Path(resumed.step_on(batch(step))["weights"])) == straight[step - 1].weights


async def test_a_step_that_failed_is_taken_again_and_then_ends_the_run(tmp_path: Path, straight: list[Taken]) -> None:
    run_dir = tmp_path / "run"
    await in_thread(record_run, run_dir)
    blocked, said = run_dir / "weights" / "v2.partial", []

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 1:
            threading.Thread(target=blocked.unlink).start()  # which the event loop does not wait for

    async with running(run_dir, say) as trainer:
        await trainer.step(batch(1))
        await in_thread(blocked.write_text, "in the way")
        await trainer.step(batch(2))
        assert trainer.weights.version == 2
        assert weights_digest(trainer.weights.path) == straight[1].weights
        assert "File exists" in said[0]
        await in_thread((run_dir / "weights" / "v3.partial").write_text, "in the way")
        with pytest.raises(TrainerError, match=r"step 3 failed 4 times: .*--resume "):
            await trainer.step(batch(3))
        await trainer.save_remaining()
    assert await in_thread(trained_in, run_dir) == [one.trained for one in straight[:2]]
    found = await in_thread(audit, run_dir)
    assert (found.violations, found.trained, found.waiting) == ([], 4, 4)


@pytest.mark.parametrize("left_when", ["it is taken", "its batch is not read yet"])
async def test_a_step_whose_answer_nobody_waited_for_is_in_no_checkpoint(
    left_when: str, tmp_path: Path, straight: list[Taken], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does a second Ctrl-C leave the run, and an episode that raises KeyboardInterrupt. A batch that nobody waits for is gone."""
    run_dir = tmp_path / "run"
    said: list[str] = []
    await in_thread(record_run, run_dir)
    async with running(run_dir, said.append) as trainer:
        await trainer.step(batch(1))
        answer, optimize = TrainerProcess.answer, torch.optim.AdamW.step
        leave, left = threading.Event(), threading.Event()

        def answered(self: TrainerProcess, line: str) -> str:
            leave.set()
            assert left.wait(60)
            return answer(self, line)

        def optimized(self: torch.optim.AdamW, *args: Any, **kwargs: Any) -> Any:
            leave.set()
            return optimize(self, *args, **kwargs)

        with monkeypatch.context() as patch:
            if left_when == "it is taken":
                patch.setattr(torch.optim.AdamW, "step", optimized)
            else:
                patch.setattr(TrainerProcess, "answer", answered)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(trainer.step, batch(2))
                assert await in_thread(leave.wait, 60)
                tasks.cancel_scope.cancel()
            left.set()
            await trainer.save_remaining()
    assert ["and the run at step" in text for text in said[:1]] == ([True] if left_when == "it is taken" else [])
    assert await in_thread(trained_in, run_dir) == [straight[0].trained]
    found = await in_thread(audit, run_dir)
    assert (found.violations, found.trained, found.last_checkpoint) == ([], 2, 1)


async def test_the_last_checkpoint_is_bounded_in_time_and_in_attempts_and_its_batches_wait(
    tmp_path: Path, straight: list[Taken], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that hangs; and a trainer that dies whenever it writes."""
    run_dir = tmp_path / "run"
    await in_thread(record_run, run_dir)
    said: list[str] = []
    async with running(run_dir, said.append) as trainer:
        saved, died = trainer.client.saved, 0

        async def hangs() -> None:
            await anyio.sleep(60)

        async def dies() -> None:
            nonlocal died
            if trainer.client.saving:
                died += 1
                raise TrainerLostError("the trainer ended: killed while it wrote")
            await saved()

        await trainer.step(batch(1))
        monkeypatch.setattr("agentrl.run.trainer_supervisor.SAVE_TIMEOUT_S", 0.5)
        monkeypatch.setattr(trainer.client, "saved", hangs)
        with anyio.fail_after(40):
            lost = await trainer.save_remaining()
        assert (lost or "").startswith("the last checkpoint was not written within 0.5 s\nThe batches of 1 steps wait")
        monkeypatch.setattr("agentrl.run.trainer_supervisor.SAVE_TIMEOUT_S", 120)
        monkeypatch.setattr(trainer.client, "saved", dies)
        lost = await trainer.save_remaining()
        assert died == 3
        assert "the last checkpoint was lost with its trainer, twice\nThe batches of 1 steps wait" in (lost or "")
    found = await in_thread(audit, run_dir)
    assert (found.violations, found.trained) == ([], 0)
    async with running(run_dir, said.append) as trainer:
        assert trainer.weights.version == 0


async def test_a_checkpoint_of_a_trainer_that_died_before_it_was_committed_is_not_left_on_the_disk(
    tmp_path: Path, straight: list[Taken]
) -> None:
    run_dir = tmp_path / "run"
    await in_thread(record_run, run_dir)
    said: list[str] = []
    async with running(run_dir, said.append, keep=1) as trainer:
        await trainer.step(batch(1))
        await trainer.checkpoint()
        await trainer.client.saved()
        await in_thread((run_dir / "checkpoints" / "step-000009.partial").mkdir)
        saved, asked = trainer.client.saved, 0

        async def dies() -> None:
            nonlocal asked
            asked += 1
            if asked == 1:
                raise TrainerLostError("the trainer ended: killed after it wrote")
            await saved()

        trainer.client.saved = dies  # type: ignore[method-assign]
        await trainer.commit()
        assert list((run_dir / "checkpoints").iterdir()) == []
        await trainer.step(batch(2))
        await trainer.save_remaining()
        assert [path.name for path in (run_dir / "checkpoints").iterdir()] == ["step-000002"]
    assert await in_thread(trained_in, run_dir) == [one.trained for one in straight[:2]]
    assert (await in_thread(audit, run_dir)).violations == []


async def test_the_disk_is_blamed_for_what_it_refused_and_for_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    await in_thread(record_run, run_dir)
    async with running(run_dir, pytest.fail) as trainer:
        await trainer.step(batch(1))
        with monkeypatch.context() as patch:
            patch.setattr(Policies, "snapshot", lambda *_, **__: fails(torch.OutOfMemoryError("no memory")))
            with pytest.raises(TrainerError, match=r"was not made: .*no memory.*--resume "):
                await trainer.checkpoint()
        await in_thread((run_dir / "checkpoints").write_text, "in the way")
        await trainer.checkpoint()
        with pytest.raises(
            DiskError, match=r"the checkpoint of step 1 cannot be written: .*make room, or repair the disk"
        ):
            await trainer.commit()
        assert "the last checkpoint was not written" in (await trainer.save_remaining() or "")
    assert await in_thread(trained_in, run_dir) == [], "a checkpoint that was not written is not committed"


@pytest.mark.parametrize("error", [TrainerDiskError("no space"), TrainerLostError("it died"), TrainerError("no")])
async def test_a_last_checkpoint_that_is_not_made_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: TrainerError
) -> None:
    async def save(*_: object) -> None:
        raise error

    run_dir = tmp_path / "run"
    said: list[str] = []
    await in_thread(record_run, run_dir)
    async with running(run_dir, said.append) as trainer:
        await trainer.step(batch(1))
        monkeypatch.setattr(trainer.client, "save", save)
        lost = await trainer.save_remaining() or ""
    assert lost.startswith("the last checkpoint was not written: ")
    assert "The batches of 1 steps wait in the store" in lost


def fails(error: Exception) -> None:
    raise error


async def trained_run(run_dir: Path) -> None:
    """Four steps, with a checkpoint after each second one."""
    async with running(run_dir, pytest.fail) as trainer:
        for step in range(1, 5):
            await trainer.step(batch(step))
            if step % 2 == 0:
                await trainer.checkpoint()
        await trainer.save_remaining()


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "a flipped bit": lambda path: (path / "model.safetensors").write_bytes(
        bytes([*(content := (path / "model.safetensors").read_bytes())[:-1], content[-1] ^ 1])
    ),
    "a file cut short": lambda path: (path / "optimizer" / "state.safetensors").write_bytes(b"\0" * 100),
    "an empty manifest": lambda path: (path / "checkpoint.json").write_text(""),
    "no directory": lambda path: path.rename(path.parent.parent / "elsewhere"),
}


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(name, marks=[pytest.mark.soak] * (name in ("a file cut short", "an empty manifest")))
        for name in DAMAGES
    ],
)
async def test_a_damaged_checkpoint_gives_way_to_an_older_one_and_is_made_again(
    damage: str, tmp_path: Path, straight: list[Taken]
) -> None:
    run_dir = tmp_path / "run"
    await in_thread(record_run, run_dir)
    await trained_run(run_dir)
    newest = run_dir / "checkpoints" / "step-000004"
    await in_thread(DAMAGES[damage], newest)
    assert (await in_thread(audit, run_dir)).violations != []
    said: list[str] = []
    async with running(run_dir, said.append) as trainer:
        assert (trainer.weights.version, weights_digest(trainer.weights.path)) == (4, straight[3].weights)
    assert said[0].startswith("the checkpoint of step 4 is damaged: ")
    assert said[1] == "training steps 3 to 4 again, on the batches that the store names"
    assert len(said) == 2
    assert (run_dir / "damaged" / "step-000004-1").exists() == (damage != "no directory"), "it is set aside"
    found = await in_thread(audit, run_dir)
    assert (found.violations, found.trained, found.batches) == ([], 8, 4)
    assert await in_thread(trained_in, run_dir) == [one.trained for one in straight]


async def test_without_a_whole_checkpoint_everything_is_trained_again_or_nothing_is(
    tmp_path: Path, straight: list[Taken]
) -> None:
    run_dir = tmp_path / "run"
    await in_thread(record_run, run_dir)
    await trained_run(run_dir)
    for step in (2, 4):
        await in_thread((run_dir / "checkpoints" / f"step-00000{step}" / "config.json").unlink)
    said: list[str] = []
    async with running(run_dir, said.append) as trainer:
        assert (trainer.weights.version, weights_digest(trainer.weights.path)) == (4, straight[3].weights)
    assert said[-1] == "training steps 1 to 4 again, on the batches that the store names"
    assert (await in_thread(audit, run_dir)).violations == []

    await in_thread((run_dir / "checkpoints" / "step-000004" / "config.json").unlink)
    with sqlite3.connect(run_dir / "store.sqlite") as db:
        db.execute("DELETE FROM batches WHERE step = 2")
    db.close()
    with pytest.raises(StoreError, match="the batch of step 2 is missing"):
        async with running(run_dir, said.append):
            pass


async def test_figures_of_tokens_come_with_the_checkpoint_of_their_step_and_are_the_same_after_a_kill(
    tmp_path: Path,
) -> None:
    """What was trained and not committed left no figures; trained again, it has those of a run that nothing disturbed."""

    def figures(run_dir: Path) -> list[Any]:
        with closing(sqlite3.connect(run_dir / "store.sqlite")) as db:
            return db.execute("SELECT * FROM token_figures ORDER BY episode").fetchall()

    kept = {}
    for name, kills in (("straight", 0), ("killed", 1)):
        run_dir = tmp_path / name
        await in_thread(record_run, run_dir)
        for _ in range(kills):
            async with running(run_dir, pytest.fail) as trainer:
                await trainer.step(batch(1))
                await trainer.checkpoint()  # and it ends before the commit
            assert await in_thread(figures, run_dir) == []
        async with running(run_dir, pytest.fail) as trainer:
            await trainer.step(batch(1))
            await trainer.step(batch(2))
            await trainer.step(batch(3))
            await trainer.save_remaining()
        kept[name] = await in_thread(figures, run_dir)
    assert kept["killed"] == kept["straight"] != []


async def test_what_is_left_out_is_not_trained_on_and_trained_again_the_same(
    tmp_path: Path, straight: list[Taken]
) -> None:
    """The weights are those of a run without it, whatever `rollout.trajectories` says later; and the store holds all of it."""

    def with_side_call(record: TokenRecord) -> None:
        reply = Generation(output_ids=[20, 21], logprobs=[-3.0, -4.0], versions=[VersionSpan(0, 0, 2)], finish="stop")
        side = record.add("title", None, [9, 10], reply, 1.0)
        side.left_out = True

    run_dir = tmp_path / "run"
    await in_thread(partial(record_run, run_dir, finish=with_side_call))
    async with running(run_dir, pytest.fail) as trainer:
        await trainer.step(batch(1))
        await trainer.save_remaining()
    config = json.loads(await in_thread((run_dir / "config.json").read_text))
    config["rollout"]["trajectories"] = "all"
    await in_thread((run_dir / "config.json").write_text, json.dumps(config))
    async with running(run_dir, pytest.fail) as trainer:
        await trainer.step(batch(2))
        await trainer.save_remaining()
        assert weights_digest(trainer.weights.path) == straight[1].weights
    assert (await in_thread(audit, run_dir)).violations == []
    with await in_thread(partial(Store, run_dir / "store.sqlite", read_only=True)) as store:
        (first, *_) = await in_thread(store.episodes, batch(1))
    assert [turn.output_ids == [20, 21] for turn in first.record.turns] == [False, True]


def test_quantiles_are_of_any_number_of_tokens() -> None:
    weights = torch.arange(101).repeat(2**24 // 100).float().div(100).log()
    assert len(weights) > 2**24
    found = importance_weight_quantiles(weights)
    assert found == pytest.approx(
        {"importance_weight_p01": 0.01, "importance_weight_p50": 0.5, "importance_weight_p99": 0.99}, abs=1e-3
    )
    assert importance_weight_quantiles(torch.zeros(0)) == {}
