"""The audit of a run finds every way in which something can be lost or doubled."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.errors import StoreError
from agentrl.run.audit import audit
from agentrl.store.changes import CloseGroup, InsertCall, InsertEpisode, OpenGroup
from agentrl.store.manifest import Manifest, write_manifest
from agentrl.store.store import Store
from tests.checkpoints import commit_whole
from tests.store.test_store import kept_choice, outcome


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of two epochs of three tasks: four groups trained on in two batches, one dropped, one waiting, one unfinished."""
    with Store(tmp_path / "store.sqlite") as store:
        bounded = {"group_size": 2, "batch_size": 4, "max_staleness": 1, "window": 1}
        store.begin_restart("3 tasks 0123, in order", json.dumps({"rollout": bounded}))
        for group in range(7):
            store.write([OpenGroup(group, group // 3, group % 3)])
            for episode_index in range(2 if group < 6 else 1):
                store.write([InsertEpisode(group, episode_index, 0, outcome(float(episode_index)))])
            if group < 6:
                store.write([CloseGroup(group, rejected="all rewards are 0.5" if group == 2 else None)])
        store.write([InsertCall(6, 1, kept_choice([1, 2]))])
        commit_whole(store, 2, tmp_path / "checkpoints" / "step-2", [(1, [0, 1]), (2, [3, 4])])
    return tmp_path


def test_a_run_that_lost_nothing_has_no_violations(run_dir: Path) -> None:
    found = audit(run_dir)
    assert found.violations == []
    assert (found.tasks, found.trained, found.waiting, found.unfinished) == (7, 4, 1, 1)
    assert found.dropped == {"all rewards are N": 1}
    assert (found.batches, found.last_checkpoint, found.restarts) == (2, 2, 1)
    assert (found.totals.finished, found.totals.failed, found.logged_calls) == (13, 0, 1)


@pytest.mark.parametrize(
    ("damage", "violation"),
    [
        ("DELETE FROM groups WHERE id = 1", "group 1 was never handed out"),
        ("UPDATE groups SET task = 1 WHERE id = 0", "task 1 was handed out 2 times in epoch 0"),
        ("UPDATE groups SET epoch = 1 WHERE id = 0", "epoch 0 handed out 2 of 3 tasks"),
        ("UPDATE groups SET rejected = NULL WHERE id = 2", "group 2 was rejected without a reason"),
        ("UPDATE groups SET step = 1 WHERE id = 2", "group 2 was rejected without a reason, or trained on"),
        ("UPDATE groups SET step = 2 WHERE id = 6", "group 6 was trained on before it was complete"),
        (
            "DROP INDEX finished_once; UPDATE episodes SET episode_index = 0 WHERE group_id = 0",
            "episode 0 of group 0 finished twice",
        ),
        ("UPDATE episodes SET reason = 'error' WHERE id = 1", "episode 1 failed without an error"),
        ("DELETE FROM episodes WHERE id = 1", "group 0 was closed with 1 of 2 episodes accounted for"),
        (
            "UPDATE calls SET episode_index = 0 WHERE episode IS NULL",
            "calls of episode 0 of group 6 are kept, which has ended",
        ),
        ("DELETE FROM batches WHERE step = 1", "the batch of step 1 is missing"),
        ("DELETE FROM batches WHERE step = 1", "row 1 of groups is of something that batches does not have"),
        ("UPDATE groups SET step = 2 WHERE step = 1", "the batch of step 1 holds no group"),
        (
            "UPDATE restarts SET config = replace(config, '\"max_staleness\": 1', '\"max_staleness\": 0')",
            "group 3 was trained on with a staleness of 1, and the bound is 0",
        ),
        (
            "UPDATE batches SET checkpoint = 9 WHERE step = 1",
            "is in the checkpoint of step 9, not in the first one after",
        ),
        ("UPDATE checkpoints SET step = 3", "the newest checkpoint is of step 3, the newest batch of step 2"),
        ("UPDATE checkpoints SET path = 'checkpoints/none'", "the checkpoint checkpoints/none is gone"),
        ("UPDATE batches SET optimizer_steps = 2 WHERE step = 2", "took 2 optimizer steps over 1 minibatches"),
        (
            "UPDATE batches SET optimizer_steps = 0 WHERE step = 2",
            "has 2 optimizer steps in it, the batches up to it had 1",
        ),
        (
            "UPDATE batches SET minibatches = '[[[0, [0, 1]], [1, [0, 1, 2]]]]' WHERE step = 1",
            "group 1 of step 1 has no sequence 2",
        ),
        (
            "UPDATE batches SET minibatches = '[[[0, [0, 1]]], [[0, [1]]]]' WHERE step = 1",
            "sequence 1 of group 0 was trained on 2 times in step 1",
        ),
        (
            "UPDATE batches SET groups = '[[0, 2], [5, 2]]' WHERE step = 1",
            "was trained on groups [0, 5], the store has",
        ),
        ("UPDATE batches SET groups = 'none' WHERE step = 1", "the batch of step 1 cannot be read"),
        (
            "UPDATE batches SET restart = 9 WHERE step = 1",
            "was trained by a start of the run that the store does not know",
        ),
        (
            "INSERT INTO token_figures VALUES ((SELECT id FROM episodes WHERE group_id = 2 LIMIT 1), x'66', x'66', x'66')",
            "are kept, which was not trained on",
        ),
        ("UPDATE checkpoints SET kept = 0", "the newest checkpoint, of step 2, is not kept"),
        ("UPDATE checkpoints SET damaged = 'why'", "the checkpoint of step 2 is damaged (why)"),
    ],
)
def test_every_kind_of_damage_is_found(run_dir: Path, damage: str, violation: str) -> None:
    with sqlite3.connect(run_dir / "store.sqlite") as db:
        db.executescript(damage)
    db.close()
    assert [text for text in audit(run_dir).violations if violation in text] != []


def test_every_change_of_a_checkpoints_files_is_found(run_dir: Path) -> None:
    checkpoint = run_dir / "checkpoints" / "step-2"
    for path in sorted(path for path in checkpoint.rglob("*") if path.is_file()):
        content = path.read_bytes()
        flipped = bytes([*content[:-3], content[-3] ^ 1, *content[-2:]])
        for damaged in (b"", content[:-9], flipped):
            path.write_bytes(damaged)
            (found,) = audit(run_dir).violations
            assert "is damaged" in found
        path.unlink()
        assert "cannot be read" in audit(run_dir).violations[0]
        path.write_bytes(content)
    (checkpoint / "model-2.safetensors").write_text("")
    assert "holds model-2.safetensors, which is not in its manifest" in audit(run_dir).violations[0]


def test_a_manifest_that_says_something_else_is_found(run_dir: Path) -> None:
    """Also one whose own checksum is right."""
    checkpoint = run_dir / "checkpoints" / "step-2"
    for wrong, violation in ((Manifest(1, 2), "is of step 1, not 2"), (Manifest(2, 3), "has 3 optimizer steps in it")):
        write_manifest(checkpoint, wrong)
        (found,) = audit(run_dir).violations
        assert violation in found


def test_the_command_says_so_and_fails(run_dir: Path) -> None:
    def command(*words: str) -> subprocess.CompletedProcess[str]:
        words = ("-m", "agentrl", "audit", *words)
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


def test_the_audit_leaves_nothing_beside_a_store_that_is_closed(run_dir: Path) -> None:
    """SQLite makes a log and shared memory for whoever opens a store in this mode, unless it is told that nobody writes."""
    before = sorted(path.name for path in run_dir.iterdir())
    assert "store.sqlite-wal" not in before
    assert audit(run_dir).violations == []
    assert sorted(path.name for path in run_dir.iterdir()) == before


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no run"):
        audit(tmp_path)
    (tmp_path / "store.sqlite").write_text("not a database, but long enough to be read as one " * 10)
    with pytest.raises(StoreError, match="cannot be used as a store: file is not a database"):
        audit(tmp_path)
