"""Workflows that run what a model writes: from a reply to a reward."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrl.config import RunConfig
from agentrl.engine.client import sglang_engine
from agentrl.episode import Episode
from agentrl.proxy import ChatFormat, SamplingDefaults, open_proxy
from agentrl.rollout.episode_parts import open_run_sandboxes
from agentrl.rollout.run_episode import local_runner, remote_runner
from agentrl.rollout.workflow import Workflow
from agentrl.sandboxes import BackendName
from agentrl.store.outcome import Outcome
from agentrl.testing import ScriptedModel, ToolCall
from agentrl.workflows import code, python_tool

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
CONFIG = RunConfig.model_validate({"sandbox": {"backend": "bubblewrap"}, "rollout": {"max_concurrent": 2}})
TASK = {
    "prompt": "Print the sum of two numbers.",
    "public_tests": [{"kind": "io", "stdin": "1 2", "stdout": "3"}],
    "tests": [{"kind": "io", "stdin": "1 2", "stdout": "3"}, {"kind": "io", "stdin": "-1 1", "stdout": "0"}],
}
RIGHT = "```python\nprint(sum(map(int, input().split())))\n```"


async def outcome_of(
    workflow: Workflow, script: Callable[[list[dict[str, Any]]], Any], task: dict[str, Any]
) -> Outcome:
    async with (
        ScriptedModel(lambda request: script(request["messages"])).serve() as url,
        open_run_sandboxes(CONFIG) as sandboxes,
        remote_runner(
            workflow, base_url=url, api_key="-", model="scripted", timeout_s=60, sandboxes=sandboxes
        ) as runner,
    ):
        return await runner.run(task, 0)


ONCE = {"trust_outside": 1.0, "trust_apart": 0.0, "trust_inside": 0.0, "attempts": 1.0}


@pytest.mark.parametrize(
    ("reply", "reward", "metrics"),
    [
        (RIGHT, 1.0, {"has_code": 1.0, "tests_passed": 1.0, "ran": 1.0, **ONCE}),
        ("```python\nprint(3)\n```", 0.0, {"has_code": 1.0, "tests_passed": 0.5, "ran": 1.0, **ONCE}),
        pytest.param(
            "```python\nprint(\n```",
            0.0,
            {"has_code": 1.0, "tests_passed": 0.0, "ran": 0.0, **ONCE},
            marks=pytest.mark.soak,
        ),
        ("I would rather not.", 0.0, {"has_code": 0.0, "attempts": 1.0}),
    ],
)
async def test_a_reply_is_graded(bubblewrap: BackendName, reply: str, reward: float, metrics: dict[str, float]) -> None:
    outcome = await outcome_of(code.run, lambda _: reply, TASK)
    assert (outcome.reason, outcome.reward, outcome.metrics) == ("finished", reward, metrics)


async def test_what_the_verdict_said_and_the_program_are_kept_with_the_episode(bubblewrap: BackendName) -> None:
    outcome = await outcome_of(code.run, lambda _: "```python\nprint(3)\n```", TASK)
    details = json.loads(outcome.details or "")
    first, second = details["verdict"].pop("tests")
    assert details == {
        "verdict": {"passed": 1, "of": 2, "trust": "outside", "output": ""},
        "program": "print(3)",
    }
    assert first == {"name": "test 1", "passed": True, "message": ""}
    assert (second["name"], second["passed"]) == ("test 2", False)
    assert second["message"]
    outcome = await outcome_of(code.run, lambda _: "I would rather not.", TASK)
    assert json.loads(outcome.details or "") == {"program": None}


async def test_a_task_of_another_catalogue_is_asked_and_graded(bubblewrap: BackendName) -> None:
    task = {"text": "Add two numbers.", "test_list": ["assert add(1, 2) == 3", "assert add(2, 2) == 4"]}
    asked: list[Any] = []

    def script(messages: list[dict[str, Any]]) -> str:
        asked.append(messages[-1]["content"])
        return "```python\ndef add(a, b): return a + b\n```"

    outcome = await outcome_of(code.run, script, task)
    assert outcome.reward == 1.0
    assert "Add two numbers." in asked[0]
    assert "add(1, 2)" in asked[0]
    assert "add(2, 2)" not in asked[0]
    without = await outcome_of(code.run, script, {"tests": TASK["tests"]})
    assert not without.finished
    assert "there is no prompt" in str(without.error)


@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_test_that_cannot_be_graded_fails_the_episode_and_pays_no_0(
    bubblewrap: BackendName, attempts: int
) -> None:
    broken = {"kind": "io", "name": "third", "stdin": "1 2", "checker": "import nosuch"}
    task = {**TASK, "tests": [*TASK["tests"], broken], "attempts": attempts}
    outcome = await outcome_of(code.run, lambda _: RIGHT, task)
    assert not outcome.finished
    assert "third cannot be graded: the checker failed, with exit code 3" in str(outcome.error)


async def test_a_deadline_that_is_over_fails_the_episode_and_pays_no_0(
    bubblewrap: BackendName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["agentrl.sandboxes.grading.grade"], "default_deadline_s", lambda *_: 0.5)
    outcome = await outcome_of(code.run, lambda _: "```python\nimport time\ntime.sleep(60)\n```", TASK)
    assert not outcome.finished
    assert "test 1 cannot be graded: the verdict's deadline was over" in str(outcome.error)


async def test_a_row_of_a_data_set_is_graded_with_the_imports_that_it_counts_on(bubblewrap: BackendName) -> None:
    row = {"question": "Add.", "input_output": {"fn_name": "add", "inputs": [[[1, 2]]], "outputs": [[3]]}}
    reply = "```python\nclass Solution:\n    def add(self, numbers: List[int]) -> int:\n        return reduce(operator.add, numbers)\n```"
    assert (await outcome_of(code.run, lambda _: reply, row)).reward == 1.0


async def test_a_baseline_of_the_task_is_what_is_paid_by(bubblewrap: BackendName) -> None:
    task = {**TASK, "partial": True, "baseline": [0.75, 0.0]}
    outcome = await outcome_of(code.run, lambda _: "```python\nprint(3)\n```", task)
    assert outcome.reward == pytest.approx(0.2)


async def test_the_model_sees_what_failed_and_tries_again(bubblewrap: BackendName) -> None:
    seen: list[list[dict[str, Any]]] = []

    def script(messages: list[dict[str, Any]]) -> str:
        seen.append(messages)
        return ["Hm.", "```python\nprint(7)\n```", "```python\nprint(\n```", RIGHT][len(seen) - 1]

    outcome = await outcome_of(code.run, script, {**TASK, "attempts": 5})
    assert outcome.reward == 1.0
    assert outcome.metrics["attempts"] == 4
    told = [message["content"] for message in seen[-1] if message["role"] == "user"][1:]
    assert told[0] == "There is no program in your reply. Write it in one fenced code block."
    assert told[1] == "1 of 1 tests fail. Try again.\n- test 1: wrong_answer. word 1 is '7', expected '3'"
    assert "SyntaxError" in told[2]
    # The hidden tests are in no message.
    assert "-1 1" not in json.dumps(seen)
    outcome = await outcome_of(code.run, lambda _: "```python\nprint(3)\n```", {**TASK, "attempts": 3})
    assert (outcome.reward, outcome.metrics["attempts"]) == (0.0, 1.0)


async def test_a_python_tool_keeps_its_state(bubblewrap: BackendName, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["agentrl.sandboxes.python_session"], "INTERRUPT_GRACE_S", 30)
    results: list[str] = []

    def script(messages: list[dict[str, Any]]) -> str | dict[str, Any]:
        results[:] = [message["content"] for message in messages if message["role"] == "tool"]
        codes = [
            "import os\nx = 6\nos.system('echo hi')\nprint('set')",
            "x * 7",
            "undefined",
            "import time\ntime.sleep(100)",
            "x",
            "import os\nos._exit(3)",
            "x",
        ]
        if len(results) < len(codes):
            code = codes[len(results)]
            monkeypatch.setattr(python_tool, "TIMEOUT_S", 0.3 if "sleep" in code else 60)
            return ToolCall("python", json.dumps({"code": code}))
        return "So it is \\boxed{42}."

    outcome = await outcome_of(python_tool.run, script, {"question": "6 times 7?", "answer": "42"})
    assert outcome.reward == 1.0
    assert outcome.metrics == {"turns": 8.0, "failed_turns": 0.0, "truncated": 0.0}
    assert results[0] == "hi\nset"
    assert results[1] == "42"
    assert results[2].startswith("Traceback (most recent call last):")
    assert results[2].endswith("NameError: name 'undefined' is not defined")
    assert results[3] == "[timed out]"
    assert results[4] == "6"
    assert results[5].startswith("[the interpreter ended: exit code 3")
    assert results[5].endswith("[the interpreter was restarted: variables are lost]")
    assert "NameError" in results[6]


async def test_calls_that_make_no_sense_are_answered(bubblewrap: BackendName) -> None:
    results: list[str] = []

    def script(messages: list[dict[str, Any]]) -> str | dict[str, Any]:
        results[:] = [message["content"] for message in messages if message["role"] == "tool"]
        calls = [("python", "not json"), ("shell", '{"code": "1"}'), ("python", '{"code": 1}')]
        return ToolCall(*calls[len(results)]) if len(results) < len(calls) else "#### 5"

    outcome = await outcome_of(python_tool.run, script, {"question": "?", "answer": "#### 42"})
    assert outcome.reward == 0.0
    assert outcome.metrics["failed_turns"] == 3.0
    assert [result.startswith("error: ") for result in results] == [True] * 3


@pytest.mark.soak
async def test_on_the_real_engine(bubblewrap: BackendName, server_url: str, nano_format: ChatFormat) -> None:
    """The nano model writes no programs: its episodes finish, with a record and without a reward."""
    tasks = [
        (code.run, TASK),
        (code.run, {**TASK, "attempts": 2}),
        (python_tool.run, {"question": "1 + 1 =", "answer": "no number", "max_turns": 2}),
    ]
    async with (
        sglang_engine([server_url]) as engine,
        open_proxy(engine, nano_format, "nano") as proxy,
        open_run_sandboxes(CONFIG) as sandboxes,
    ):
        for workflow, task in tasks:
            defaults = SamplingDefaults(max_tokens=16)
            async with local_runner(workflow, proxy, timeout_s=60, defaults=defaults, sandboxes=sandboxes) as runner:
                outcome = await runner.run(task, 0)
            assert outcome.reason == "finished", outcome.error
            assert outcome.reward == 0.0
            assert outcome.record.turns


@pytest.mark.soak
async def test_a_sandbox_goes_back_whatever_becomes_of_the_episode(bubblewrap: BackendName) -> None:
    """More episodes than sandboxes, which fail, hang or finish: none of them keeps a sandbox."""

    async def workflow(episode: Episode) -> float:
        sandbox = await episode.sandbox()
        assert (await sandbox.run(["ls"])).stdout == b""
        await sandbox.write("left.txt", "behind")
        if episode.seed % 3 == 0:
            raise ValueError("no")
        if episode.seed % 3 == 1:
            await sandbox.run(["sleep", "1000"], timeout_s=1000)
        return 1.0

    async with (
        ScriptedModel(lambda _: "").serve() as url,
        open_run_sandboxes(CONFIG) as sandboxes,
        remote_runner(workflow, base_url=url, api_key="-", model="m", timeout_s=5, sandboxes=sandboxes) as runner,
    ):
        outcomes: dict[int, Outcome] = {}

        async def one(seed: int) -> None:
            outcomes[seed] = await runner.run({}, seed)

        for start in range(0, 6, 2):
            async with anyio.create_task_group() as tasks:
                for seed in range(start, start + 2):
                    tasks.start_soon(one, seed)
        for seed, outcome in outcomes.items():
            expected = ["ValueError: no", "EpisodeTimeoutError", None][seed % 3]
            assert (expected in (outcome.error or "")) if expected else outcome.reward == 1.0, outcome
        assert sandboxes.metrics()["sandbox_taken"] == 6


async def test_an_episode_without_sandboxes_says_so() -> None:
    async def workflow(episode: Episode) -> float:
        await episode.sandbox()
        return 1.0

    async with (
        ScriptedModel(lambda _: "").serve() as url,
        remote_runner(workflow, base_url=url, api_key="-", model="m", timeout_s=60) as runner,
    ):
        outcome = await runner.run({}, 0)
    assert "this episode was made without sandboxes" in (outcome.error or "")
