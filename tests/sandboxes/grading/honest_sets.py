"""Sets of honest tasks with their solutions, kept as text in `honest/`: exercises with a test file, and problems on standard input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.sandboxes.grading.unittest_form import as_unittest

FOLDER = Path(__file__).parent / "honest"


def pytest_exercises() -> dict[str, dict[str, Any]]:
    """Code tasks whose test is a pytest file, by name."""
    return {
        name: {"name": name, "tests": [{"kind": "file", "code": code}], "solution": solution}
        for file in sorted(FOLDER.glob("pytest_exercises_*.txt"))
        for name, (solution, code) in _sections(file).items()
    }


def unittest_exercises() -> dict[str, dict[str, Any]]:
    """The same exercises with their tests in unittest's form, but for those that need what only pytest has."""
    found = {}
    for name, task in pytest_exercises().items():
        if (code := as_unittest(task["tests"][0]["code"])) is not None:
            found[name] = {**task, "tests": [{"kind": "file", "framework": "unittest", "code": code}]}
    return found


def _sections(file: Path) -> dict[str, list[str]]:
    """The parts of each section: "=== name", then parts that lines of "---" divide."""
    found: dict[str, list[str]] = {}
    for section in file.read_text().split("=== ")[1:]:
        name, _, content = section.partition("\n")
        assert name not in found, name
        found[name] = [part.strip("\n") + "\n" for part in content.split("\n---\n")]
    return found


def stdin_problems() -> list[dict[str, Any]]:
    """Problems that read and print, each with solutions in Python and in C++: {"name", "tests": [[stdin, stdout], ...], "python", "cpp"}."""
    return [json.loads(line) for line in (FOLDER / "stdin_problems.jsonl").read_text().splitlines()]


def stdin_task(problem: dict[str, Any], language: str) -> dict[str, Any]:
    """A problem as a code task in one of its languages."""
    tests = [{"kind": "io", "stdin": given, "stdout": wanted} for given, wanted in problem["tests"]]
    return {
        "name": f"{problem['name']} in {language}",
        "language": language,
        "tests": tests,
        "solution": problem[language],
    }
