"""The audit under test: a real run is damaged in one way after another, and the audit finds each."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentrl.errors import StoreError
from agentrl.rollout.packed_record import StoredCall
from agentrl.rollout.stored_episodes import LoggedCall
from agentrl.run.run_store import begin_store
from tests.chains import commit_whole
from tests.damaged_run import (
    BEST,
    CHECKPOINT_FILES,
    DEEP,
    NEWEST,
    Damage,
    a_record_in_the_file,
    an_empty_store,
    an_older_configuration,
    an_unknown_checkpoint,
    another_file,
    edited,
    exchanged,
    flipped,
    in_place,
    lines,
    make_runs,
    removed,
    schema,
    signed,
    sql,
    swapped,
    verdict,
)
from tests.power_cut_program import TASKS
from tests.rollout.test_store import kept_choice
from tests.whole_audit import audit


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_runs(tmp_path_factory.mktemp("audit"))


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
        store.log_calls([LoggedCall(store.next_group_id() - 1, 1, StoredCall.of(kept_choice([7], "stop", "c")))])
        assert audit(run_dir).violations == []
        store.begin_checkpoint(run_dir / "checkpoints" / "step-000012")
        shutil.copytree(run_dir / NEWEST, run_dir / "checkpoints" / "step-000012")
        assert audit(run_dir).violations == []


FILES = ["config.json", "metrics.jsonl", "summary.json", "eval_before.json", *CHECKPOINT_FILES]
GROUP = "(SELECT MIN(id) FROM groups WHERE step = 1)"
OTHER = "(SELECT MAX(id) FROM groups WHERE step = 5)"
REJECTED = "(SELECT MIN(id) FROM groups WHERE state = 'rejected')"
OPEN = "(SELECT id FROM groups WHERE state = 'open')"
NO_LOG = "DELETE FROM calls WHERE episode IS NULL"
CALL = "group_id, episode_index, episode, turn, request, completion_id, choice_index, tool_call_ids, output_ids, logprobs, versions,"
CALL += "finish, cached_tokens, top_logprobs, digest"
LOGGED = "(SELECT MIN(rowid) FROM calls WHERE episode IS NULL)"
TURN = "(SELECT rowid FROM calls WHERE episode = 3)"
COLUMNS = "restart, group_id, episode_index, seed, status, reward, has_turn_rewards, metrics, error, record, prompt_ids, tokens,"
COLUMNS += "interrupted_tokens, replayed_tokens, started_at, duration_s"
EPISODE = {
    "restart": "2 - restart + 1",
    "group_id": "group_id + 1",
    "episode_index": "1 - episode_index",
    "seed": "seed + 1",
    "reward": "reward + 0.25",
    "has_turn_rewards": "1 - has_turn_rewards",
    "metrics": "'{}'",
    "error": "'another'",
    "prompt_ids": "CAST(prompt_ids || x'00' AS BLOB)",
    "tokens": "tokens + 1",
    "interrupted_tokens": "1",
    "replayed_tokens": "1",
    "started_at": "started_at + 1",
    "duration_s": "duration_s + 1",
}
CALL_CONTENT = {
    "group_id": "group_id + 1",
    "episode_index": "episode_index + 1",
    "episode": "999",
    "turn": "7",
    "request": "'another'",
    "completion_id": "'another'",
    "choice_index": "1",
    "tool_call_ids": "'[1]'",
    "output_ids": "CAST(output_ids || x'00' AS BLOB)",
    "logprobs": "x'00'",
    "versions": "x''",
    "finish": "'abort'",
    "cached_tokens": "7",
    "top_logprobs": "x'5b5d'",
    "digest": "x'00'",
}
CHECKPOINT = {
    "step": "step + 1",
    "restart": "1",
    "path": f"'{BEST}'",
    "reward_mean": "COALESCE(reward_mean, 0) + 1",
    "reward_groups": "reward_groups + 1",
    "made_at": "made_at + 1",
    "kept": "0",
    "chain": "'0'",
    "damaged": "'no'",
}
BATCH = {
    "restart": "9",
    "groups": "replace(groups, '2]', '1]')",
    "minibatches": "'[]'",
    "optimizer_steps": "optimizer_steps + 1",
    "digest": "'0'",
    "chain": "'0'",
}
DAMAGES: dict[str, Damage] = {
    "a group that was trained on is gone": sql(f"DELETE FROM groups WHERE id = {GROUP}"),
    "a group that was dropped is gone": sql(f"DELETE FROM groups WHERE id = {REJECTED}"),
    "the newest group is gone": sql(f"{NO_LOG}; DELETE FROM groups WHERE id = {OPEN}"),
    "a group that nobody handed out": sql(
        "INSERT INTO groups SELECT MAX(id) + 1, 9, 0, 'open', NULL, NULL, 0, '' FROM groups"
    ),
    "a group of another epoch": sql(f"UPDATE groups SET epoch = epoch + 1 WHERE id = {OTHER}"),
    "a group of another task": sql(f"UPDATE groups SET task = task + 1 WHERE id = {OTHER}"),
    "a group of another version": sql(f"UPDATE groups SET version = version + 1 WHERE id = {OTHER}"),
    "two groups with each other's tasks": swapped("groups", "id", "task", GROUP, OTHER),
    "a group that is dropped after training": sql(f"UPDATE groups SET state = 'rejected' WHERE id = {GROUP}"),
    "a dropped group that waits again": sql(f"UPDATE groups SET state = 'ready', reason = NULL WHERE id = {REJECTED}"),
    "an open group that is ready": sql(f"{NO_LOG}; UPDATE groups SET state = 'ready' WHERE id = {OPEN}"),
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
    "a call of an episode that ended": sql(f"UPDATE calls SET episode_index = 0 WHERE rowid = {LOGGED}"),
    "a call of a group that is not there": sql("UPDATE calls SET group_id = 999"),
    "two calls with each other's content": swapped("calls", "completion_id", "output_ids", "'a'", "'b'"),
    **{
        f"a {kind} with another {name}": sql(f"UPDATE calls SET {name} = {to} WHERE rowid = {row}")
        for kind, row in (("logged call", LOGGED), ("turn", TURN))
        for name, to in CALL_CONTENT.items()
    },
    "a turn is gone": sql(f"DELETE FROM calls WHERE rowid = {TURN}"),
    "all turns are gone": sql("DELETE FROM calls WHERE episode IS NOT NULL"),
    "a turn is a logged call again": sql(f"UPDATE calls SET episode = NULL, turn = NULL WHERE rowid = {TURN}"),
    "a logged call is a turn": sql(f"UPDATE calls SET episode = 3, turn = 1 WHERE rowid = {LOGGED}"),
    "a turn of an episode that is not there": sql(f"UPDATE calls SET episode = 999 WHERE rowid = {TURN}"),
    "two turns in each other's episodes": sql(
        "UPDATE calls SET episode = -episode WHERE episode IN (3, 5);"
        "UPDATE calls SET episode = 5 WHERE episode = -3; UPDATE calls SET episode = 3 WHERE episode = -5"
    ),
    "two turns with each other's logprobs": swapped("calls", "rowid", "logprobs", LOGGED, TURN),
    "a turn is there twice": sql(
        f"INSERT INTO calls SELECT {CALL.replace('turn', 'turn + 1')} FROM calls WHERE rowid = {TURN}"
    ),
    "a batch is gone": sql("DELETE FROM batches WHERE step = 3"),
    "the newest batch is gone": sql("DELETE FROM batches WHERE step = 10"),
    "a batch that nobody trained on": sql(
        "INSERT INTO batches SELECT 11, 10, restart, groups, minibatches, optimizer_steps, digest, chain FROM batches WHERE step = 10"
    ),
    "a batch in a later checkpoint": sql("UPDATE batches SET checkpoint = 10 WHERE step = 3"),
    "a batch in no checkpoint": sql("UPDATE batches SET checkpoint = 3 WHERE step = 3"),
    "a batch of another step": sql("UPDATE batches SET step = 12 WHERE step = 10"),
    "the newest checkpoint is forgotten": sql("DELETE FROM checkpoints WHERE step = 10"),
    "an old checkpoint is forgotten": sql("DELETE FROM checkpoints WHERE step = 4"),
    "a deleted checkpoint that is kept": sql("UPDATE checkpoints SET kept = 1 WHERE step = 4"),
    "a restart that never was": sql("INSERT INTO restarts VALUES (9, 0, '{}')"),
    "a restart is gone": sql("DELETE FROM restarts WHERE restart = 1"),
    "two restarts in each other's place": swapped("restarts", "restart", "started_at", "1", "2"),
    "tasks that are others": sql("UPDATE run_values SET value = '8 tasks 9999' WHERE name = 'tasks'"),
    "tasks that are gone": sql("DELETE FROM run_values WHERE name = 'tasks'"),
    "a ledger without an entry": sql("DELETE FROM ledger WHERE id = 40"),
    "a ledger without its last entries": sql("DELETE FROM ledger WHERE id > (SELECT MAX(id) - 2 FROM ledger)"),
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
    "a store whose last pages are lost": edited("store.sqlite", lambda content: content[:-32768] + bytes(32768)),
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
    "the model that the run began with is another": sql("UPDATE run_values SET value = '0' WHERE name = 'chain'"),
    "the model that the run began with is unknown": sql("DELETE FROM run_values WHERE name = 'chain'"),
    "a checkpoint without its optimizer": removed(f"{NEWEST}/optimizer"),
    "a checkpoint without its weights": removed(f"{BEST}/model.safetensors"),
    "a checkpoint with a file of somebody else's": another_file,
    "two checkpoints with each other's weights": exchanged(f"{NEWEST}/model.safetensors", f"{BEST}/model.safetensors"),
    "two checkpoints with each other's optimizers": exchanged(f"{NEWEST}/optimizer", f"{BEST}/optimizer"),
    "all calls are gone": sql("DELETE FROM calls"),
    "a call is gone": sql("DELETE FROM calls WHERE completion_id = 'a'"),
    "a call that nobody kept": sql(
        f"INSERT INTO calls SELECT {CALL.replace('completion_id', repr('c'))} FROM calls WHERE rowid = {LOGGED}"
    ),
    "the figure of the calls is gone": sql("DELETE FROM run_values WHERE name = 'calls'"),
    "the figure of the calls is no number": sql("UPDATE run_values SET value = 'x' WHERE name = 'calls'"),
    "a run value that nobody noted": sql("INSERT INTO run_values VALUES ('another', 'x')"),
    "a number of tasks that is huge": sql(
        f"UPDATE run_values SET value = '{'9' * 5000} tasks 0123' WHERE name = 'tasks'"
    ),
    "the newest checkpoint is one that was only begun": sql(f"INSERT INTO begun_checkpoints VALUES ('{NEWEST}')"),
    "a checkpoint somewhere else": sql("UPDATE checkpoints SET path = '../../../../etc' WHERE step = 10"),
    "a checkpoint whose name is none": sql("UPDATE checkpoints SET path = CAST(x'610062' AS TEXT) WHERE step = 10"),
    "an index that is gone": schema("DROP INDEX finished_once"),
    "an index that is another": schema(
        "DROP INDEX finished_once; CREATE INDEX finished_once ON episodes (group_id, episode_index)"
    ),
    "an index that is somebody else's": schema("CREATE INDEX another ON episodes (reward)"),
    "a trigger that is somebody else's": schema(
        "CREATE TRIGGER another AFTER INSERT ON episodes BEGIN UPDATE episodes SET reward = 0 WHERE id = NEW.id; END"
    ),
    "a view that is somebody else's": schema("CREATE VIEW another AS SELECT * FROM episodes"),
    "a table that is somebody else's": schema("CREATE TABLE another (id)"),
    "a table that is gone": schema("DROP TABLE calls"),
    "a table with another column": schema("ALTER TABLE groups ADD COLUMN another TEXT"),
    "metrics.jsonl with something behind it": edited("metrics.jsonl", lambda content: content + b"garbage\n"),
    "metrics.jsonl with a torn line behind it": edited("metrics.jsonl", lambda content: content + b'{"step": 1'),
    "metrics.jsonl with a step that was never taken": edited(
        "metrics.jsonl", lambda content: content + b'{"step": 13, "reward_mean": 9}\n'
    ),
    "an older configuration": an_older_configuration,
    **{f"{name} is taken away": removed(name) for name in ("summary.json", "eval_before.json")},
    **{f"{name}, one bit of it": edited(name, flipped) for name in FILES},
}
FORMS: dict[str, Damage] = {
    **{
        f"{name} of {kind}": edited(name, lambda _, content=content: content)
        for name in ("config.json", "metrics.jsonl", "summary.json", f"{NEWEST}/checkpoint.json")
        for kind, content in {
            "100,000 levels": DEEP,
            "900 levels": b"[" * 900 + b"]" * 900 + b"\n",
            "5,000 digits": b"9" * 5000 + b"\n",
            "no object": b"3\n",
            "an empty object": b"{}\n",
            "bytes that are no text": b'{"step": "\xff"}\n',
            "half a character": b'{"step": "\\ud800"}\n',
        }.items()
    },
    **{f"a folder is where {name} was": in_place(name, Path.mkdir) for name in FILES},
    **{f"a pipe is where {name} was": in_place(name, os.mkfifo) for name in FILES},
    **{
        f"a manifest whose {name} is {what}": signed(lambda content, name=name, what=what: content.update({name: what}))
        for name in ("step", "optimizer_steps", "digest", "chain", "since", "history", "files")
        for what in (None, "x", -1, 1.5, [[1]], {"x": 1}, {"/dev/zero": {"size": 0, "sha256": ""}})
    },
    **{
        f"a step in a manifest whose {name} is {what}": signed(
            lambda content, name=name, what=what: content["history"][-1].update({name: what})
        )
        for name in ("step", "groups", "minibatches", "optimizer_steps", "digest", "chain")
        for what in (None, "x", [[1]], [[0, -1]], [[[0, "0-9999999999"]]], [[[0, "x"]]])
    },
    **{f"{name} that is cut off": edited(name, lambda content: content[: len(content) // 2]) for name in FILES},
    **{f"{name} that is empty": edited(name, lambda _: b"") for name in FILES},
}
"""Evidence of any form where evidence belongs."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [*DAMAGES, *(pytest.param(name, marks=pytest.mark.soak) for name in FORMS)])
def test_damage_is_found(runs: dict[str, Path], tmp_path: Path, name: str) -> None:
    run_dir = shutil.copytree(runs["finished"], tmp_path / "run")
    (DAMAGES | FORMS)[name](run_dir)
    found = verdict(run_dir)
    if name not in ("an index that is gone", "an index that is another"):  # which `sql` may leave behind, too
        found = [text for text in found if "finished_once" not in text]
    assert found != []


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
            ready = [group.id for group in store.pending_groups() if group.state == "ready"]
            store.begin_checkpoint(directory)
            commit_whole(store, 11, directory, [(11, ready[:1])])
            for name in ("store.sqlite", "metrics.jsonl"):
                shutil.copy(run_dir / name, tmp_path / name)
    shutil.copy(tmp_path / "store.sqlite", run_dir / "store.sqlite")
    assert any("it is older than its checkpoints" in text for text in verdict(run_dir))
    with pytest.raises(StoreError, match=r"it is older than its checkpoints.*Nothing was deleted"):
        begin_store(run_dir, TASKS, "{}", resume=True)
    assert directory.is_dir()
