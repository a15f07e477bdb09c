"""The reward figure: every group that starts counts once, in the order of starting, however long it runs."""

from __future__ import annotations

import random
import sqlite3
import statistics
from pathlib import Path

import pytest
from anyio.to_thread import run_sync as in_thread
from hypothesis import given
from hypothesis import strategies as st

from agentrl import Episode
from agentrl.proxy import ChatFormat
from agentrl.record.end_reason import EndReason
from agentrl.store.changes import CloseGroup, InsertEpisode, InsertEvaluation, OpenGroup
from agentrl.store.outcome import Outcome
from agentrl.store.rewards import (
    GroupRewards,
    best_checkpoint,
    evaluations,
    mean_of_groups,
    rewards_in_order,
)
from agentrl.store.schema import SCHEMA
from agentrl.store.store import Store
from agentrl.tasks.tasks import group_seed
from tests.checkpoints import commit
from tests.rollout.test_controller import call, collect

rewards = st.lists(st.floats(-1, 1), max_size=3)


@given(st.lists(rewards, max_size=20), st.randoms(use_true_random=False), st.integers(1, 5))
def test_every_group_counts_once_and_in_order_whenever_it_ends(
    groups: list[list[float]], rng: random.Random, take_every: int
) -> None:
    db = sqlite3.connect(":memory:")
    db.executescript(SCHEMA)
    for index in range(len(groups)):
        OpenGroup(index, 0, index).write(db, 1)
    order = rng.sample(range(len(groups)), len(groups))
    counted: list[int] = []
    rows = []
    for position, index in enumerate(order, 1):
        for episode_index, reward in enumerate([*groups[index], *[None] * (3 - len(groups[index]))]):
            InsertEpisode(index, episode_index, 0, episode(reward)).write(db, 1)
        CloseGroup(index).write(db, 1)
        if position % take_every == 0 or position == len(groups):
            taken = rewards_in_order(db, len(counted))
            counted += [group.id for group in taken]
            rows.append(mean_of_groups(taken))
            waits = min(set(range(len(groups))) - set(order[:position]), default=len(groups))
            assert counted == list(range(waits)), "a group counts when it and all before it have ended"
    assert counted == list(range(len(groups)))
    means = [statistics.fmean(group) for group in groups if group]
    assert sum(row.groups for row in rows) == len(means)
    assert sum(row.episodes for row in rows) == sum(map(len, groups))
    assert sum(row.failed for row in rows) == sum(3 - len(group) for group in groups)
    assert sum((row.mean or 0) * row.groups for row in rows) == pytest.approx(sum(means))


def test_a_figure_names_what_it_rests_on_and_nothing_where_there_is_nothing() -> None:
    figure = mean_of_groups(
        [GroupRewards(0, [1.0, 0.0], 0), GroupRewards(1, [1.0], 1), GroupRewards(2, [], 2, dropped=True)]
    )
    assert figure.to_metrics() == {
        "reward_mean": 0.75,
        "reward_groups": 2,
        "reward_episodes": 3,
        "reward_failed": 3,
        "reward_dropped": 1,
    }
    assert mean_of_groups([]).to_metrics()["reward_mean"] is None


def episode(reward: float | None) -> Outcome:
    return Outcome(reason=EndReason.ERROR) if reward is None else Outcome(reason=EndReason.FINISHED, reward=reward)


def fill(store: Store, group: int, version: int, rewards: list[float | None], *, ended: bool = True) -> None:
    store.write([OpenGroup(group, 0, group, version)])
    for episode_index, reward in enumerate(rewards):
        store.write([InsertEpisode(group, episode_index, 0, episode(reward))])
    if ended:
        finished = [reward for reward in rewards if reward is not None]
        store.write([CloseGroup(group, rejected="all rewards are equal" if len(set(finished)) < 2 else None)])


def test_a_run_that_is_resumed_counts_what_the_lost_steps_counted_again(tmp_path: Path) -> None:
    with Store(tmp_path / "store.sqlite") as store:
        store.begin_restart()
        fill(store, 0, 0, [1.0, 0.0])
        fill(store, 1, 0, [None, None, 0.5])
        fill(store, 2, 1, [0.0, 0.0])
        fill(store, 3, 1, [1.0], ended=False)
        fill(store, 4, 1, [None, None])
        counted = store.read(lambda db: rewards_in_order(db, 1))
    assert counted == [GroupRewards(1, [0.5], 2, dropped=True), GroupRewards(2, [0.0, 0.0], 0, dropped=True)], (
        "group 4 waits for group 3"
    )


def test_a_checkpoint_is_scored_by_the_groups_that_its_policy_sampled(tmp_path: Path) -> None:
    """The newest has sampled nothing yet; one that waits for a long group counts those before it."""
    with Store(tmp_path / "store.sqlite") as store:
        store.begin_restart()
        for group, (version, reward) in enumerate([(0, 0.0), (2, 0.5), (3, 0.5), (4, 1.0), (5, 0.25)]):
            fill(store, group, version, [reward, reward])
        fill(store, 5, 6, [0.75])
        fill(store, 6, 6, [], ended=False)
        fill(store, 7, 6, [0.0, 0.0])
        for step in (2, 4, 6):
            commit(store, step, tmp_path / str(step), [(step - 1, []), (step, [])])
            store.forget_checkpoints(keep=3)
        assert store.read(best_checkpoint) == {"step": 4, "reward": 0.75, "groups": 2}
        commit(store, 8, tmp_path / "8", [(7, []), (8, [])])
        assert store.forget_checkpoints(keep=1) == [tmp_path / "6", tmp_path / "2"]
        rows = store.read(lambda db: db.execute("SELECT step, reward_mean, reward_groups FROM checkpoints").fetchall())
    assert rows == [(2, 0.25, 2), (4, 0.75, 2), (6, 0.5, 2), (8, None, 0)]


def test_the_best_of_the_checkpoints_that_were_evaluated_is_the_one_with_the_highest_held_out_reward(
    tmp_path: Path,
) -> None:
    with Store(tmp_path / "store.sqlite") as store:
        store.begin_restart()
        for step, held_out in ((1, 0.5), (2, 0.75), (3, 0.25)):
            fill(store, step - 1, step, [1.0 - held_out, 1.0 - held_out])
            commit(store, step, tmp_path / str(step), [(step, [])])
            store.write([InsertEvaluation(step, {"mean_reward": held_out})])
        assert store.read(best_checkpoint) == {"step": 2, "reward": 0.75, "groups": 0}
        assert store.forget_checkpoints(keep=1) == [tmp_path / "1"]
        store.forget_evaluations(2)
        assert list(store.read(evaluations)) == [1, 2], "a crash undid step 3"


@pytest.mark.anyio
async def test_dropped_groups_count_and_are_not_run_again_by_a_resumed_run(
    server_url: str, nano_format: ChatFormat, tmp_path: Path
) -> None:
    """A trainer of another project took what it had dropped for never done, and did it again (huggingface/trl#7274)."""
    tried: list[int | None] = []

    async def run(episode: Episode) -> float:
        await call(episode)
        tried.append(episode.group_seed)
        return 0.0 if episode.task["n"] % 2 else float(episode.seed % 1000)

    async def until_two_batches() -> tuple[list[GroupRewards], set[int]]:
        await collect(run, server_url, nano_format, tmp_path, batches=2, drop_uniform_groups=True)
        with await in_thread(Store, tmp_path / "store.sqlite") as store:
            counted = await in_thread(store.read, lambda db: rewards_in_order(db, 0))
            dropped = store._db.execute("SELECT id FROM groups WHERE state = 'rejected'").fetchall()
        return counted, {group_seed(0, group) for (group,) in dropped}

    counted, dropped = await until_two_batches()
    assert len(dropped) >= 1
    tried.clear()
    again, _ = await until_two_batches()
    assert not dropped & set(tried)
    assert again[: len(counted)] == counted, "dropped ones included"
    assert [group.id for group in again] == list(range(len(again)))
