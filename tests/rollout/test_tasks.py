"""Where tasks come from, and which of them each group gets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config import RunConfig
from agentrl.errors import ConfigError, TaskFileError
from agentrl.rollout.tasks import (
    GroupTask,
    TaskList,
    TaskStream,
    finite_tasks,
    open_tasks,
    split_tasks,
    tasks_of,
    training_and_held_out,
)

TASKS = [{"n": n} for n in range(7)]


@given(st.integers(1, 20), st.integers(0, 99), st.booleans())
def test_every_epoch_visits_every_task_once(count: int, seed: int, shuffle: bool) -> None:
    tasks = TaskList([{"n": n} for n in range(count)], seed, shuffle, epochs=3)
    visited = [tasks.of_group(group) for group in range(3 * count)]
    for epoch in range(3):
        places = [found.place for found in visited[epoch * count : (epoch + 1) * count] if found is not None]
        assert sorted(places) == list(range(count))
        assert shuffle or places == list(range(count))
    assert tasks.of_group(3 * count) is None
    assert [found.epoch for found in visited if found] == [group // count for group in range(3 * count)]


def test_epochs_differ_and_seeds_repeat() -> None:
    def order(seed: int, epoch: int) -> list[Any]:
        tasks = TaskList([{"n": n} for n in range(50)], seed)
        return [tasks.of_group(group) for group in range(50 * epoch, 50 * epoch + 50)]

    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)
    assert order(3, 2) == order(3, 2)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=20), st.integers(1, 9))
def test_a_stream_gives_a_group_the_same_task_in_whatever_order_it_is_asked(groups: list[int], count: int) -> None:
    stream = TaskStream(lambda: iter({"n": n} for n in range(count)))
    for group in groups:
        assert stream.of_group(group) == GroupTask(group // count, group % count, {"n": group % count})


def test_a_stream_ends_after_its_epochs() -> None:
    stream = TaskStream(lambda: iter(TASKS), epochs=2)
    assert [stream.of_group(group) is None for group in (0, 13, 14, 6)] == [False, False, True, False]
    with pytest.raises(TaskFileError, match="stream of tasks is empty"):
        TaskStream(lambda: iter(())).of_group(0)


def test_a_stream_that_fails_says_where() -> None:
    later = TaskStream(lambda: ({"n": 1 // n} for n in (1, 0)))
    assert later.of_group(0) == GroupTask(0, 0, {"n": 1})
    with pytest.raises(TaskFileError, match="failed at task 1: ZeroDivisionError"):
        later.of_group(1)
    with pytest.raises(TaskFileError, match="task 0: a task must be a JSON object, not int"):
        TaskStream(lambda: iter([3])).of_group(0)


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"n": 0}\n\n{"n": 1}\n')
    assert open_tasks(str(path)) == TASKS[:2]


def test_a_hugging_face_dataset_on_disk(tmp_path: Path) -> None:
    import datasets

    rows = datasets.Dataset.from_list(TASKS)
    rows.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": rows, "test": rows.select(range(2))}).save_to_disk(tmp_path / "splits")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "train.jsonl").write_text("".join(json.dumps(task) + "\n" for task in TASKS))
    assert open_tasks(f"hf:{tmp_path}/one") == TASKS
    assert open_tasks(f"hf:{tmp_path}/splits") == TASKS
    assert open_tasks(f"hf:{tmp_path}/splits@test") == TASKS[:2]
    with pytest.raises(TaskFileError, match="has no split 'validation'; it has train, test"):
        open_tasks(f"hf:{tmp_path}/splits@validation")
    with pytest.raises(TaskFileError, match="cannot be loaded"):
        open_tasks(f"hf:{tmp_path}/nothing")


def test_a_directory_of_files_is_a_dataset_too(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(task) + "\n" for task in TASKS))
    assert open_tasks(f"hf:{tmp_path}") == TASKS


def test_python_lists_functions_and_generators(tmp_path: Path) -> None:
    path = tmp_path / "my_tasks.py"
    path.write_text(
        "LIST = [{'n': 0}, {'n': 1}]\n"
        "def make(): return LIST\n"
        "def stream():\n    for n in range(3): yield {'n': n}\n"
        "ONCE = iter(LIST)\nWRONG = [3]\n"
    )
    assert open_tasks(f"python:{path}:LIST") == TASKS[:2]
    assert open_tasks(f"python:{path}:make") == TASKS[:2]
    stream = open_tasks(f"python:{path}:stream")
    assert isinstance(stream, TaskStream)
    assert [stream.of_group(group) for group in range(4)] == [
        GroupTask(0, 0, {"n": 0}),
        GroupTask(0, 1, {"n": 1}),
        GroupTask(0, 2, {"n": 2}),
        GroupTask(1, 0, {"n": 0}),
    ]
    for name, complaint in {
        "ONCE": "an iterator, which can be gone through only once",
        "WRONG": "task 0: a task must be a JSON object, not int",
        "NOTHING": "has no attribute 'NOTHING'",
    }.items():
        with pytest.raises(TaskFileError, match=complaint):
            open_tasks(f"python:{path}:{name}")
    with pytest.raises(TaskFileError, match="names no object"):
        open_tasks("python:my_tasks")


def test_evaluation_needs_an_end(tmp_path: Path) -> None:
    path = tmp_path / "endless.py"
    path.write_text("import itertools\ndef tasks():\n    for n in itertools.count(): yield {'n': n}\n")
    assert finite_tasks(f"python:{path}:tasks", 3) == TASKS[:3]
    with pytest.raises(TaskFileError, match=r"say how many tasks to use with eval\.limit"):
        finite_tasks(f"python:{path}:tasks")


@given(st.integers(2, 50), st.floats(0, 1), st.integers(0, 9))
def test_a_split_loses_nothing_and_leaves_both_sides_something(count: int, share: float, seed: int) -> None:
    tasks = [{"n": n} for n in range(count)]
    train, held_out = split_tasks(tasks, share, seed)
    assert sorted(task["n"] for task in (*train, *held_out)) == list(range(count))
    assert train
    assert held_out
    assert abs(len(held_out) - share * count) <= 1
    assert split_tasks(tasks, share, seed) == (train, held_out)


def test_tasks_from_python_objects() -> None:
    def generate() -> Iterator[dict[str, Any]]:
        yield from TASKS

    assert tasks_of(TASKS) == TASKS
    assert tasks_of(lambda: TASKS) == TASKS
    assert isinstance(tasks_of(generate), TaskStream)
    with pytest.raises(TaskFileError, match="holds no tasks"):
        tasks_of([])


def test_what_is_trained_on_and_what_is_held_out(tmp_path: Path) -> None:
    def chosen(data: dict[str, Any], given: Any = TASKS, **rest: Any) -> tuple[Any, list[Any]]:
        return training_and_held_out(RunConfig.model_validate({"data": data, **rest}), given)

    tasks, held_out = chosen({"eval_share": 0.3, "epochs": 2, "shuffle": False})
    assert (len(tasks.tasks), len(held_out), tasks.epochs, tasks.shuffle) == (5, 2, 2, False)
    assert chosen({"eval_share": 0.3}, eval={"limit": 1})[1] == held_out[:1]
    path = tmp_path / "eval.jsonl"
    path.write_text('{"n": 99}\n')
    tasks, held_out = chosen({"eval_share": 0.3}, eval={"tasks": str(path)})
    assert (len(tasks.tasks), held_out) == (7, [{"n": 99}])
    stream, held_out = chosen({"epochs": 3}, lambda: iter(TASKS))
    assert (stream.epochs, held_out) == (3, [])
    with pytest.raises(ConfigError, match=r"data\.eval_share needs tasks whose number is known"):
        chosen({"eval_share": 0.3}, lambda: iter(TASKS))
