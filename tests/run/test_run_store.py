"""What a run does on resume when its store is not what it left: it says so in one line, and deletes nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from agentrl.errors import StoreError
from agentrl.run.run_directory import begin_store
from agentrl.run.run_lock import check_run_dir
from agentrl.store.changes import CloseGroup, OpenGroup
from agentrl.store.store import Store
from tests.checkpoints import commit

TASKS = "3 tasks"


def test_the_store_knows_which_task_each_group_was_given(tmp_path: Path) -> None:
    with begin_store(tmp_path, TASKS, "{}", resume=False) as store:
        for group in (1, 0, 2):
            store.write([OpenGroup(group, 0, group, digest=f"digest {group}")])
    with Store(tmp_path / "store.sqlite", must_exist=True) as store:
        assert store.task_digests()[1] == "digest 1"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with checkpoints of steps 1 to 3, of which the last was written and not committed."""
    with begin_store(tmp_path, TASKS, "{}", resume=False) as store:
        for group in range(3):
            store.write([OpenGroup(group, 0, group)])
            store.write([CloseGroup(group)])
        for step in (1, 2):
            checkpoint(store, tmp_path, step)
            commit(store, step, tmp_path / f"checkpoints/step-{step:06d}", [(step, [step])])
        checkpoint(store, tmp_path, 3)
    return tmp_path


def checkpoint(store: Store, run_dir: Path, step: int) -> None:
    directory = run_dir / f"checkpoints/step-{step:06d}"
    store.begin_checkpoint(directory)
    directory.mkdir(parents=True)
    (directory / "checkpoint.json").write_text("{}")


def names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def test_a_checkpoint_that_a_crash_kept_from_being_committed_is_removed(run_dir: Path) -> None:
    with begin_store(run_dir, TASKS, "{}", resume=True) as store:
        assert store.unwanted_checkpoints() == []
    assert names(run_dir) == ["step-000001", "step-000002"]


def test_a_trainer_that_dies_between_writing_and_committing_leaves_nothing_unknown(run_dir: Path) -> None:
    """Its checkpoint is given up, and the run goes on to the next one before it is killed."""
    with begin_store(run_dir, TASKS, "{}", resume=True) as store:
        checkpoint(store, run_dir, 3)
        checkpoint(store, run_dir, 4)
        commit(store, 3, run_dir / "checkpoints/step-000004", [(3, [0])])
    with begin_store(run_dir, TASKS, "{}", resume=True):
        assert names(run_dir) == ["step-000001", "step-000002", "step-000004"]


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def without_schema(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8192])


def scrambled(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:8192] + b"x" * 8192 + path.read_bytes()[16384:])


def of_another_run(path: Path) -> None:
    path.unlink()
    Store(path).close()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "store.sqlite is missing"),
        (emptied, "store.sqlite is empty: what was in it is lost"),
        (without_schema, "store.sqlite is empty: what was in it is lost"),
        (torn, "store.sqlite cannot be used as a store"),
        (scrambled, "store.sqlite cannot be used as a store"),
        (of_another_run, r"step-000001: it is older than its checkpoints, or of another run"),
    ],
)
def test_a_store_that_was_lost_is_refused_and_nothing_is_deleted(
    run_dir: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(run_dir / "store.sqlite")
    before = sorted(run_dir.rglob("*"))
    refusal = pytest.raises(StoreError, match=rf"{message}.*Nothing was deleted\. Put back the store\.sqlite")
    with refusal as refused, begin_store(run_dir, TASKS, "{}", resume=True):
        pass
    assert "\n" not in str(refused.value)
    assert names(run_dir) == ["step-000001", "step-000002", "step-000003"]
    assert [path for path in before if not path.exists() and not path.name.endswith(("-wal", "-shm"))] == []
    assert (run_dir / "store.sqlite").exists() == (damage is not Path.unlink)


@pytest.mark.parametrize("resume", [True, False])
def test_checkpoints_without_a_store_are_no_place_for_a_run(run_dir: Path, resume: bool) -> None:
    (run_dir / "store.sqlite").unlink()
    with pytest.raises(
        StoreError, match=r"holds no run.*its store.sqlite is gone, .*step-000003 is there.*Nothing was"
    ):
        check_run_dir(run_dir, resume=resume)


def test_the_log_of_a_store_that_is_gone_never_becomes_part_of_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite-wal").write_bytes(b"frames")
    refusal = pytest.raises(StoreError, match=r"store\.sqlite-wal is left of a store that is gone")
    with refusal, begin_store(tmp_path, TASKS, "{}", resume=False):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["store.sqlite-wal"]


def test_a_committed_checkpoint_is_in_the_database_file_itself(run_dir: Path, tmp_path: Path) -> None:
    with Store(run_dir / "store.sqlite", must_exist=True) as store:
        store.write([OpenGroup(7, 1, 0)])
        commit(store, 3, run_dir / "checkpoints/step-000003", [(3, [0])])
        alone = tmp_path / "alone.sqlite"
        alone.write_bytes((run_dir / "store.sqlite").read_bytes())
    with Store(alone, must_exist=True) as copy:
        assert copy.kept_checkpoints()[-1] == (3, tmp_path / "checkpoints/step-000003")
        assert copy.next_group_id() == 8
