"""The store: what is committed survives, and consumption is one with the checkpoint."""

from __future__ import annotations

import math
import sqlite3
import subprocess
import sys
from array import array
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import DiskError, StoreError
from agentrl.record.end_reason import EndReason
from agentrl.record.recorded_choice import RecordedChoice
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.record.trajectory import TokenRecord
from agentrl.store.batches import TrainedStep, batches
from agentrl.store.changes import CloseGroup, InsertCall, InsertEpisode, OpenGroup
from agentrl.store.episodes import GroupProgress, count_totals, resumed_groups
from agentrl.store.outcome import Outcome
from agentrl.store.rows import choice_of
from agentrl.store.store import Store
from agentrl.store.token_figures import TokenFigures, token_figures
from tests.checkpoints import commit, trained
from tests.components import missing


def outcome(reward: float, *, interrupted: bool = False) -> Outcome:
    record = TokenRecord()
    spans = [VersionSpan(0, 0, 1), VersionSpan(1, 1, 2)] if interrupted else [VersionSpan(0, 0, 2)]
    reply = Generation(output_ids=[5, 6], logprobs=[-0.1, -0.25], versions=spans, finish="stop")
    record.add("call", None, [1, 2, 3], reply, 1.0).tools = interrupted
    return Outcome(reason=EndReason.FINISHED, reward=reward, metrics={"steps": 2.0}, record=record)


def fill(store: Store, groups: int = 3) -> None:
    store.begin_restart()
    for group in range(groups):
        store.write([OpenGroup(group, 0, group)])
        for episode_index in range(2):
            store.write([InsertEpisode(group, episode_index, 0, outcome(float(episode_index), interrupted=group == 0))])
        store.write([CloseGroup(group)])


def test_episodes_come_back_as_they_went_in(tmp_path: Path) -> None:
    with Store(tmp_path / "store.sqlite") as store:
        fill(store)
        episodes = store.episodes([1])
        assert [episode.reward for episode in episodes] == [0.0, 1.0]
        assert episodes[0].record.to_json() == outcome(0.0).record.to_json()
        totals = store.read(count_totals)
        assert (totals.finished, totals.failed, totals.tokens, totals.interrupted_tokens) == (6, 0, 12, 4)


def test_a_batch_is_unused_until_a_checkpoint_contains_it(tmp_path: Path) -> None:
    with Store(tmp_path / "store.sqlite") as store:
        fill(store)
        assert [group.id for group in store.read(resumed_groups)] == [0, 1, 2]
        commit(store, 2, tmp_path / "step-2", [(1, [0]), (2, [2])])
        assert [(group.id, group.state) for group in store.read(resumed_groups)] == [(1, "ready"), (2, "taken")]
        assert store.kept_checkpoints()[-1] == (2, tmp_path / "step-2")


def test_a_rejected_group_is_never_offered_again_and_an_open_one_goes_on(tmp_path: Path) -> None:
    with Store(tmp_path / "store.sqlite") as store:
        fill(store)
        store.write([CloseGroup(0, rejected="all rewards are 1")])
        store.write([OpenGroup(7, 1, 0)])
        store.write([InsertEpisode(7, 1, 0, outcome(1.0))])
        store.write([InsertEpisode(7, 0, 0, replace(outcome(0.0), reason=EndReason.ERROR, error="no"))])
        assert store.read(resumed_groups)[-1] == GroupProgress(7, "open", rewards={1: 1.0}, failures={0: 1})
        assert 0 not in [group.id for group in store.read(resumed_groups)]
        assert store.next_group_id() == 8


def test_old_checkpoints_are_handed_out_for_deletion(tmp_path: Path) -> None:
    with Store(tmp_path / "store.sqlite") as store:
        for step in (1, 2, 3):
            store.write([OpenGroup(step, 0, step)])
            store.write([CloseGroup(step)])
            commit(store, step, tmp_path / str(step), [(step, [step])])
        assert store.forget_checkpoints(keep=1) == [tmp_path / "2", tmp_path / "1"]
        assert store.kept_checkpoints()[-1] == (3, tmp_path / "3")


@pytest.mark.slow
def test_kill_9_loses_no_committed_episode(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from tests.store.test_store import Store, fill\n"
        "fill(Store(Path(sys.argv[1])), groups=5); os.kill(os.getpid(), signal.SIGKILL)"
    )
    path = tmp_path / "store.sqlite"
    process = subprocess.run([sys.executable, "-c", script, str(path)], cwd=Path(__file__).parents[2], timeout=60)
    assert process.returncode == -9
    with Store(path) as store:
        assert store.read(count_totals).finished == 10
        assert store.restart == 1


def test_a_store_of_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreError, match="schema 99"):
        Store(path)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    path.write_text("not a database, but long enough to be read as one " * 10)
    with pytest.raises(StoreError, match="cannot be used as a store"):
        Store(path)


def test_no_group_is_trained_on_twice_and_no_episode_finishes_twice(tmp_path: Path) -> None:
    with Store(tmp_path / "store.sqlite") as store:
        fill(store)
        commit(store, 1, tmp_path / "step-1", [(1, [0])])
        with pytest.raises(StoreError, match="group 0 of step 2 was not waiting"):
            commit(store, 2, tmp_path / "step-2", [(2, [1, 0])])
        assert store.kept_checkpoints()[-1] == (1, tmp_path / "step-1"), "none of it is committed"
        assert [group.id for group in store.read(resumed_groups)] == [1, 2]
        with pytest.raises(sqlite3.IntegrityError):
            store.write([InsertEpisode(1, 0, 0, outcome(1.0))])


def kept_choice(ids: list[int], completion_id: str = "a") -> RecordedChoice:
    said = Generation(
        output_ids=ids,
        logprobs=[-0.5] * len(ids),
        versions=[VersionSpan(0, 0, len(ids))],
        finish="stop",
        top_logprobs=[[(-0.5, token)] for token in ids],
    )
    return RecordedChoice("question", completion_id, 0, ["call_1"], said)


def logged(store: Store, group: int, episode_index: int) -> list[RecordedChoice | None]:
    return list(map(choice_of, store.logged_calls(group, episode_index)))


def test_calls_are_kept_until_their_episode_is(tmp_path: Path) -> None:
    with Store(tmp_path / "store.sqlite") as store:
        fill(store)
        store.write([OpenGroup(9, 0, 9)])
        store.write([InsertCall(9, 0, kept_choice([1])), InsertCall(9, 1, kept_choice([7]))])
        store.write([InsertCall(9, 0, kept_choice([4], "b")), InsertCall(9, 0, kept_choice([1, 2]))])
        assert logged(store, 9, 0) == [kept_choice([4], "b"), kept_choice([1, 2])]
        store.write([InsertEpisode(9, 0, 0, outcome(1.0))])
        assert store.logged_calls(9, 0) == []
        assert logged(store, 9, 1) == [kept_choice([7])]


def rows_of(store: Store) -> list[tuple[Any, ...]]:
    return store._db.execute("SELECT rowid, episode, turn, completion_id FROM calls ORDER BY rowid").fetchall()


def test_calls_of_an_attempt_that_was_cut_off_go_with_their_group(tmp_path: Path) -> None:
    """A run that goes on with fewer retries does not try it again."""
    with Store(tmp_path / "store.sqlite") as store:
        store.begin_restart("tasks", "{}")
        store.write([OpenGroup(0, 0, 0)])
        store.write([InsertCall(0, 0, kept_choice([1])), CloseGroup(0, "too few episodes")])
        assert store.read(lambda db: db.execute("SELECT COUNT(*) FROM calls").fetchone()) == (0,)


def test_the_logged_calls_of_an_episode_become_its_turns_and_are_not_written_again(tmp_path: Path) -> None:
    with Store(tmp_path / "store.sqlite") as store:
        store.begin_restart()
        store.write([OpenGroup(0, 0, 0)])
        asked, other = kept_choice([5, 6], "a"), kept_choice([7], "b")
        second = replace(asked, completion_id="c", generation=replace(asked.generation, top_logprobs=[]))
        store.write([InsertCall(0, 0, choice) for choice in (asked, other, second)])
        store.write([InsertCall(0, 1, other)])
        before = rows_of(store)
        record = TokenRecord()
        for choice in (second, asked):
            turn = record.add(choice.completion_id, None, [1, 2, 3], choice.generation, 1.0)
            turn.request, turn.tool_call_ids = choice.request, choice.tool_call_ids
        ended = replace(outcome(1.0), record=record)
        (number,) = store.write([InsertEpisode(0, 0, 0, ended, {asked.key, second.key})])
        assert rows_of(store) == [
            (before[0][0], number, 1, "a"),  # its top logprobs are gone, which nobody asks for any more
            (before[2][0], number, 0, "c"),
            (before[3][0], None, None, "b"),
        ]
        assert store._db.execute("SELECT COUNT(*) FROM calls WHERE top_logprobs IS NOT NULL").fetchone() == (1,)
        (episode,) = store.episodes([0])
        assert episode.record.to_json() == record.to_json()


def test_a_full_disk_says_so_and_keeps_what_was_committed(tmp_path: Path) -> None:
    with Store(tmp_path / "store.sqlite") as store:
        fill(store)
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages}")

        def fill_up() -> None:
            for group in range(100, 2000):
                store.write([OpenGroup(group, 0, group)])

        with pytest.raises(DiskError, match=r"disk is full.*What was committed is safe.*--resume "):
            fill_up()
        opened = store.next_group_id()
    with Store(tmp_path / "store.sqlite") as store:
        assert store.read(count_totals).finished == 6
        assert store.next_group_id() == opened


def test_a_run_that_comes_back_with_other_tasks_is_refused(tmp_path: Path) -> None:
    with Store(tmp_path / "store.sqlite") as store:
        store.begin_restart("3 tasks")
        store.begin_restart("3 tasks")
        with pytest.raises(StoreError, match=r"started with other tasks \(3 tasks\) than it has now \(4 tasks\)"):
            store.begin_restart("4 tasks")
        assert store.restart == 2


def test_the_best_checkpoint_outlives_newer_ones(tmp_path: Path) -> None:
    with Store(tmp_path / "store.sqlite") as store:
        store.begin_restart()
        for step, reward in ((1, 0.2), (2, 0.9), (3, 0.4), (4, 0.5)):
            store.write([OpenGroup(step, 0, step, version=step)])
            store.write([InsertEpisode(step, 0, 0, outcome(reward))])
            store.write([CloseGroup(step)])
            commit(store, step, tmp_path / str(step), [(step, [step])])
        assert store.forget_checkpoints(keep=1) == [tmp_path / "3", tmp_path / "1"]
        assert store.kept_checkpoints() == [(2, tmp_path / "2"), (4, tmp_path / "4")]


def test_a_checkpoint_is_recorded_once_with_the_steps_since_the_one_before(tmp_path: Path) -> None:
    with Store(tmp_path / "store.sqlite") as store:
        fill(store)
        path, steps = tmp_path / "step-1", [trained(1, [0])]
        for wrong in ([], [trained(2, [0])], [trained(1, [0]), trained(1, [0])]):
            with pytest.raises(StoreError, match="does not go on from step 0, which the store holds"):
                store.commit_checkpoint(path, 1, wrong)
        assert store.read(batches) == []
        for _ in range(2):  # whoever was cancelled while it was committed asks again
            store.commit_checkpoint(path, 1, steps)
        (batch,) = store.read(batches)
        assert batch == steps[0]
        with pytest.raises(StoreError, match="group 0 of step 2 was not waiting to be trained on"):
            store.commit_checkpoint(tmp_path / "step-2", 2, [trained(2, [0])])


def test_a_damaged_checkpoint_is_passed_over_and_can_be_made_again(tmp_path: Path) -> None:
    with Store(tmp_path / "store.sqlite") as store:
        fill(store)
        commit(store, 1, tmp_path / "step-1", [(1, [0])])
        commit(store, 2, tmp_path / "step-2", [(2, [2])])
        store.mark_damaged(2, "a byte has changed")
        assert store.kept_checkpoints()[-1] == (1, tmp_path / "step-1")
        assert [batch.group_ids for batch in store.read(lambda db: batches(db, 1))] == [[2]]
        states = [(group.id, group.state) for group in store.read(resumed_groups)]
        assert states == [(1, "ready"), (2, "taken")], "what it was trained on stays used"
        commit(store, 2, tmp_path / "step-2", [(2, [2])])
        assert store.kept_checkpoints()[-1] == (2, tmp_path / "step-2")
        assert [batch.step for batch in store.read(batches)] == [1, 2]


def test_figures_of_tokens_are_there_with_the_batch_or_not_at_all_and_are_those_of_the_last_training(
    tmp_path: Path,
) -> None:
    def step(number: int, group: int, value: float) -> TrainedStep:
        episode = 2 * group + 1  # `fill` makes two in each group
        column = b"f" + array("f", [value, math.nan]).tobytes()
        return replace(trained(number, [group]), figures={episode: (column, column, column)})

    with Store(tmp_path / "store.sqlite") as store:
        fill(store)

        def found(episode: int) -> TokenFigures | None:
            return store.read(lambda db: token_figures(db, episode, outcome(0.0).record))

        with pytest.raises(StoreError, match="group 0 of step 2 was not waiting"):
            store.commit_checkpoint(tmp_path / "step-2", 2, [step(1, 0, 0.5), step(2, 0, 0.5)])
        assert (store.read(batches), found(1)) == ([], None)
        store.commit_checkpoint(tmp_path / "step-1", 1, [step(1, 0, 0.5)])
        assert found(1) == TokenFigures(*[[[0.5, None]]] * 3)
        store.mark_damaged(1, "a byte has changed")
        store.commit_checkpoint(tmp_path / "step-1", 1, [step(1, 0, 0.25)])
        assert found(1) == TokenFigures(*[[[0.25, None]]] * 3)
        assert found(2) is None


@pytest.mark.parametrize("gone", ["store.sqlite", "store.sqlite-wal"])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_store_that_is_taken_away_is_noticed_where_something_is_to_be_durable(
    gone: str, replaced: bool, tmp_path: Path
) -> None:
    with Store(tmp_path / "store.sqlite") as store:
        store.begin_restart()
        (tmp_path / gone).rename(tmp_path / "elsewhere")
        if replaced:
            (tmp_path / gone).write_bytes((tmp_path / "elsewhere").read_bytes())
        with pytest.raises(
            StoreError, match=r"store.sqlite was taken away or replaced while the run used it.*Put back"
        ):
            store.begin_restart()


def test_a_disk_that_is_full_leaves_a_new_store_whole_or_none(tmp_path: Path) -> None:
    """Whatever fits beside: a part of the log, all of it, a part of the file."""
    path = tmp_path / "store.sqlite"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", tmp_path], capture_output=True).returncode:
        missing("a small disk can be made by root only (mount -t tmpfs)")
    try:
        for room in range(16, 320, 8):
            subprocess.run(["mount", "-o", f"remount,size={room}k", tmp_path], check=True)
            with suppress(DiskError):
                Store(path).close()
            subprocess.run(["mount", "-o", "remount,size=2m", tmp_path], check=True)
            with Store(path) as store:  # there is room again
                assert store.read(lambda db: db.execute("PRAGMA integrity_check").fetchone()) == ("ok",)
            for file in tmp_path.iterdir():
                file.unlink()
    finally:
        subprocess.run(["umount", tmp_path], check=True)
