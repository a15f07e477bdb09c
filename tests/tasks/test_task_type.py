"""Tasks of a class: a workflow names it, rows that are none are refused or skipped, and every episode sees a value of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentrl import Episode
from agentrl.errors import TaskFileError, WorkflowError
from agentrl.tasks.task_type import task_of_episode, task_type_of
from agentrl.tasks.tasks import TaskStream, open_tasks


@dataclass
class Sum:
    question: str
    answer: int
    hints: list[str] = field(default_factory=list)


class Question(BaseModel):
    question: str
    answer: int


class Row(TypedDict):
    question: str
    answer: int


async def sums(episode: Episode[Sum]) -> float:
    return float(episode.task.answer)


async def weighted(episode: Episode[Sum], weight: float) -> float:
    return weight * episode.task.answer


@dataclass
class Agent:
    """A workflow that is an object, which has no hash."""

    weight: float

    async def __call__(self, episode: Episode[Sum]) -> float:
        return self.weight * episode.task.answer

    async def run(self, episode: Episode[Sum]) -> float:
        return self.weight * episode.task.answer


@pytest.mark.parametrize("workflow", [partial(weighted, weight=2.0), Agent(2.0), Agent(2.0).run])
def test_a_workflow_may_be_an_object_that_is_called(workflow: Any) -> None:
    assert task_of_episode(workflow, {"question": "2 + 3 =", "answer": 5}) == Sum("2 + 3 =", 5)


async def questions(episode: Episode[Question]) -> float:
    return float(episode.task.answer)


async def rows(episode: Episode[Row]) -> float:
    return float(episode.task["answer"])


async def checked_dicts(episode: Episode[Annotated[dict[str, Any], Question]]) -> float:
    return float(episode.task["answer"])


async def dicts(episode: Episode) -> float:
    return float(episode.task["answer"])


async def dicts_by_name(episode: Episode[dict[str, Any]]) -> float:
    return float(episode.task["answer"])


async def untyped(episode):  # type: ignore[no-untyped-def]
    return 0.0


async def lost(episode: Episode[Nowhere]) -> float:  # type: ignore[name-defined]  # noqa: F821
    return 0.0


async def number(episode: Episode[int]) -> float:
    return 0.0


GOOD = {"question": "2 + 3", "answer": 5}


async def typed_for_checkers(episode: Episode[Sum]) -> Nowhere:  # type: ignore[name-defined]  # noqa: F821
    return float(episode.task.answer)


@pytest.mark.parametrize(("workflow", "kind"), [(sums, Sum), (questions, Question), (typed_for_checkers, Sum)])
def test_an_episode_sees_a_value_of_the_class_that_is_its_own(workflow: Any, kind: type) -> None:
    first, second = (task_of_episode(workflow, GOOD) for _ in range(2))
    assert type(first) is kind
    assert first == second
    assert first is not second


@pytest.mark.parametrize("workflow", [dicts, dicts_by_name, rows, untyped])
def test_without_a_class_a_task_is_a_dict(workflow: Any) -> None:
    task = {"nested": [{"x": 1}]}
    own = task_of_episode(workflow, task)
    own["nested"][0]["x"] = 2
    assert task == {"nested": [{"x": 1}]}


@pytest.mark.parametrize(("workflow", "complaint"), [(lost, "Nowhere"), (number, "names no class of tasks")])
def test_what_is_no_class_of_tasks_is_refused(workflow: Any, complaint: str) -> None:
    with pytest.raises(WorkflowError, match=complaint):
        task_type_of(workflow)


@pytest.mark.parametrize("workflow", [sums, questions, checked_dicts])
@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"question": "2 + 3"}, "the field 'answer' is missing"),
        ({"question": "2 + 3", "answer": "five"}, r"the field 'answer': input should be a valid integer.*'five'"),
    ],
)
def test_a_row_that_is_none_is_refused_with_its_line_and_field(
    workflow: Any, row: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(["", json.dumps(GOOD), json.dumps(row)]))
    with pytest.raises(TaskFileError, match=rf"line 3 is no {task_type_of(workflow).name}.*{complaint}"):  # type: ignore[union-attr]
        open_tasks(str(path), task_type_of(workflow))


def test_a_dict_that_is_checked_stays_as_it_is() -> None:
    task = {**GOOD, "of the data set": [1]}
    own = task_of_episode(checked_dicts, task)
    assert own == task
    assert own is not task
    with pytest.raises(TaskFileError, match=r"the task is no Question, .*'answer'"):
        task_of_episode(checked_dicts, {"question": "2 + 3", "answer": "five"})


class Limits(BaseModel):
    model_config = ConfigDict(extra="forbid")

    timeout_s: float = 1.0


class Bounded(BaseModel):
    model_config = ConfigDict(extra="forbid")

    limits: Limits = Limits()
    files: dict[str, str] = Field(min_length=1)

    @model_validator(mode="after")
    def check(self) -> Bounded:
        if "test.py" not in self.files:
            raise ValueError("there is no test.py in 'files'")
        return self


async def bounded(episode: Episode[Bounded]) -> float:
    return 0.0


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (
            {"limits": {"timeout": 5}},
            "there is no field 'limits.timeout'; leave it out; the field 'files' is missing",
        ),
        ({"files": {"test.py": ""}, "limit": {}}, "there is no field 'limit'; leave it out"),
        ({"files": {"test.py": ""}, "colour": 1}, "there is no field 'colour'; leave it out"),
        ({"files": {"a.py": ""}}, "there is no test.py in 'files'"),
    ],
)
def test_a_complaint_says_what_is_wrong_and_nothing_of_pydantic(row: dict[str, Any], complaint: str) -> None:
    with pytest.raises(TaskFileError) as caught:
        task_of_episode(bounded, row)
    assert re.fullmatch(
        f"the task is no Bounded, which run\\(episode\\) takes: {complaint}".replace("?", "\\?"), str(caught.value)
    )


def test_tasks_from_python_may_be_values_of_a_class() -> None:
    given = [Sum("2 + 3", 5), Question(question="1 + 1", answer=2), GOOD]
    assert open_tasks(given, task_type=task_type_of(sums)) == [
        {"question": "2 + 3", "answer": 5, "hints": []},
        {"question": "1 + 1", "answer": 2},
        GOOD,
    ]


def test_a_stream_skips_what_is_none() -> None:
    def make() -> Iterator[Any]:
        yield Sum("2 + 3", 5)
        yield {"question": "no answer"}
        yield Sum("1 + 1", 2)

    stream = open_tasks(make, task_type=task_type_of(sums))
    assert isinstance(stream, TaskStream)
    found = [stream.task_of_group(group) for group in range(3)]
    assert [f.task is None for f in found if f] == [False, True, False]
    assert found[1] is not None
    assert "task 1 is no Sum" in found[1].fault
    assert "'answer' is missing" in found[1].fault
