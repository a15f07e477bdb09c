"""`check_workflow` passes sound workflows, and names what is wrong with each of these others."""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrl import Episode, Reward
from agentrl.errors import CheckFailedError, TaskFileError, UsageError, WorkflowError
from agentrl.testing import Request, ScriptedModel, check_workflow
from agentrl.workflows import calculator, chat

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
SUM: dict[str, Any] = {"question": "2 + 3 =", "answer": "5"}
QUESTION = {"prompt": "What is 6 times 7?", "answer": "42", "scorer": "number"}


@pytest.fixture
def slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that is busy, a short step of the event loop takes long by the clock, and so does the end of an episode."""
    for name in ("BLOCKED_AFTER_S", "CANCEL_TIMEOUT_S"):
        monkeypatch.setattr(sys.modules["agentrl.testing.check_workflow"], name, 60)


async def ask(episode: Episode[Any], messages: list[Any]) -> str:
    reply = await episode.client.chat.completions.create(model=episode.model, messages=messages)
    return reply.choices[0].message.content or ""


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


@dataclass
class Question:
    prompt: str


async def typed(episode: Episode[Question]) -> float:
    return float(await ask(episode, user(episode.task.prompt)) == "42")


@pytest.mark.parametrize(
    ("workflow", "task"),
    [
        (calculator.run, SUM),
        pytest.param(chat.run, QUESTION, marks=pytest.mark.soak),
        (typed, Question("6 * 7")),
    ],
)
@pytest.mark.usefixtures("slow_steps")
async def test_sound_workflows_pass(workflow: Any, task: Any) -> None:
    await check_workflow(workflow, [task])


async def test_a_workflow_is_checked_by_the_path_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "flow.py"
    path.write_text("from agentrl.workflows.calculator import run\n")
    await check_workflow(path, [SUM])


async def never_calls(episode: Episode) -> float:
    return 1.0


async def returns_text(episode: Episode) -> Any:
    return await ask(episode, user("?"))


async def returns_nan(episode: Episode) -> Reward:
    await ask(episode, user("?"))
    return Reward(float("nan"))


async def raises(episode: Episode) -> float:
    return {"yes": 1.0}[await ask(episode, user("?"))]


async def forgets_to_await(episode: Episode) -> float:
    asked = ask(episode, user("?"))
    try:
        return float(asked.strip())  # type: ignore[attr-defined]
    finally:
        asked.close()


async def is_not_repeatable(episode: Episode) -> float:
    await ask(episode, user(f"Think of {random.random()}."))
    return 1.0


async def edits_its_history(episode: Episode) -> float:
    text = ""
    for turn in range(3):
        text = await ask(episode, user(f"Turn {turn}. You said: {text}"))
    return 1.0


async def blocks(episode: Episode) -> float:
    await ask(episode, user("?"))
    end = time.thread_time() + 1
    while time.thread_time() < end:
        pass
    return 1.0


async def never_ends(episode: Episode) -> float:
    while True:
        try:
            await ask(episode, user("?"))
        except BaseException:
            await anyio.sleep(0)
        else:
            return 1.0


@pytest.mark.parametrize(
    ("workflow", "complaint"),
    [
        (never_calls, "never called the model"),
        pytest.param(returns_text, r"failed: .*BadRewardError.*\n.*return a finite float", marks=pytest.mark.soak),
        (returns_nan, r"failed: .*BadRewardError.*\n.*return a finite float"),
        (raises, r"failed: KeyError: '42'\n.*return a reward"),
        (forgets_to_await, r"'coroutine' object has no attribute 'strip'\n.*write `await` before the call"),
        (is_not_repeatable, r"gave other messages the second time\n.*episode.seed"),
        (edits_its_history, r"none of its 3 calls goes on from an earlier one(.|\n)*independent_calls=True"),
    ],
)
@pytest.mark.usefixtures("slow_steps")
async def test_what_is_wrong_is_named_with_its_remedy(workflow: Any, complaint: str) -> None:
    with pytest.raises(CheckFailedError, match=complaint) as caught:
        await check_workflow(workflow, [QUESTION])
    assert str(caught.value).startswith(f"the workflow {workflow.__name__} has 1 problem:\n1. ")


@pytest.mark.parametrize(
    ("workflow", "bound", "seconds", "complaint"),
    [
        (blocks, "BLOCKED_AFTER_S", 0.5, r"test_check_workflow.py:\d+ in blocks blocks the event loop"),
        (never_ends, "CANCEL_TIMEOUT_S", 1.5, r"does not end when it is cancelled: (.|\n)*test_check_workflow.py:\d+"),
    ],
)
@pytest.mark.usefixtures("slow_steps")
async def test_what_keeps_others_waiting_is_named(
    workflow: Any, bound: str, seconds: float, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["agentrl.testing.check_workflow"], bound, seconds)
    with pytest.raises(CheckFailedError, match=complaint):
        await check_workflow(workflow, [QUESTION])


@pytest.mark.usefixtures("slow_steps")
async def test_calls_that_are_meant_to_be_apart_are_fine() -> None:
    await check_workflow(edits_its_history, [QUESTION], independent_calls=True)


@pytest.mark.usefixtures("slow_steps")
async def test_a_script_of_the_users_own_says_what_they_want_to_see() -> None:
    def shy(request: Request) -> str:
        return ""

    with pytest.raises(CheckFailedError, match="failed: KeyError: ''"):
        await check_workflow(raises, [QUESTION], model=ScriptedModel(shy))


async def test_what_cannot_be_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskFileError, match="task 0 is no Question"):
        await check_workflow(typed, [{"question": "?"}])
    with pytest.raises(WorkflowError, match="does not exist"):
        await check_workflow(tmp_path / "nothing.py", [QUESTION])


async def test_what_is_no_workflow_or_has_no_task_is_refused() -> None:
    def plain(episode: Episode[Any]) -> float:
        return 1.0

    with pytest.raises(WorkflowError, match="the workflow is not async"):
        await check_workflow(plain, [SUM])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="tasks is empty, so nothing would be checked"):
        await check_workflow(typed, [])
