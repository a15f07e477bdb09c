"""The audit under test: a real run is damaged in one way after another, and the audit finds each."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentrl.audit import audit
from agentrl.errors import StoreError
from agentrl.rollout.database import create_database
from agentrl.rollout.schema import SCHEMA, SCHEMA_VERSION
from agentrl.rollout.store import KeptCall
from agentrl.run_store import begin_store, write_noted
from tests.chains import commit_whole
from tests.power_cut_program import TASKS, life
from tests.rollout.test_store import kept_choice, outcome

Damage = Callable[[Path], None]
NEWEST = "checkpoints/step-000010"
BEST = "checkpoints/step-000002"
CHECKPOINT_FILES = [
    f"{directory}/{name}"
    for directory in (NEWEST, BEST)
    for name in ("checkpoint.json", "model.safetensors", "config.json", "optimizer/state.safetensors")
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One run at several moments: killed, killed again after it went on, and finished with a group that is still open."""
    folder = tmp_path_factory.mktemp("audit")
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

    anyio.run(lambda: life(run_dir, folder / "model", said, resume=False, checkpoints=3))
    moment("killed")
    anyio.run(lambda: life(run_dir, folder / "model", said, resume=True, checkpoints=2))
    moment("killed twice")
    with begin_store(run_dir, TASKS, "{}", resume=True) as store:
        write_noted(store, run_dir / "eval_before.json", '{"mean_reward": 0.5}\n')
        group = store.next_group_id()
        store.open_group(group, group // 7, group % 7)
        store.add(group, 0, 0, outcome(1.0))
        store.keep_calls(
            [KeptCall(group, 1, kept_choice([5, ids], "stop", name)) for ids, name in enumerate(("a", "b"))]
        )
        moment("going on")  # the log is not empty
        write_noted(store, run_dir / "summary.json", '{"steps": 10}\n')
    moment("finished")
    return found


@pytest.mark.parametrize("moment", ["killed", "killed twice", "going on", "finished"])
def test_a_run_that_nobody_damaged_is_clean(runs: dict[str, Path], moment: str) -> None:
    found = audit(runs[moment])
    assert found.violations == []
    assert found.batches == found.last_checkpoint == (6 if moment == "killed" else 10)


def test_a_run_is_clean_while_it_goes_on(runs: dict[str, Path], tmp_path: Path) -> None:
    """Between any two transactions of it, with the store open."""
    run_dir = shutil.copytree(runs["finished"], tmp_path / "run")
    with begin_store(run_dir, TASKS, "{}", resume=True) as store:
        assert audit(run_dir).violations == []
        store.keep_calls([KeptCall(store.next_group_id() - 1, 1, kept_choice([7], "stop", "c"))])
        assert audit(run_dir).violations == []
        store.begin_checkpoint(run_dir / "checkpoints" / "step-000012")
        shutil.copytree(run_dir / NEWEST, run_dir / "checkpoints" / "step-000012")
        assert audit(run_dir).violations == []


def sql(statements: str) -> Damage:
    """Change the tables, whatever their constraints say."""

    def damage(run_dir: Path) -> None:
        with closing(sqlite3.connect(run_dir / "store.sqlite", isolation_level=None)) as db:
            db.execute("PRAGMA ignore_check_constraints = ON")
            db.executescript(f"DROP INDEX finished_once; BEGIN; {statements}; COMMIT;")
            assert db.total_changes > 0, "the damage damages nothing"

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


FILES = ["config.json", "metrics.jsonl", "summary.json", "eval_before.json", *CHECKPOINT_FILES]
GROUP = "(SELECT MIN(id) FROM groups WHERE step = 1)"
OTHER = "(SELECT MAX(id) FROM groups WHERE step = 5)"
REJECTED = "(SELECT MIN(id) FROM groups WHERE state = 'rejected')"
OPEN = "(SELECT id FROM groups WHERE state = 'open')"
COLUMNS = "life, group_id, sample, seed, status, reward, credited, metrics, error, record, tokens, interrupted_tokens,"
COLUMNS += "replayed_tokens, started_at, duration_s"
EPISODE = {
    "life": "2 - life + 1",
    "group_id": "group_id + 1",
    "sample": "1 - sample",
    "seed": "seed + 1",
    "reward": "reward + 0.25",
    "credited": "1 - credited",
    "metrics": "'{}'",
    "error": "'another'",
    "tokens": "tokens + 1",
    "interrupted_tokens": "1",
    "replayed_tokens": "1",
    "started_at": "started_at + 1",
    "duration_s": "duration_s + 1",
}
CHECKPOINT = {
    "step": "step + 1",
    "life": "1",
    "path": f"'{BEST}'",
    "score": "COALESCE(score, 0) + 1",
    "score_groups": "score_groups + 1",
    "made_at": "made_at + 1",
    "kept": "0",
    "chain": "'0'",
    "damaged": "'no'",
}
BATCH = {
    "life": "9",
    "groups": "replace(groups, '2]', '1]')",
    "minibatches": "'[]'",
    "optimizer_steps": "optimizer_steps + 1",
    "digest": "'0'",
    "chain": "'0'",
}
DAMAGES: dict[str, Damage] = {
    "a group that was trained on is gone": sql(f"DELETE FROM groups WHERE id = {GROUP}"),
    "a group that was dropped is gone": sql(f"DELETE FROM groups WHERE id = {REJECTED}"),
    "the newest group is gone": sql(f"DELETE FROM calls; DELETE FROM groups WHERE id = {OPEN}"),
    "a group that nobody handed out": sql(
        "INSERT INTO groups SELECT MAX(id) + 1, 9, 0, 'open', NULL, NULL, 0 FROM groups"
    ),
    "a group of another epoch": sql(f"UPDATE groups SET epoch = epoch + 1 WHERE id = {OTHER}"),
    "a group of another task": sql(f"UPDATE groups SET task = task + 1 WHERE id = {OTHER}"),
    "a group of another version": sql(f"UPDATE groups SET version = version + 1 WHERE id = {OTHER}"),
    "two groups with each other's tasks": swapped("groups", "id", "task", GROUP, OTHER),
    "a group that is dropped after training": sql(f"UPDATE groups SET state = 'rejected' WHERE id = {GROUP}"),
    "a dropped group that waits again": sql(f"UPDATE groups SET state = 'ready', reason = NULL WHERE id = {REJECTED}"),
    "an open group that is ready": sql(f"DELETE FROM calls; UPDATE groups SET state = 'ready' WHERE id = {OPEN}"),
    "a reason that is another": sql(f"UPDATE groups SET reason = 'all rewards are 2' WHERE id = {REJECTED}"),
    "a reason that is gone": sql(f"UPDATE groups SET reason = NULL WHERE id = {REJECTED}"),
    "a group in another batch": sql(f"UPDATE groups SET step = 5 WHERE id = {GROUP}"),
    "a group that would be trained on again": sql(f"UPDATE groups SET step = NULL WHERE id = {GROUP}"),
    "a group that nobody trained on": sql("UPDATE groups SET step = 3 WHERE state = 'ready' AND step IS NULL"),
    "two groups in each other's batches": swapped("groups", "id", "step", GROUP, OTHER),
    "two batches in each other's place": sql(
        "UPDATE groups SET step = -1 WHERE step = 1; UPDATE groups SET step = 2 WHERE step = 1;"
        "UPDATE groups SET step = 1 WHERE step = 2; UPDATE groups SET step = 2 WHERE step = -1"
    ),
    "an episode is gone": sql("DELETE FROM episodes WHERE id = 3"),
    "the newest episode is gone": sql("DELETE FROM episodes WHERE id = (SELECT MAX(id) FROM episodes)"),
    "a failed attempt is gone": sql("DELETE FROM episodes WHERE status = 'failed'"),
    "an episode is there twice": sql(f"INSERT INTO episodes ({COLUMNS}) SELECT {COLUMNS} FROM episodes WHERE id = 1"),
    "an episode that failed after all": sql("UPDATE episodes SET status = 'failed', error = 'no' WHERE id = 4"),
    "an episode that finished after all": sql("UPDATE episodes SET status = 'finished' WHERE status = 'failed'"),
    "two episodes with each other's records": swapped("episodes", "id", "record", "1", "2"),
    "two episodes with each other's rewards": swapped("episodes", "id", "reward", "1", "2"),
    "two episodes in each other's place": sql(
        "UPDATE episodes SET id = -1 WHERE id = 1; UPDATE episodes SET id = 1 WHERE id = 2;"
        "UPDATE episodes SET id = 2 WHERE id = -1"
    ),
    "a record that is cut off": sql("UPDATE episodes SET record = substr(record, 1, 40) WHERE id = 6"),
    "a record that is empty": sql("UPDATE episodes SET record = x'' WHERE id = 6"),
    "a record with another byte": sql("UPDATE episodes SET record = CAST(record || x'00' AS BLOB) WHERE id = 6"),
    "a call of an episode that ended": sql(
        "INSERT INTO calls SELECT group_id, 0, request, completion_id, choice, content, digest FROM calls LIMIT 1"
    ),
    "a call of a group that is not there": sql("UPDATE calls SET group_id = 999"),
    "a call with other content": sql("UPDATE calls SET content = x'00' WHERE completion_id = 'a'"),
    "two calls with each other's content": swapped("calls", "completion_id", "content", "'a'", "'b'"),
    "a call of another request": sql("UPDATE calls SET request = 'another'"),
    "a call with another choice": sql("UPDATE calls SET choice = 1"),
    "a batch is gone": sql("DELETE FROM batches WHERE step = 3"),
    "the newest batch is gone": sql("DELETE FROM batches WHERE step = 10"),
    "a batch that nobody trained on": sql(
        "INSERT INTO batches SELECT 11, 10, life, groups, minibatches, optimizer_steps, digest, chain FROM batches WHERE step = 10"
    ),
    "a batch in a later checkpoint": sql("UPDATE batches SET checkpoint = 10 WHERE step = 3"),
    "a batch in no checkpoint": sql("UPDATE batches SET checkpoint = 3 WHERE step = 3"),
    "a batch of another step": sql("UPDATE batches SET step = 12 WHERE step = 10"),
    "the newest checkpoint is forgotten": sql("DELETE FROM checkpoints WHERE step = 10"),
    "an old checkpoint is forgotten": sql("DELETE FROM checkpoints WHERE step = 4"),
    "a deleted checkpoint that is kept": sql("UPDATE checkpoints SET kept = 1 WHERE step = 4"),
    "a life that never was": sql("INSERT INTO lives VALUES (9, 0, '{}')"),
    "a life is gone": sql("DELETE FROM lives WHERE life = 1"),
    "two lives in each other's place": swapped("lives", "life", "started_at", "1", "2"),
    "tasks that are others": sql("UPDATE facts SET value = '8 tasks 9999' WHERE name = 'tasks'"),
    "tasks that are gone": sql("DELETE FROM facts WHERE name = 'tasks'"),
    "a ledger without an entry": sql("DELETE FROM ledger WHERE id = 40"),
    "a ledger without its last entry": sql("DELETE FROM ledger WHERE id = (SELECT MAX(id) FROM ledger)"),
    "a ledger without its first entry": sql("DELETE FROM ledger WHERE id = 1"),
    "an empty ledger": sql("DELETE FROM ledger"),
    "two entries in each other's place": swapped("ledger", "id", "entry", "20", "21"),
    "an entry that is another": sql(
        "UPDATE ledger SET entry = replace(entry, 'ready', 'rejected') WHERE kind = 'close'"
    ),
    "an entry that cannot be read": sql("UPDATE ledger SET entry = '{' WHERE id = 30"),
    "an entry of another kind": sql("UPDATE ledger SET kind = 'open' WHERE kind = 'close'"),
    "an entry with another digest": sql("UPDATE ledger SET digest = x'00' WHERE id = 30"),
    "a bit of a record, in the file": a_record_in_the_file,
    "a store that is cut off": edited("store.sqlite", lambda content: content[: len(content) // 2]),
    "a store whose first page is lost": edited("store.sqlite", lambda content: bytes(4096) + content[4096:]),
    "a store whose last pages are lost": edited("store.sqlite", lambda content: content[:-8192] + bytes(8192)),
    "a store that holds nothing": edited("store.sqlite", lambda _: b""),
    "a store that is something else": edited("store.sqlite", lambda _: b"something else, and long enough " * 200),
    "a store that is empty": an_empty_store,
    "a store that is gone": removed("store.sqlite"),
    "config.json is gone": removed("config.json"),
    "config.json says something else": edited("config.json", lambda content: content.replace(b'"lr": ', b'"lr": 1')),
    "metrics.jsonl is gone": removed("metrics.jsonl"),
    "a step without its line": lines(lambda all_: all_[:3] + all_[4:]),
    "the last step without its line": lines(lambda all_: all_[:-1]),
    "a line that is there twice": lines(lambda all_: [*all_[:3], all_[2], *all_[3:]]),
    "the last line is there twice": lines(lambda all_: [*all_, all_[-1]]),
    "two lines in each other's place": lines(lambda all_: [all_[1], all_[0], *all_[2:]]),
    "a line of a step that has no batch": lines(lambda all_: [*all_, b'{"step": 99}\n']),
    "a line without a step": lines(lambda all_: [*all_, b'{"loss": 1}\n']),
    "a figure that is another": lines(lambda all_: [all_[0].replace(b"0", b"1"), *all_[1:]]),
    "summary.json says something else": edited("summary.json", lambda _: b'{"steps": 12}\n'),
    "the newest checkpoint is gone": removed(NEWEST),
    "all checkpoints are gone": removed("checkpoints"),
    "two checkpoints in each other's place": exchanged(NEWEST, BEST),
    "a checkpoint that the store does not know": an_unknown_checkpoint,
    "a checkpoint without its numbers": removed(f"{NEWEST}/checkpoint.json"),
    **{
        f"an episode with another {name}": sql(f"UPDATE episodes SET {name} = {to} WHERE id = 5")
        for name, to in EPISODE.items()
    },
    **{
        f"a checkpoint with another {name}": sql(f"UPDATE checkpoints SET {name} = {to} WHERE step = 10")
        for name, to in CHECKPOINT.items()
    },
    **{
        f"a batch with another {name}": sql(f"UPDATE batches SET {name} = {to} WHERE step = 3")
        for name, to in BATCH.items()
    },
    "a step that another minibatch repeats": sql(
        "UPDATE batches SET minibatches = json_insert(minibatches, '$[#]', json_extract(minibatches, '$[0]')) WHERE step = 3"
    ),
    "two steps with each other's weights": swapped("batches", "step", "digest", "3", "4"),
    "the model that the run began with is another": sql("UPDATE facts SET value = '0' WHERE name = 'chain'"),
    "the model that the run began with is unknown": sql("DELETE FROM facts WHERE name = 'chain'"),
    "a checkpoint without its optimizer": removed(f"{NEWEST}/optimizer"),
    "a checkpoint without its weights": removed(f"{BEST}/model.safetensors"),
    "a checkpoint with a file of somebody else's": another_file,
    "two checkpoints with each other's weights": exchanged(f"{NEWEST}/model.safetensors", f"{BEST}/model.safetensors"),
    "two checkpoints with each other's optimizers": exchanged(f"{NEWEST}/optimizer", f"{BEST}/optimizer"),
    **{f"{name}, one bit of it": edited(name, flipped) for name in FILES},
    **{f"{name} that is cut off": edited(name, lambda content: content[: len(content) // 2]) for name in FILES},
    **{f"{name} that is empty": edited(name, lambda _: b"") for name in FILES},
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found(runs: dict[str, Path], tmp_path: Path, name: str) -> None:
    run_dir = shutil.copytree(runs["finished"], tmp_path / "run")
    DAMAGES[name](run_dir)
    assert verdict(run_dir) != []


def verdict(run_dir: Path) -> list[str]:
    """What the audit says is wrong, also where it can say no more than that the store cannot be read. Anything else it raises
    is a failure."""
    try:
        found = audit(run_dir)
    except StoreError as error:
        return [str(error)]
    json.dumps(found.violations)
    return found.violations


def test_an_older_copy_of_the_store_is_found(runs: dict[str, Path], tmp_path: Path) -> None:
    run_dir = shutil.copytree(runs["killed twice"], tmp_path / "run")
    shutil.copy(runs["killed"] / "store.sqlite", run_dir / "store.sqlite")
    assert any("it is older than its checkpoints" in text for text in verdict(run_dir))
    with pytest.raises(StoreError, match=r"it is older than its checkpoints.*Nothing was deleted"):
        begin_store(run_dir, TASKS, "{}", resume=True)
    assert sorted(path.name for path in (run_dir / "checkpoints").iterdir()) == [
        "step-000002",
        "step-000010",
        "step-000012",
    ]


def test_a_log_that_is_lost_is_found(runs: dict[str, Path], tmp_path: Path) -> None:
    """A reader keeps the store from moving its log into the database file; then the log is lost."""
    run_dir = shutil.copytree(runs["finished"], tmp_path / "run")
    directory = run_dir / "checkpoints" / "step-000011"
    with closing(sqlite3.connect(run_dir / "store.sqlite", isolation_level=None)) as reader:
        with begin_store(run_dir, TASKS, "{}", resume=True) as store:
            reader.execute("BEGIN")
            reader.execute("SELECT COUNT(*) FROM groups").fetchone()
            ready = [group.id for group in store.unused_groups() if group.state == "ready"]
            store.begin_checkpoint(directory)
            commit_whole(store, 11, directory, [(11, ready[:1])])
            for name in ("store.sqlite", "metrics.jsonl"):
                shutil.copy(run_dir / name, tmp_path / name)
    shutil.copy(tmp_path / "store.sqlite", run_dir / "store.sqlite")
    assert any("it is older than its checkpoints" in text for text in verdict(run_dir))
    with pytest.raises(StoreError, match=r"it is older than its checkpoints.*Nothing was deleted"):
        begin_store(run_dir, TASKS, "{}", resume=True)
    assert directory.is_dir()
