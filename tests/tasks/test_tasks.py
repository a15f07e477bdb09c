"""Where tasks come from, and which of them each group gets."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config import RunConfig
from agentrl.config.data import TaskOrder
from agentrl.errors import ConfigError, TaskFileError
from agentrl.tasks.curriculum import TaskList, open_run_tasks
from agentrl.tasks.task_type import task_type_of
from agentrl.tasks.tasks import GroupTask, TaskStream, list_tasks, open_tasks, split_tasks
from agentrl.workflows import chat

TASKS = [{"n": n} for n in range(7)]


@given(st.integers(1, 20), st.integers(0, 99), st.booleans())
def test_every_epoch_visits_every_task_once(count: int, seed: int, shuffle: bool) -> None:
    order: TaskOrder = "shuffled" if shuffle else "in_order"
    tasks = TaskList([[{"n": n} for n in range(count)]], order=order, seed=seed, epochs=3)
    visited = [tasks.task_of_group(group) for group in range(3 * count)]
    for epoch in range(3):
        places = [found.index for found in visited[epoch * count : (epoch + 1) * count] if found is not None]
        assert sorted(places) == list(range(count))
        assert shuffle or places == list(range(count))
    assert tasks.task_of_group(3 * count) is None
    assert [found.epoch for found in visited if found] == [group // count for group in range(3 * count)]


def test_epochs_differ_and_seeds_repeat() -> None:
    def order(seed: int, epoch: int) -> list[Any]:
        tasks = TaskList([[{"n": n} for n in range(50)]], seed=seed)
        return [tasks.task_of_group(group) for group in range(50 * epoch, 50 * epoch + 50)]

    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)
    assert order(3, 2) == order(3, 2)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=20), st.integers(1, 9))
def test_a_stream_gives_a_group_the_same_task_in_whatever_order_it_is_asked(groups: list[int], count: int) -> None:
    stream = TaskStream(lambda: iter({"n": n} for n in range(count)))
    for group in groups:
        assert stream.task_of_group(group) == GroupTask(group // count, group % count, {"n": group % count})


def test_a_stream_ends_after_its_epochs() -> None:
    stream = TaskStream(lambda: iter(TASKS), epochs=2)
    assert [stream.task_of_group(group) is None for group in (0, 13, 14, 6)] == [False, False, True, False]
    with pytest.raises(TaskFileError, match=r"the stream of tasks holds no task that can be used$"):
        TaskStream(lambda: iter(())).task_of_group(0)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.data())
def test_a_run_goes_on_only_with_a_stream_that_gives_the_same_tasks_in_the_same_order(
    before: list[int], data: st.DataObject
) -> None:
    """Tasks of open groups would change in the middle of a group, and others would come twice or never."""
    given = data.draw(st.integers(0, len(before)))
    digests = [GroupTask(0, n, {"n": value}).digest for n, value in enumerate(before[:given])]
    now = data.draw(st.permutations(before) | st.lists(st.integers(0, 3), max_size=12))
    stream = TaskStream(lambda: iter({"n": value} for value in now), epochs=1)
    if now[:given] == before[:given]:
        stream.check_begins_with(digests)
    else:
        with pytest.raises(
            TaskFileError, match=r"the stream of tasks (holds no task|does not begin as before: task \d+ is)"
        ):
            stream.check_begins_with(digests)


def numbers(bad: dict[int, Any], count: int = 6) -> Iterator[Any]:
    """The tasks 0 to `count`, some of which are something else."""
    for n in range(count):
        yield bad.get(n, {"n": n})


@pytest.mark.parametrize("bad", [None, 3, "text", {4: 2}, [{"n": 1}]])
def test_what_is_no_task_takes_the_place_of_one_and_says_why(bad: Any) -> None:
    stream = TaskStream(lambda: numbers({2: bad}), epochs=2)
    found = [stream.task_of_group(group) for group in range(13)]
    assert [f.task["n"] if f and f.task else None for f in found] == [0, 1, None, 3, 4, 5] * 2 + [None]
    assert found[12] is None
    for skipped in (found[2], found[8]):
        assert skipped is not None
        assert skipped.fault.startswith("task 2: ")
    assert stream.task_of_group(2) == found[2], "a resumed run finds the same"


def test_a_generator_that_fails_midway_ends_its_epoch_and_says_where() -> None:
    stream = TaskStream(lambda: ({"n": 1 // n} for n in (1, 0, 1)))
    for epoch in (0, 1):
        assert stream.task_of_group(2 * epoch) == GroupTask(epoch, 0, {"n": 1})
        failed = stream.task_of_group(2 * epoch + 1)
        assert failed is not None
        assert (failed.epoch, failed.index, failed.task) == (epoch, 1, None)
        assert "failed at task 1: ZeroDivisionError" in failed.fault


def test_a_stream_without_one_usable_task_is_an_error_and_not_a_loop() -> None:
    stream = TaskStream(lambda: iter([3, 4]))
    assert [stream.task_of_group(group).fault[:6] for group in (0, 1)] == ["task 0", "task 1"]  # type: ignore[union-attr]
    with pytest.raises(TaskFileError, match="holds no task that can be used; the last: task 1: "):
        stream.task_of_group(2)


def test_a_source_that_fails_at_the_start_is_an_error_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "bad_tasks.py"
    path.write_text(
        "def fails(): raise OSError('the disk is gone')\n"
        "def midway():\n    yield {'n': 0}\n    raise OSError('the disk is gone')\n"
        "NUMBER = 5\nKEYS = [{1: 2}]\n"
    )
    for name, complaint in {
        "fails": "raised OSError: the disk is gone",
        "NUMBER": "is a int; give a list of tasks",
        "KEYS": "the keys of a task must be text",
    }.items():
        with pytest.raises(TaskFileError, match=complaint):
            open_tasks(f"python:{path}:{name}")
    with pytest.raises(TaskFileError, match="the stream of tasks failed at task 1: OSError: the disk is gone"):
        list_tasks(f"python:{path}:midway", 3)
    (tmp_path / "broken_tasks.py").write_text("1 / 0\n")
    with pytest.raises(TaskFileError, match=r"cannot be loaded: .*ZeroDivisionError"):
        open_tasks(f"python:{tmp_path}/broken_tasks.py:fails")
    (tmp_path / "deep.jsonl").write_text('{"n": 1}\n' + '{"n":' * 100_000 + "\n")
    with pytest.raises(TaskFileError, match=r"deep\.jsonl, line 2: not valid JSON"):
        open_tasks(str(tmp_path / "deep.jsonl"))
    (tmp_path / "cut.jsonl").write_text('{"n": "1\n')
    with pytest.raises(
        TaskFileError, match=r"cut\.jsonl, line 1: not valid JSON: EOF while parsing a string at character 8"
    ):
        open_tasks(str(tmp_path / "cut.jsonl"))
    (tmp_path / "constant.jsonl").write_text('{"n": 1}\n{"n": [NaN]}\n')
    with pytest.raises(TaskFileError, match=r"constant\.jsonl, line 2: not valid JSON: expected value .*write null"):
        open_tasks(str(tmp_path / "constant.jsonl"))
    loop: dict[str, Any] = {}
    loop["self"] = loop
    with pytest.raises(TaskFileError, match="holds what JSON cannot say"):
        _ = TaskList([[loop]]).identity


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"n": 0}\n\n{"n": 1}\n')
    assert open_tasks(str(path)) == TASKS[:2]


def test_a_file_from_elsewhere_is_read_as_it_is(tmp_path: Path) -> None:
    """A mark of its byte order before the text, two gzip files one behind another, and columns."""
    text = "".join(json.dumps(task) + "\n" for task in TASKS).encode()
    (tmp_path / "marked.jsonl").write_bytes(b"\xef\xbb\xbf" + text)
    (tmp_path / "tasks.jsonl.gz").write_bytes(2 * gzip.compress(text))
    assert open_tasks(str(tmp_path / "marked.jsonl")) == TASKS
    assert open_tasks(str(tmp_path / "tasks.jsonl.gz")) == TASKS + TASKS
    (tmp_path / "tasks.jsonl.gz").write_bytes(text)
    with pytest.raises(TaskFileError, match=r"cannot read the task file .*tasks\.jsonl\.gz: Not a gzipped file"):
        open_tasks(str(tmp_path / "tasks.jsonl.gz"))
    (tmp_path / "half.jsonl").write_text('{"q": "\\ud83d\\ude00"}\n{"q": "\\uD83D"}\n')
    with pytest.raises(TaskFileError, match=r"half\.jsonl, line 2: not valid JSON: unexpected end of hex escape"):
        open_tasks(str(tmp_path / "half.jsonl"))
    (tmp_path / "tasks.parquet").write_bytes(text)
    with pytest.raises(TaskFileError, match=r"tasks\.parquet cannot be loaded: ArrowInvalid"):
        open_tasks(str(tmp_path / "tasks.parquet"))


@pytest.mark.parametrize("form", ["tasks.parquet", "hf:on_disk"])
def test_a_row_of_arrow_has_the_keys_that_it_was_written_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """A struct has the keys of all rows, null where a row has none: no tool takes those of another, and no call is taught them."""
    import datasets

    def row(name: str, argument: str) -> dict[str, Any]:
        function = {"name": name, "parameters": {"type": "object", "properties": {argument: {"type": "string"}}}}
        call = {"id": "1", "function": {"name": name, "arguments": {argument: "Rome"}}}
        return {
            "note": None,
            "tools": [{"function": function}],
            "messages": [{"role": "assistant", "tool_calls": [call]}],
        }

    rows = [row("weather", "city"), {**row("calculator", "expression"), "note": "second"}]
    monkeypatch.chdir(tmp_path)
    table = datasets.Dataset.from_list(rows)
    table.to_parquet("tasks.parquet") if form == "tasks.parquet" else table.save_to_disk("on_disk")
    assert open_tasks(form) == rows


def test_a_row_for_verl_is_a_task(tmp_path: Path) -> None:
    import datasets

    asked = [{"role": "user", "content": "2 + 3?"}]
    row = {"data_source": "sums", "prompt": asked, "reward_model": {"style": "rule", "ground_truth": "5"}}
    datasets.Dataset.from_list([row]).to_parquet(tmp_path / "train@1:a.parquet")
    assert open_tasks(str(tmp_path / "train@1:a.parquet"), task_type_of(chat.run)) == [
        {"messages": asked, "answer": "5", **row}
    ]
    assert chat.conversation({"messages": asked, **row}) == asked


@pytest.mark.slow
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
    assert [stream.task_of_group(group) for group in range(4)] == [
        GroupTask(0, 0, {"n": 0}),
        GroupTask(0, 1, {"n": 1}),
        GroupTask(0, 2, {"n": 2}),
        GroupTask(1, 0, {"n": 0}),
    ]
    for name, complaint in {
        "ONCE": "an iterator, which can be read only once",
        "WRONG": "task 0: a task must be a JSON object, not int",
        "NOTHING": "has no attribute 'NOTHING'",
    }.items():
        with pytest.raises(TaskFileError, match=complaint):
            open_tasks(f"python:{path}:{name}")
    with pytest.raises(TaskFileError, match=r"cannot be loaded: .*; write python:FILE_OR_MODULE:NAME"):
        open_tasks("python:my_tasks")


def test_evaluation_needs_an_end(tmp_path: Path) -> None:
    path = tmp_path / "endless.py"
    path.write_text("import itertools\ndef tasks():\n    for n in itertools.count(): yield {'n': n}\n")
    assert list_tasks(f"python:{path}:tasks", 3) == TASKS[:3]
    with pytest.raises(TaskFileError, match=r"say how many tasks to use with `eval\.limit`"):
        list_tasks(f"python:{path}:tasks")


@given(st.integers(2, 50), st.floats(0, 1), st.integers(0, 9))
def test_a_split_loses_nothing_and_leaves_both_sides_something(count: int, share: float, seed: int) -> None:
    tasks = [{"n": n} for n in range(count)]
    train, held_out = split_tasks(tasks, share, seed)
    assert sorted(task["n"] for task in (*train, *held_out)) == list(range(count))
    assert train
    assert held_out
    assert abs(len(held_out) - share * count) <= 1
    assert split_tasks(tasks, share, seed) == (train, held_out)


def test_tasks_of_a_list_or_a_function() -> None:
    assert open_tasks(TASKS) == TASKS
    assert open_tasks(lambda: TASKS) == TASKS
    with pytest.raises(TaskFileError, match="holds no tasks"):
        open_tasks([])


def test_what_is_trained_on_and_what_is_held_out(tmp_path: Path) -> None:
    def chosen(data: dict[str, Any], given: Any = TASKS, **rest: Any) -> tuple[Any, list[Any]]:
        return open_run_tasks(RunConfig.model_validate({"data": data, **rest}), given)

    tasks, held_out = chosen({"eval_share": 0.3, "epochs": 2, "order": "in_order"})
    assert [tasks.task_of_group(group).task for group in range(10)] == 2 * tasks.tasks
    assert (len(tasks.tasks), len(held_out), tasks.task_of_group(10)) == (5, 2, None)
    assert chosen({"eval_share": 0.3}, eval={"limit": 1})[1] == held_out[:1]
    path = tmp_path / "eval.jsonl"
    path.write_text('{"n": 99}\n')
    tasks, held_out = chosen({"eval_share": 0.3}, eval={"tasks": str(path)})
    assert (len(tasks.tasks), held_out) == (7, [{"n": 99}])
    stream, held_out = chosen({"epochs": 3}, lambda: iter(TASKS))
    assert (stream.epochs, held_out) == (3, [])
    with pytest.raises(ConfigError, match=r"`data\.eval_share` needs tasks whose number is known, and"):
        chosen({"eval_share": 0.3}, lambda: iter(TASKS))
