"""Tasks that are drawn: how often, from which state, and the same again after a kill."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.record.end_reason import EndReason
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.record.trajectory import TokenRecord
from agentrl.store.changes import CloseGroup, InsertEpisode, OpenGroup
from agentrl.store.outcome import Outcome
from agentrl.store.store import Store
from agentrl.tasks.curriculum import StoredGroupTask, TaskList, open_run_tasks, task_history

ORDERS = ["shuffled", "in_order", "difficulty"]


def drawn_tasks(directory: Path, order: str, sizes: list[int], seed: int = 0, **data: Any) -> TaskList:
    """Tasks of several sources, the level of a task being its number in its source modulo 3."""
    sources = []
    for source, size in enumerate(sizes):
        path = directory / f"{source}-{size}.jsonl"
        path.write_text("".join(json.dumps({"source": source, "n": n, "level": n % 3}) + "\n" for n in range(size)))
        sources.append({"tasks": str(path), "weight": source + 1})
    tasks, _ = open_run_tasks(RunConfig(seed=seed, data={"order": order, "sources": sources, **data}), None)
    assert isinstance(tasks, TaskList)
    return tasks


def play(tasks: TaskList, choices: random.Random, groups: range) -> list[StoredGroupTask]:
    """Draw groups, of which some have ended before the next is drawn, in the order of their numbers; what a store has of them then."""
    given: list[StoredGroupTask] = []
    for group in groups:
        found = tasks.task_of_group(group)
        assert found is not None
        ended = choices.random() < 0.8
        mean = choices.choice([None, 0.0, 0.25, 0.5, 0.75, 1.0]) if ended else None
        if ended:
            tasks.group_ended(group, mean)
        given.append(StoredGroupTask(found.index, mean))
    return given


@pytest.mark.parametrize("order", ORDERS)
@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(3, 9), min_size=1, max_size=3),
    seed=st.integers(0, 99),
    first=st.integers(0, 40),
)
def test_a_restored_order_has_the_groups_of_the_one_before_and_goes_on_as_it_would(
    tmp_path_factory: pytest.TempPathFactory, order: str, sizes: list[int], seed: int, first: int
) -> None:
    directory = tmp_path_factory.mktemp("tasks")
    before = drawn_tasks(directory, order, sizes, seed)
    given = play(before, random.Random(seed), range(first))
    after = drawn_tasks(directory, order, sizes, seed)
    after.restore(given)
    assert after.identity == before.identity
    assert [after.task_of_group(group) for group in range(first)] == [
        before.task_of_group(group) for group in range(first)
    ]
    before.take_metrics()  # a restart begins to count what is drawn anew
    going_on = range(first, first + 20)
    assert play(after, random.Random(7), going_on) == play(before, random.Random(7), going_on)
    assert after.take_metrics() == before.take_metrics()


def shares(tasks: TaskList, ended: list[tuple[int, float | None]], draws: int = 10_000) -> list[float]:
    """How often each task is drawn once groups of some tasks have ended."""
    tasks.restore([StoredGroupTask(index, mean) for index, mean in ended])
    found = (tasks.task_of_group(len(ended) + n) for n in range(draws))
    counts = Counter(one.index for one in found if one is not None)
    return [counts[index] / draws for index in range(len(tasks.tasks))]


def test_tasks_are_drawn_by_the_weights_of_their_pools_and_each_has_its_share_of_the_floor(tmp_path: Path) -> None:
    tasks = drawn_tasks(tmp_path, "difficulty", [20])
    means = {**dict.fromkeys(range(2), 0.0), **dict.fromkeys(range(2, 6), 0.25), **dict.fromkeys(range(6, 12), 1.0)}
    drawn = shares(tasks, [(index, m) for index, mean in means.items() for m in (1 - mean, None, mean)])
    weights = [{0.0: 1, 0.25: 4, 1.0: 1, None: 4}[means.get(index)] for index in range(20)]
    assert drawn == pytest.approx([0.9 * weight / sum(weights) + 0.1 / 20 for weight in weights], abs=0.012)
    pools = {"tasks_pool_0": 0.1, "tasks_pool_1": 0.2, "tasks_pool_2": 0.3, "tasks_unseen": 0.4}
    assert tasks.take_metrics() == {**pools, "drawn_groups": 10_000}


def test_a_source_keeps_its_weight_whatever_its_tasks_are_worth(tmp_path: Path) -> None:
    tasks = drawn_tasks(tmp_path, "difficulty", [5, 5])
    drawn = shares(tasks, [(index, 1.0) for index in range(5)])
    assert sum(drawn[5:]) == pytest.approx(0.9 * 2 / 3 + 0.1 / 2, abs=0.02)


def test_sources_are_mixed_by_their_weights_and_each_is_gone_through_in_epochs(tmp_path: Path) -> None:
    tasks = drawn_tasks(tmp_path, "shuffled", [5, 7])
    found = [tasks.task_of_group(group) for group in range(1200)]
    chosen = [one.task["source"] for one in found if one is not None and one.task is not None]
    assert chosen.count(1) / 1200 == pytest.approx(2 / 3, abs=0.05)
    for source, size in ((0, 5), (1, 7)):
        visited = [one.task["n"] for one in found if one is not None and one.task and one.task["source"] == source]
        for begin in range(0, len(visited) - size, size):
            assert sorted(visited[begin : begin + size]) == list(range(size))
    pairs = [(one.epoch, one.index) for one in found if one is not None]
    assert len(set(pairs)) == 1200, "each visit of a task is one group"
    assert drawn_tasks(tmp_path, "shuffled", [5, 7]).task_of_group(700) == found[700], "as sft goes on"
    metrics = tasks.take_metrics()
    assert metrics["drawn_groups"] == 1200
    assert metrics["drawn_source_1"] == pytest.approx(2 / 3, abs=0.05)


def finished(reward: float, token: int) -> Outcome:
    record = TokenRecord()
    reply = Generation(output_ids=[token], logprobs=[-0.1], versions=[VersionSpan(0, 0, 1)], finish="stop")
    record.add("call", None, [1, 2, 3], reply, 1.0)
    return Outcome(reason=EndReason.FINISHED, reward=reward, record=record)


def test_a_store_knows_the_tasks_of_its_groups_and_what_came_of_them(tmp_path: Path) -> None:
    """A failed attempt counts for nothing, nor does an episode that is set aside and its group run again."""
    with Store(tmp_path / "store.sqlite") as store:
        store.begin_restart()
        for group, index in enumerate((4, 2)):
            store.write([OpenGroup(group, 0, index, version=group)])
        store.write([InsertEpisode(1, 0, 0, Outcome(reason=EndReason.ERROR, error="x"))])
        for group, episode_index, reward, token in ((1, 1, 0.1, 99), (1, 0, 0.2, 99), (0, 0, 1.0, 5)):
            store.write([InsertEpisode(group, episode_index, 0, finished(reward, token))])
        store.write([CloseGroup(1)])
        store.write([CloseGroup(0, rejected="all rewards are equal")])
        store.write([OpenGroup(2, 1, 2, version=5)])
        known = [StoredGroupTask(4, 1.0), StoredGroupTask(2, (0.2 + 0.1) / 2), StoredGroupTask(2, None)]
        assert store.read(task_history) == known
        assert [one.mean for one in store.read(lambda db: task_history(db, "shuffled"))] == [None] * 3
        assert len(store.reject_episodes(vocabulary=10)) == 2, "the model has no token 99"
        assert store.read(task_history)[1] == StoredGroupTask(2, None)


def test_a_group_keeps_the_task_that_it_was_given(tmp_path: Path) -> None:
    tasks = drawn_tasks(tmp_path, "difficulty", [50])
    drawn = tasks.task_of_group(0)
    assert drawn is not None
    given_then = (drawn.index + 1) % 50
    again = drawn_tasks(tmp_path, "difficulty", [50])
    again.restore([StoredGroupTask(given_then, None)])
    kept = again.task_of_group(0)
    assert kept is not None
    assert kept.index == given_then


def test_a_stream_is_not_drawn_from() -> None:
    with pytest.raises(ConfigError, match=r"`data\.order` needs tasks whose number is known"):
        open_run_tasks(RunConfig(data={"order": "difficulty"}), lambda: iter([{"n": 1}]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"order": "difficulty", "epochs": 2}, "draws tasks without epochs"),
        (
            {"order": "until_learned"},
            "data.order = .until_learned.: Input should be .shuffled., .in_order. or .difficulty.",
        ),
        ({"sources": [{"tasks": "a", "weight": 0}]}, r"data\.sources\.0\.weight = 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig(data=data)
    with pytest.raises(ConfigError, match="leave one of them out"):
        RunConfig(tasks="a.jsonl", data={"sources": [{"tasks": "b.jsonl"}]})
