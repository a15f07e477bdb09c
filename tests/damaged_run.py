"""A real run at several moments, and the ways to damage a copy of it, for tests of the audit."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import anyio
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentrl.errors import StoreError
from agentrl.rollout.database import create_database
from agentrl.rollout.manifest import _own_sum
from agentrl.rollout.packed_record import StoredCall
from agentrl.rollout.schema import SCHEMA, SCHEMA_VERSION
from agentrl.rollout.stored_episodes import LoggedCall
from agentrl.run.run_store import begin_store, write_noted
from tests.power_cut_program import TASKS, run_once
from tests.rollout.test_store import kept_choice, outcome
from tests.whole_audit import audit

Damage = Callable[[Path], None]
NEWEST = "checkpoints/step-000010"
BEST = "checkpoints/step-000002"
CHECKPOINT_FILES = [
    f"{directory}/{name}"
    for directory in (NEWEST, BEST)
    for name in ("checkpoint.json", "model.safetensors", "config.json", "optimizer/state.safetensors")
]


def make_runs(folder: Path) -> dict[str, Path]:
    """One run at several moments: killed, killed again after it went on, and finished with a group that is still open."""
    run_dir, found = folder / "run", {}
    shape = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "head_dim": 8}
    Qwen3ForCausalLM(Qwen3Config(**shape, num_attention_heads=1, num_key_value_heads=1)).save_pretrained(
        folder / "model"
    )
    (folder / "model" / "tokenizer.json").write_text("{}")

    def moment(name: str) -> None:
        found[name] = shutil.copytree(run_dir, folder / name)

    def said(**_: Any) -> None:
        pass

    anyio.run(lambda: run_once(run_dir, folder / "model", said, resume=False, checkpoints=3))
    moment("killed")
    anyio.run(lambda: run_once(run_dir, folder / "model", said, resume=True, checkpoints=2))
    moment("killed twice")
    with begin_store(run_dir, TASKS, "{}", resume=True) as store:
        write_noted(store, run_dir / "eval_before.json", '{"mean_reward": 0.5}\n')
        group = store.next_group_id()
        store.open_group(group, group // 7, group % 7)
        store.add(group, 0, 0, outcome(1.0))
        store.log_calls(
            [
                LoggedCall(group, 1, StoredCall.of(kept_choice([5, ids], "stop", name)))
                for ids, name in enumerate(("a", "b"))
            ]
        )
        moment("going on")  # the log is not empty
        write_noted(store, run_dir / "summary.json", '{"steps": 10}\n')
    moment("finished")
    return found


def verdict(run_dir: Path) -> list[str]:
    """What the audit says is wrong, also where it can say no more than that the store cannot be read. Anything else it raises
    is a failure."""
    try:
        found = audit(run_dir)
    except StoreError as error:
        return [str(error)]
    json.dumps(found.violations)
    return found.violations


def sql(statements: str) -> Damage:
    """Change the tables, whatever their constraints say."""

    def damage(run_dir: Path) -> None:
        with closing(sqlite3.connect(run_dir / "store.sqlite", isolation_level=None)) as db:
            db.execute("PRAGMA ignore_check_constraints = ON")
            (index,) = db.execute("SELECT sql FROM sqlite_master WHERE name = 'finished_once'").fetchone()
            db.executescript(f"DROP INDEX finished_once; BEGIN; {statements}; COMMIT;")
            assert db.total_changes > 0, "the damage damages nothing"
            with suppress(sqlite3.IntegrityError):  # an episode that is there twice
                db.execute(index)

    return damage


def swapped(table: str, key: str, column: str, one: str, other: str) -> Damage:
    """Exchange a column of two rows."""
    return sql(
        f"CREATE TEMP TABLE kept AS SELECT {key} AS k, {column} AS v FROM {table} WHERE {key} IN ({one}, {other});"
        f"UPDATE {table} SET {column} = (SELECT v FROM kept WHERE k != {table}.{key}) WHERE {key} IN ({one}, {other});"
        "DROP TABLE kept"
    )


def edited(name: str, change: Callable[[bytes], bytes]) -> Damage:
    """Change the bytes of a file."""

    def damage(run_dir: Path) -> None:
        content = (run_dir / name).read_bytes()
        assert change(content) != content
        (run_dir / name).write_bytes(change(content))

    return damage


def flipped(content: bytes) -> bytes:
    """One bit in the middle is another."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def lines(change: Callable[[list[bytes]], list[bytes]]) -> Damage:
    """Change the lines of metrics.jsonl."""
    return edited("metrics.jsonl", lambda content: b"".join(change(content.splitlines(keepends=True))))


def removed(name: str) -> Damage:
    def damage(run_dir: Path) -> None:
        if (run_dir / name).is_dir():
            shutil.rmtree(run_dir / name)
        else:
            (run_dir / name).unlink()

    return damage


def exchanged(one: str, other: str) -> Damage:
    def damage(run_dir: Path) -> None:
        (run_dir / one).rename(run_dir / "aside")
        (run_dir / other).rename(run_dir / one)
        (run_dir / "aside").rename(run_dir / other)

    return damage


def a_record_in_the_file(run_dir: Path) -> None:
    """One bit of a stored record, where it lies on the disk."""
    with closing(sqlite3.connect(run_dir / "store.sqlite")) as db:
        (record,) = db.execute("SELECT record FROM episodes WHERE id = 5").fetchone()
    edited("store.sqlite", lambda content: content.replace(record, flipped(record)))(run_dir)


def an_empty_store(run_dir: Path) -> None:
    for path in run_dir.glob("store.sqlite*"):
        path.unlink()
    create_database(run_dir / "store.sqlite", SCHEMA, SCHEMA_VERSION)


def an_unknown_checkpoint(run_dir: Path) -> None:
    shutil.copytree(run_dir / NEWEST, run_dir / "checkpoints" / "step-000099")


def another_file(run_dir: Path) -> None:
    (run_dir / NEWEST / "training_args.bin").write_bytes(b"not ours")


def schema(statements: str) -> Damage:
    """Change what the store is made of."""

    def damage(run_dir: Path) -> None:
        with closing(sqlite3.connect(run_dir / "store.sqlite", isolation_level=None)) as db:
            db.executescript(statements)

    return damage


def in_place(name: str, make: Callable[[Path], object]) -> Damage:
    """Something else is where a file was."""

    def damage(run_dir: Path) -> None:
        (run_dir / name).unlink()
        make(run_dir / name)

    return damage


def signed(change: Callable[[dict[str, Any]], object]) -> Damage:
    """Change the manifest of the newest checkpoint, and its own checksum with it."""

    def damage(run_dir: Path) -> None:
        path = run_dir / NEWEST / "checkpoint.json"
        content = json.loads(path.read_text())
        change(content)
        content.pop("sha256", None)
        path.write_text(json.dumps(content | {"sha256": _own_sum(content)}))

    return damage


def an_older_configuration(run_dir: Path) -> None:
    """That of the start before, which was in the ledger too."""
    with begin_store(run_dir, TASKS, "{}", resume=True) as store:
        before = (run_dir / "config.json").read_text()
        write_noted(store, run_dir / "config.json", before.replace('"seed": 0', '"seed": 1'))
    (run_dir / "config.json").write_text(before)


DEEP = b"[" * 100_000
