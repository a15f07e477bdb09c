"""Honest programs are rewarded: exercises with classes and exceptions, and problems on standard input in two languages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrl.sandboxes import BackendName, Limits, SandboxSpec, grade, load_code_task, open_pool
from agentrl.system.tasks import in_thread
from agentrl.tasks.tasks import list_tasks
from tests.sandboxes.grading.honest_sets import FOLDER, pytest_exercises, stdin_problems, stdin_task, unittest_exercises


@pytest.mark.soak
def test_every_exercise_is_right_in_plain_python(tmp_path: Path) -> None:
    exercises = [*pytest_exercises().values(), *unittest_exercises().values()]
    assert min(len(pytest_exercises()), len(unittest_exercises())) >= 100
    for index, task in enumerate(exercises):
        solution, tests = f"solution_{index}", task["tests"][0]["code"]
        assert "solution" in tests
        tests = tests.replace("from solution import", f"from {solution} import")
        tests = tests.replace("import solution\n", f"import {solution} as solution\n")
        tests = tests.replace("'solution.", f"'{solution}.").replace('"solution.', f'"{solution}.')
        (tmp_path / f"{solution}.py").write_text(task["solution"])
        (tmp_path / f"test_{index}.py").write_text(tests)
    options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(tmp_path), str(tmp_path)]
    shown = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        capture_output=True,
        text=True,
        timeout=120,
        env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
    )
    assert shown.returncode == 0, shown.stdout[-5000:]


async def not_rewarded(tasks: Iterable[Mapping[str, Any]], backend: BackendName) -> set[str]:
    """The names of the tasks whose own solution does not pass."""
    failed: set[str] = set()

    async def one(content: Mapping[str, Any]) -> None:
        task = load_code_task(content)
        assert task.reference is not None
        verdict = await grade(task.reference, task.tests, pool=pool, language=task.language, fail_fast=True)
        if not verdict.passed:
            failed.add(task.name)

    async with (
        open_pool(SandboxSpec(limits=Limits(timeout_s=10)), backend=backend) as pool,
        anyio.create_task_group() as group,
    ):
        for task in tasks:
            group.start_soon(one, task)
    return failed


@pytest.mark.soak
@pytest.mark.anyio
@pytest.mark.timeout(600)
@pytest.mark.parametrize("exercises", [pytest_exercises, unittest_exercises])
async def test_exercises_in_both_forms(bubblewrap: BackendName, exercises: Any) -> None:
    assert await not_rewarded(exercises().values(), bubblewrap) == set()


@pytest.mark.soak
@pytest.mark.anyio
@pytest.mark.timeout(600)
@pytest.mark.parametrize("language", ["python", "cpp"])
async def test_problems_on_standard_input(bubblewrap: BackendName, language: str) -> None:
    problems = stdin_problems()
    assert len(problems) >= 40
    assert min(len(problem["tests"]) for problem in problems) >= 5
    # Each program of C++ is built first, for a second and more, and all in one way: every third shows that it is.
    chosen = problems[::3] if language == "cpp" else problems
    assert await not_rewarded([stdin_task(problem, language) for problem in chosen], bubblewrap) == set()


@pytest.mark.soak
@pytest.mark.anyio
@pytest.mark.parametrize("name", ["test_lists", "calls"])
async def test_lists_of_assertions_and_of_calls(bubblewrap: BackendName, name: str) -> None:
    tasks = await in_thread(list_tasks, str(FOLDER / f"{name}.jsonl"))
    assert await not_rewarded(tasks, bubblewrap) == set()
