"""The audit of a run finds every way in which something can be lost or doubled."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.audit import audit
from agentrl.errors import StoreError
from agentrl.rollout.store import KeptCall, Store
from tests.rollout.test_store import kept_choice, outcome


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of two epochs of three tasks: four groups trained on in two batches, one dropped, one waiting, one unfinished."""
    with Store(tmp_path / "store.sqlite") as store:
        store.begin_life("3 tasks 0123, in order")
        for group in range(7):
            store.open_group(group, group // 3, group % 3)
            for sample in range(2 if group < 6 else 1):
                store.add(group, sample, 0, outcome(float(sample)))
            if group < 6:
                store.close_group(group, rejected="all rewards are 0.5" if group == 2 else None)
        store.keep_calls([KeptCall(6, 1, kept_choice([1, 2], "stop"))])
        for step, groups in ((2, [(1, [0, 1]), (2, [3, 4])]),):
            store.commit_checkpoint(step, tmp_path / "checkpoints" / f"step-{step}", groups)
    (tmp_path / "checkpoints" / "step-2").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-2" / "checkpoint.json").write_text('{"step": 2}')
    (tmp_path / "config.json").write_text(json.dumps({"rollout": {"group_size": 2}}))
    return tmp_path


def test_a_run_that_lost_nothing_has_no_violations(run_dir: Path) -> None:
    found = audit(run_dir)
    assert found.violations == []
    assert (found.tasks, found.trained, found.waiting, found.unfinished) == (7, 4, 1, 1)
    assert found.dropped == {"all rewards are N": 1}
    assert (found.batches, found.last_checkpoint, found.lives) == (2, 2, 1)
    assert (found.finished_episodes, found.failed_episodes, found.kept_calls) == (13, 0, 1)


@pytest.mark.parametrize(
    ("damage", "violation"),
    [
        ("DELETE FROM groups WHERE id = 1", "groups 1 were never handed out"),
        ("UPDATE groups SET task = 1 WHERE id = 0", "task 1 was handed out 2 times in epoch 0"),
        ("UPDATE groups SET epoch = 1 WHERE id = 0", "epoch 0 handed out 2 of 3 tasks"),
        ("UPDATE groups SET reason = NULL WHERE id = 2", "group 2 was rejected without a reason"),
        ("UPDATE groups SET step = 1 WHERE id = 2", "group 2 was rejected without a reason, or trained on"),
        ("UPDATE groups SET step = 2 WHERE id = 6", "group 6 was trained on before it was complete"),
        (
            "DROP INDEX finished_once; UPDATE episodes SET sample = 0 WHERE group_id = 0",
            "sample 0 of group 0 finished twice",
        ),
        ("UPDATE episodes SET status = 'failed' WHERE id = 1", "episode 1 failed without an error"),
        ("DELETE FROM episodes WHERE id = 1", "group 0 was closed with 1 of 2 episodes accounted for"),
        ("UPDATE calls SET sample = 0", "calls of sample 0 of group 6 are kept, which has ended"),
        ("DELETE FROM batches WHERE step = 1", "steps 1 have no batch"),
        ("DELETE FROM batches WHERE step = 1", "group 0 is in a batch that does not exist"),
        ("UPDATE groups SET step = 2 WHERE step = 1", "the batch of step 1 holds no group"),
        (
            "UPDATE batches SET checkpoint = 9 WHERE step = 1",
            "is in the checkpoint of step 9, not in the first one after",
        ),
        ("UPDATE checkpoints SET step = 3", "steps 3 have no batch"),
        ("UPDATE checkpoints SET path = 'checkpoints/none'", "the newest checkpoint checkpoints/none cannot be read"),
    ],
)
def test_every_kind_of_damage_is_found(run_dir: Path, damage: str, violation: str) -> None:
    with sqlite3.connect(run_dir / "store.sqlite") as db:
        db.executescript(damage)
    db.close()
    assert [text for text in audit(run_dir).violations if violation in text] != []


def test_a_checkpoint_of_another_step_is_found(run_dir: Path) -> None:
    (run_dir / "checkpoints" / "step-2" / "checkpoint.json").write_text('{"step": 1}')
    assert audit(run_dir).violations == ["the newest checkpoint checkpoints/step-2 is of step 1, not 2"]


def test_the_command_says_so_and_fails(run_dir: Path) -> None:
    def command(*words: str) -> subprocess.CompletedProcess[str]:
        words = ("-m", "agentrl.cli", "audit", *words)
        return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=60)

    fine = command(str(run_dir))
    assert fine.returncode == 0, fine.stderr
    assert "nothing is lost, nothing is doubled" in fine.stdout
    with sqlite3.connect(run_dir / "store.sqlite") as db:
        db.execute("UPDATE groups SET task = 1 WHERE id = 0")
    db.close()
    broken = command(str(run_dir), "--json")
    assert broken.returncode == 1
    assert json.loads(broken.stdout)["violations"][0] == "task 1 was handed out 2 times in epoch 0"


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no run"):
        audit(tmp_path)
    (tmp_path / "store.sqlite").write_text("not a database, but long enough to be read as one " * 10)
    with pytest.raises(StoreError, match="cannot be used as a store: file is not a database"):
        audit(tmp_path)
