"""The forms in which task sets have their tasks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentrl.errors import ConfigError
from agentrl.sandboxes import CPP, AssertTest, CallTest, IOTest
from agentrl.sandboxes.grading.code_tasks import CodeTask, load_code_task

PAIRS = {"inputs": [[1, 2]], "outputs": [3], "fn_name": "add"}
METHOD = "class Solution:\n    def add(self, a, b): return a + b\n"


@pytest.mark.parametrize(
    ("task", "loaded"),
    [
        (
            {"name": "sum", "prompt": "Print 3.", "tests": [{"kind": "io", "stdout": "3"}], "solution": "print(3)", "partial": True},
            CodeTask(name="sum", prompt="Print 3.", tests=(IOTest(stdout="3"),), reference="print(3)", partial=True),
        ),
        (
            {"tests": [{"kind": "io", "stdout": ""}], "public_tests": [{"kind": "io", "stdin": "1", "stdout": ""}], "language": "cpp"},
            CodeTask(name="task 7", tests=(IOTest(),), public_tests=(IOTest(stdin="1"),), language=CPP),
        ),
        (
            {"task_id": "HumanEval/0", "prompt": "def f():\n", "canonical_solution": "    pass\n", "test": "T", "entry_point": "f"},
            CodeTask(
                name="HumanEval/0",
                prompt="Write this Python program to its end.\n\n```python\ndef f():\n```",
                tests=(AssertTest(code="T", entry_point="f", prelude="def f():\n    pass\n"),),
                reference="def f():\n    pass\n",
            ),
        ),
        (
            {"task_id": 3, "text": "Write f.", "code": "C", "test_list": ["assert f()"], "test_setup_code": "x = 1", "test_imports": ["import math"]},
            CodeTask(
                name="3",
                prompt="Write f.\n\nThis must pass:\n\n```python\nassert f()\n```",
                tests=(AssertTest(code="assert f()", prelude="import math\nx = 1"),),
                public_tests=(AssertTest(code="assert f()", prelude="import math\nx = 1"),),
                reference="C",
            ),
        ),
        (
            {"id": 4, "code": "def sum(a, b): return a + b", "test_list": ["assert sum(1, 2) == max(3, 1)"]},
            CodeTask(
                name="4",
                tests=(AssertTest(code="assert sum(1, 2) == max(3, 1)", candidate_names=("sum",)),),
                reference="def sum(a, b): return a + b",
            ),
        ),
        (
            {"id": 5, "prompt": "Write f.", "test_list": ["assert f()"], "solution": None, "partial": True},
            CodeTask(
                name="5",
                prompt="Write f.\n\nThis must pass:\n\n```python\nassert f()\n```",
                tests=(AssertTest(code="assert f()"),),
                public_tests=(AssertTest(code="assert f()"),),
                partial=True,
            ),
        ),
        (
            {"input_output": json.dumps({"inputs": ["1"], "outputs": ["2"]}), "solutions": json.dumps(["print(2)", "x"])},
            CodeTask(name="task 7", tests=(IOTest(stdin="1", stdout="2"),), reference="print(2)"),
        ),
        (
            {"question": "Add.", "starter_code": "def add(a, b):", "input_output": PAIRS, "solutions": ["def add(a, b): return a + b"]},
            CodeTask(
                name="task 7",
                prompt="Add.\n\ndef add(a, b):",
                tests=(CallTest(function="add", args=[1, 2], expected=3),),
                reference="def add(a, b): return a + b",
            ),
        ),
        (
            {"input_output": PAIRS, "solutions": [METHOD]},
            CodeTask(name="task 7", tests=(CallTest(function="Solution.add", args=[1, 2], expected=3),), reference=METHOD),
        ),
    ],
)  # fmt: skip
def test_each_form(task: dict[str, Any], loaded: CodeTask) -> None:
    assert load_code_task(task, 7) == loaded


def test_a_tasks_limits_are_those_of_its_tests_that_have_none() -> None:
    own: dict[str, Any] = {"kind": "io", "stdout": "", "limits": {"timeout_s": 1}}
    task = load_code_task({"limits": {"timeout_s": 3, "memory_mb": 100}, "tests": [{"kind": "io", "stdout": ""}, own]})
    assert [test.limits for test in task.tests] == [
        {"timeout_s": 3, "memory_mb": 100},
        {"timeout_s": 1, "memory_mb": 100},
    ]


@pytest.mark.parametrize(
    ("task", "complaint"),
    [
        ("x", "task = 'x' must be a dict"),
        ({}, "no tests: a task has `tests`.*this one has nothing"),
        (
            {"tests": [{"kind": "io", "stdout": ""}], "limits": {"seconds": 3}},
            "limits has an unknown field 'seconds'; it may have timeout_s",
        ),
        (
            {"tests": [{"kind": "io", "stdout": ""}], "limits": {"timeout_s": -3}},
            "timeout_s = -3 must be a number above 0",
        ),
        ({"tests": [{"kind": "io", "stdout": ""}], "limits": 3}, "limits = 3 must be a dict"),
        ({"tests": [{"kind": "io", "stdout": ""}], "prompt": 3}, "prompt = 3 must be text"),
        ({"prompt": "p", "x": 1}, "this one has prompt, x"),
        ({"tests": [{"kind": "io", "stdout": ""}], "language": "rust"}, "language = 'rust' must be one of python, cpp"),
        (
            {"tests": [{"kind": "io", "stdout": ""}], "language": ["python"]},
            r"language = \['python'\] must be one of python, cpp",
        ),
        ({"tests": [{"kind": "io", "stdout": ""}], "partial": "no"}, "partial = 'no' must be True or False"),
        ({"tests": None}, "this one has nothing"),
        ({"tests": [{"kind": "io", "stdout": ""}], "public_tests": [3]}, r"public_tests\[0\] = 3 must be an object"),
        ({"tests": [{"kind": "io", "stdout": ""}], "solution": 3}, "solution = 3 must be text"),
        ({"tests": [{"kind": "io", "x": 3}]}, r"tests\[0\] has an unknown field 'x'"),
        ({"tests": [{"kind": "io"}]}, r"tests\[0\] has no field 'stdout', which it needs without a checker"),
        ({"tests": [{"kind": "call", "function": "f"}]}, r"tests\[0\] has no field 'expected'"),
        ({"tests": [], "public_tests": {"kind": "io"}}, "public_tests is one test; it must be a list of tests"),
        (
            {"tests": [{"kind": "io", "checker": "import ("}]},
            r"tests\[0\].checker = 'import \(' must be the text of a Python",
        ),
        (
            {"prompt": "def f(:", "test": "T", "entry_point": "f"},
            "prompt = 'def f\\(:' must be the beginning of a program",
        ),
        ({"prompt": None, "test": "T", "entry_point": "f"}, "prompt = None must be text"),
        ({"test_list": "assert f()"}, "test_list = 'assert f\\(\\)' must be a list of text"),
        ({"input_output": "{"}, "input_output is a text that is not JSON"),
        ({"input_output": [1]}, "input_output is a list"),
        ({"input_output": {"inputs": [1], "outputs": []}}, "`inputs` and `outputs` of the same length"),
        ({"input_output": PAIRS, "solutions": {"a": 1}}, "solutions = .* must be a list of text"),
    ],
)
def test_mistakes_are_named(task: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_code_task(task)
