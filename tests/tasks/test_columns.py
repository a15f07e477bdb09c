"""Rows of a data set with names of its own become tasks of a workflow: GSM8K's with `workflows/chat.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anyio.to_thread import run_sync as in_thread

import agentrl
from agentrl.config import RunConfig
from agentrl.errors import TaskFileError
from agentrl.tasks.curriculum import open_run_tasks
from agentrl.tasks.tasks import TaskStream
from agentrl.testing import ScriptedModel
from agentrl.workflows import chat

pytestmark = pytest.mark.anyio
ROWS = [
    {"question": "Ann has 3 bags of 14 apples. How many?", "answer": "3 * 14 = <<3*14=42>>42.\n#### 42"},
    {
        "question": "A car costs $1,000 and a tyre $200. Both?",
        "answer": "1000 + 200 = <<1000+200=1200>>1200.\n#### 1,200",
    },
]
"""In GSM8K's form."""


@pytest.fixture
def saved(tmp_path: Path) -> str:
    import datasets

    rows = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"train": rows, "test": rows.select([1])}).save_to_disk(tmp_path / "gsm8k")
    return f"hf:{tmp_path}/gsm8k"


def config_of(**data: Any) -> RunConfig:
    return RunConfig.model_validate({"data": data})


async def test_gsm8k_is_asked_and_scored_by_chat(saved: str) -> None:
    settings = {"columns": {"prompt": "question"}, "fields": {"scorer": "number"}}
    config = RunConfig.model_validate({"tasks": saved, "eval": {"tasks": f"{saved}@test"}, "data": settings})
    tasks, held_out = await in_thread(open_run_tasks, config, None)
    expected = [{"scorer": "number", "prompt": row["question"], "answer": row["answer"]} for row in ROWS]
    assert getattr(tasks, "tasks") == expected  # noqa: B009
    assert held_out == expected[1:]
    assert (await chat.score("It is 3 * 14, so 42.", expected[0])).value == 1.0
    assert (await chat.score("It is 3 * 13, so 39.", expected[0])).value == 0.0
    assert (await chat.score("That is $1200.00", expected[1])).value == 1.0


async def test_an_evaluation_has_them_too(saved: str) -> None:
    def answer(request: dict[str, Any]) -> str:
        return "42" if "apples" in request["messages"][-1]["content"] else "7"

    config = RunConfig.model_validate(
        {
            "model": {"path": "scripted"},
            "data": {"columns": {"prompt": "question"}, "fields": {"scorer": "number"}},
            "eval": {"samples": 1},
        }
    )
    async with ScriptedModel(answer).serve() as url:
        result = await agentrl.evaluate(config, workflow=chat.run, tasks=saved, base_url=url, api_key="-")
    assert result.mean_reward == 0.5


def test_what_a_task_says_itself_stays(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"q": "?", "prompt": "old", "scorer": "exact", "n": 1}) + "\n")
    config = config_of(columns={"prompt": "q", "text": "q"}, fields={"scorer": "number", "level": 2})
    tasks, _ = open_run_tasks(config.model_copy(update={"tasks": str(path)}), None)
    assert getattr(tasks, "tasks") == [{"prompt": "?", "text": "?", "scorer": "exact", "n": 1, "level": 2}]  # noqa: B009


def test_a_missing_column_is_named() -> None:
    complaint = r"task 1 has no column 'question', which `data.columns.prompt` names; it has answer, q"
    rows = [ROWS[0], {"q": "?", "answer": "1"}]
    with pytest.raises(TaskFileError, match=complaint):
        open_run_tasks(config_of(columns={"prompt": "question"}), rows)

    def stream() -> Iterator[dict[str, Any]]:
        yield from [*rows, ROWS[1]]

    tasks, _ = open_run_tasks(config_of(columns={"prompt": "question"}), stream)
    assert isinstance(tasks, TaskStream)
    found = [tasks.task_of_group(group_id) for group_id in range(3)]
    assert [one is not None and one.task is not None for one in found] == [True, False, True]
    assert found[1] is not None
    assert "has no column 'question'" in found[1].fault
