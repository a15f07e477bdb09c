"""Sets of honest tasks with their solutions, kept as text in `honest/`: exercises with a test file, and problems on standard input."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
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


def cpp_task(problem: dict[str, Any]) -> dict[str, Any]:
    """A problem as a code task in C++."""
    tests = [{"kind": "io", "stdin": given, "stdout": wanted} for given, wanted in problem["tests"]]
    return {"name": f"{problem['name']} in C++", "language": "cpp", "tests": tests, "solution": problem["cpp"]}


def data_set_rows(problem: dict[str, Any]) -> list[dict[str, Any]]:
    """A problem as rows of APPS, TACO, LiveCodeBench, CodeContests and Codeforces have it."""
    inputs, outputs = map(list, zip(*problem["tests"], strict=True))
    sides = {"inputs": inputs, "outputs": outputs}
    first, rest = ({"input": inputs[part], "output": outputs[part]} for part in (slice(0, 1), slice(1, None)))
    cases = [{"input": given, "output": wanted, "testtype": "stdin"} for given, wanted in problem["tests"]]
    packed = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases[1:])))).decode()
    python = problem["python"]
    forms: dict[str, dict[str, Any]] = {
        "APPS": {"question": "?", "input_output": json.dumps(sides), "solutions": json.dumps([python])},
        "TACO": {"question": "?", "input_output": json.dumps({**sides, "fn_name": None}), "solutions": [python], "time_limit": "2 seconds"},
        "LiveCodeBench": {"question_content": "?", "starter_code": "", "public_test_cases": json.dumps(cases[:1]), "private_test_cases": packed,
                          "metadata": "{}", "solution": python},
        "CodeContests": {"description": "?", "public_tests": first, "private_tests": rest, "generated_tests": {"input": [], "output": []},
                         "solutions": {"language": [2, 3], "solution": [problem["cpp"], python]}, "time_limit": {"seconds": 5, "nanos": 0}},
        "Codeforces": {"description": "?", "official_tests": cases, "examples": cases[:1], "time_limit": 5.0, "memory_limit": 256.0, "solution": python},
    }  # fmt: skip
    return [{"name": f"{problem['name']} of {form}", **row} for form, row in forms.items()]
