"""The audit under test: evidence of any form, written where evidence belongs, is a violation, and never more than that."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from agentrl.errors import StoreError
from agentrl.rollout import ledger
from agentrl.run.audit import _violations
from agentrl.run.audit_ledger import wrong_ledger
from agentrl.run.audit_tables import check_tables
from agentrl.run.audit_training import wrong_checkpoints
from agentrl.run.run_directory import whole_checkpoints
from agentrl.run.run_store import begin_store
from agentrl.trainer.model.checkpoint import read_state
from tests.damaged_run import BEST, DEEP, NEWEST, make_runs
from tests.power_cut_program import TASKS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_runs(tmp_path_factory.mktemp("audit"))


VALUES = ["NULL", "-1", "1e308", "x'ff'", "'abc'", "CAST(x'ff' AS TEXT)", "'[[1]]'", """'[[[0, "0-9999999999"]]]'"""]
VALUES += [f"'{DEEP.decode()}'", f"'[{'9' * 5000}]'"]


@pytest.mark.soak
def test_a_value_of_any_kind_in_any_column_is_found(runs: dict[str, Path]) -> None:
    """Also one that no code of agentrl could have written there."""
    run_dir, tried = runs["finished"], 0
    present = whole_checkpoints(run_dir)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        with closing(sqlite3.connect(run_dir / "store.sqlite")) as stored:
            stored.backup(db)
        assert _violations(db, run_dir, present) == []
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {(name, row[1]) for name in tables for row in db.execute(f"PRAGMA table_info({name})")}
        db.execute("PRAGMA ignore_check_constraints = ON")
        for table, column in sorted(columns):
            for value in VALUES:
                db.execute("BEGIN")
                with suppress(sqlite3.IntegrityError):
                    row = f"rowid = (SELECT MAX(rowid) FROM {table})"
                    changed = db.execute(
                        f"UPDATE {table} SET {column} = {value} WHERE {row} AND {column} IS NOT {value}"
                    )
                    if changed.rowcount:
                        tried += 1
                        assert violations_or_unreadable(db, run_dir, present) != [], f"{table}.{column} = {value[:40]}"
                db.execute("ROLLBACK")
    assert tried > 300


def violations_or_unreadable(db: sqlite3.Connection, run_dir: Path, present: list[Path]) -> list[str]:
    try:
        check_tables(db)
        return _violations(db, run_dir, present) or [text for _, text in wrong_checkpoints(db, run_dir, read_state)]
    except (StoreError, sqlite3.DatabaseError) as error:  # a store that cannot be read
        return [str(error)]


ENTRIES = [
    "",
    "[]",
    "{}",
    "3",
    "null",
    "NaN",
    "[null, null, null, null, null, null]",
    '["a", "b", "c"]',
    "[1, [2], {}]",
    "[[1]]",
]
ENTRIES += ['[3, 1, "x"]', '["summary.json", "x", "y"]', '["metrics.jsonl", null, "y"]', '["metrics.jsonl", -9, "y"]']
ENTRIES += [
    '["a\\u0000b", 1, "y"]',
    '["/dev/zero", 1, "x"]',
    '["..", 1, "x"]',
    '["\\ud800", 1, "x"]',
    '["none", 1, "x"]',
]
ENTRIES += ["[1, 2, 3, 4, 5, [1]]", "[1, 2, 3, 4, 5, [[1, 2]]]", '[4, 1, "x", 1, 1, [[1, [[2]]]]]', DEEP.decode()]
ENTRIES += [
    f"[1, {'9' * 5000}]",
    "[1e400, 1e400, 1e400, 1e400]",
    "[9e99, 1, 1]",
    "[[-5]]",
    "[[7, 99]]",
    '[-1, "x", -1]',
]
KINDS = [
    "restart",
    "open",
    "close",
    "set aside",
    "checkpoint",
    "reward",
    "forget",
    "damaged",
    "writing",
    "file",
    "episode",
    "x",
]


@pytest.mark.soak
def test_an_entry_of_any_form_is_found(runs: dict[str, Path], tmp_path: Path) -> None:
    """In a chain that was mended after it."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        with closing(sqlite3.connect(runs["finished"] / "store.sqlite")) as stored:
            stored.backup(db)
        assert list(wrong_ledger(db, runs["finished"])) == []
        last, digest = db.execute("SELECT MAX(id) + 1, digest FROM ledger").fetchone()
        for kind in KINDS:
            for entry in ENTRIES:
                chained = ledger._chained(digest, kind, entry)
                db.execute("INSERT OR REPLACE INTO ledger VALUES (?, ?, ?, ?)", (last, kind, entry, chained))
                found = list(wrong_ledger(db, runs["finished"]))
                json.dumps(found)
                if entry != '["none", 1, "x"]' or kind != "writing":  # which a crash may have kept from being there
                    assert found != [], f"{kind} {entry[:40]}"


def test_nothing_that_is_committed_is_deleted_whatever_the_store_says_was_begun(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    run_dir = shutil.copytree(runs["killed twice"], tmp_path / "run")
    with closing(sqlite3.connect(run_dir / "store.sqlite", isolation_level=None)) as db:
        for directory in (NEWEST, BEST):
            db.execute("INSERT INTO begun_checkpoints VALUES (?), (?)", (directory, f"elsewhere/{directory}"))
    begin_store(run_dir, TASKS, "{}", resume=True).close()
    left = sorted(f"checkpoints/{path.name}" for path in (run_dir / "checkpoints").iterdir())
    assert left == [BEST, NEWEST], "and the one that was begun is gone"
