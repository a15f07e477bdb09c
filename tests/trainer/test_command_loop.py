"""The trainer process: one batch, read once, and errors that leave all its ranks at the same command."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.errors import TrainerError, TrainerLostError
from agentrl.record.trajectory import Trajectory
from agentrl.trainer import sequences as sequences_module
from agentrl.trainer.packing import TrainingSequence
from tests.recorded_run import GROUP_SIZE, GROUPS_A_BATCH, TrainerOfRun, batch, record_run, trainer_of


def test_a_batch_becomes_sequences_once_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_run(tmp_path / "run", steps=1)
    process = TrainerOfRun(tmp_path / "run", tmp_path / "weights")
    process.load(None)
    made: list[TrainingSequence] = []

    def counted(path: Trajectory, *arguments: Any) -> TrainingSequence:
        made.append(sequence_of(path, *arguments))
        return made[-1]

    sequence_of = sequences_module._training_sequence
    monkeypatch.setattr(sequences_module, "_training_sequence", counted)
    trained = process.step_on(batch(1))["trained"]
    assert len(made) == GROUPS_A_BATCH * GROUP_SIZE
    assert trained["groups"] == [(group, GROUP_SIZE) for group in batch(1)]


@pytest.mark.soak
@pytest.mark.timeout(180)
@pytest.mark.anyio
async def test_a_teacher_that_fails_on_rank_0_leaves_all_ranks_at_the_same_command(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    unreachable = {"ranks": 2, "teacher": {"url": "http://127.0.0.1:9"}, "step_timeout_s": 60}
    await in_thread(lambda: record_run(run_dir, steps=1, **unreachable))
    with anyio.fail_after(150):
        async with trainer_of(run_dir) as trainer:
            weights = await trainer.load(None)
            for _ in range(2):
                with pytest.raises(TrainerError, match="gave no logprobs: ConnectError") as refused:
                    await trainer.step(batch(1), weights.version)
                assert not isinstance(refused.value, TrainerLostError)
            assert await trainer.weight_buckets()  # all ranks gather the weights


def test_it_starts_without_what_runs_episodes() -> None:
    """The proxy and its clients would take each rank half a second to import."""
    script = (
        "import sys, agentrl.trainer.command_loop; print([m for m in ('agentrl.proxy', 'openai') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("setting", ["mask", "train"])
def test_a_step_leaves_out_replies_of_an_altered_sampling_unless_it_is_to_train_on_them(
    tmp_path: Path, setting: str
) -> None:
    run_dir = tmp_path / "run"
    record_run(run_dir, steps=1, turns={"altered_sampling": setting})
    with closing(sqlite3.connect(run_dir / "store.sqlite", isolation_level=None)) as db:
        altered = "json_set(CAST(record AS TEXT), '$.alterations', json('[{\"top_k\": 5}]'))"
        db.execute(f"UPDATE episodes SET record = CAST({altered} AS BLOB) WHERE episode_index = 0")
    process = TrainerOfRun(run_dir, tmp_path / "weights")
    process.load(None)
    metrics = process.step_on(batch(1))["metrics"]
    assert metrics["altered_sampling_share"] == 1 / GROUP_SIZE
    trained = GROUPS_A_BATCH * (GROUP_SIZE if setting == "train" else GROUP_SIZE - 1)
    assert metrics["sequences"] == trained
    assert metrics["trained_tokens"] == 12 * trained
