"""Code tasks in the forms that task sets have: agentrl's own, HumanEval's, MBPP's, and that of APPS, TACO and LiveCodeBench."""

from __future__ import annotations

import ast
import builtins
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrl.errors import ConfigError
from agentrl.sandboxes.checked_fields import check_argument, shown
from agentrl.sandboxes.grading.parsed import parsed
from agentrl.sandboxes.grading.task_tests import load_tests
from agentrl.sandboxes.grading.tests import CPP, PYTHON, AssertTest, CallTest, Language, Test, check_limits

LANGUAGES = {"python": PYTHON, "cpp": CPP}
REFERENCE_FIELDS = ("solution", "reference", "canonical_solution", "code")


@dataclass(frozen=True, kw_only=True)
class CodeTask:
    """A task that asks for a program."""

    name: str
    tests: tuple[Test, ...]
    prompt: str = ""
    """What a model is asked; "" where the task does not say."""
    reference: str | None = None
    """A program that passes the tests; None where the task has none."""
    public_tests: tuple[Test, ...] = ()
    """Tests that a model may be shown."""
    language: Language = PYTHON
    partial: bool = False
    """Whether the reward is a fraction."""


def load_code_task(task: Mapping[str, Any], index: int = 0) -> CodeTask:
    """Return a task of any form that is understood.

        {"prompt": "...", "tests": [...], "solution": "...", "public_tests": [...], "language": "cpp", "partial": true}
                                                                                                        agentrl, see `load_tests`
        {"prompt": "def f...", "canonical_solution": "...", "test": "def check...", "entry_point": "f"}     HumanEval
        {"text": "...", "code": "...", "test_list": ["assert ..."], "test_setup_code": "..."}               MBPP
        {"question": "...", "input_output": {"inputs": [...], "outputs": [...]}, "solutions": ["..."]}      APPS, TACO, LiveCodeBench

    Each may have `limits`, some of those of `Limits`, for tests that do not say otherwise, `partial` and `language`. A field that is
    null is one that is not there.

    Args:
        task: the task, as it stands in its file.
        index: its index there, which names it where it has no name.

    Raises:
        ConfigError: Something is wrong with it; it says what.
    """
    check_argument("task", task, Mapping[str, Any])
    # A table of tasks has null where a task has no such field.
    task = {key: value for key, value in task.items() if value is not None}
    named, partial = task.get("language", "python"), task.get("partial", False)
    check_argument("partial", partial, bool)
    language = LANGUAGES.get(named) if isinstance(named, str) else None
    if language is None and "tests" in task:  # in other forms the field may say something else
        raise ConfigError(f"language = {shown(named)} must be one of {', '.join(LANGUAGES)}")
    loaded = replace(_load(task, task_name(task, index)), partial=partial, language=language or PYTHON)
    limits = task.get("limits") or {}
    check_argument("limits", limits, Mapping[str, Any])
    check_limits(limits)
    if not limits:
        return loaded
    return replace(loaded, tests=_limited(loaded.tests, limits), public_tests=_limited(loaded.public_tests, limits))


def _limited(tests: Sequence[Test], limits: Mapping[str, float]) -> tuple[Test, ...]:
    """Return the tests of a task, with its limits where they have none of their own."""
    return tuple(
        replace(test, limits={**limits, **test.limits} if isinstance(test.limits, Mapping) else limits)
        for test in tests
    )


def _load(task: Mapping[str, Any], name: str) -> CodeTask:
    if "tests" in task:
        return _own(task, name)
    if "entry_point" in task and "test" in task:
        return _humaneval(task, name)
    if "test_list" in task:
        return _mbpp(task, name)
    if "input_output" in task:
        return _paired(task, name)
    raise ConfigError(
        "no tests: a task has `tests`, or `test` and `entry_point` (HumanEval), or `test_list` (MBPP), or `input_output` (APPS); "
        f"this one has {', '.join(sorted(task)[:8]) or 'nothing'}"
    )


def task_name(task: Mapping[str, Any], index: int) -> str:
    """Return what a task is called, by itself or else by its index in its file."""
    names = (task[key] for key in ("name", "task_id", "problem_id", "id") if task.get(key) not in (None, ""))
    return str(next(names, f"task {index}"))


def _own(task: Mapping[str, Any], name: str) -> CodeTask:
    return CodeTask(
        name=name,
        prompt=_text(task, "prompt") if "prompt" in task else "",
        tests=tuple(load_tests(task["tests"])),
        reference=next((_text(task, key) for key in REFERENCE_FIELDS if key in task), None),
        public_tests=tuple(load_tests(task.get("public_tests", []), "public_tests")),
    )


def _humaneval(task: Mapping[str, Any], name: str) -> CodeTask:
    prompt = _text(task, "prompt")
    # The beginning of a function, of which a comment may be all.
    prelude = prompt if parsed(prompt) is not None else f"{prompt.rstrip()}\n    pass\n"
    if parsed(prelude) is None:
        raise ConfigError(
            f"prompt = {shown(prompt)} must be the beginning of a program in Python, which its tests import from"
        )
    test = AssertTest(code=_text(task, "test"), entry_point=_text(task, "entry_point"), prelude=prelude)
    solution = prompt + _text(task, "canonical_solution") if "canonical_solution" in task else None
    asked = f"Write this Python program to its end.\n\n```python\n{prompt.rstrip()}\n```"
    return CodeTask(name=name, prompt=asked, tests=(test,), reference=solution)


def _mbpp(task: Mapping[str, Any], name: str) -> CodeTask:
    imports = task.get("test_imports") or []
    prelude = "\n".join([*_texts(imports, "test_imports"), str(task.get("test_setup_code") or "")]).strip()
    assertions = [
        *_texts(task["test_list"], "test_list"),
        *_texts(task.get("challenge_test_list") or [], "challenge_test_list"),
    ]
    reference = _text(task, "code") if "code" in task else None
    shadowed = _defined(reference or "") & {*dir(builtins)}
    tests = tuple(
        AssertTest(code=code, prelude=prelude, candidate_names=tuple(sorted(shadowed & _names(code))))
        for code in assertions
    )
    # Nothing but a test says how the function is called.
    field = "text" if "text" in task else "prompt"  # as MBPP's sanitized tasks have it
    asked = (
        f"{_text(task, field)}\n\nThis must pass:\n\n```python\n{assertions[0]}\n```"
        if field in task and assertions
        else ""
    )
    return CodeTask(name=name, prompt=asked, tests=tests, public_tests=tests[:1] if asked else (), reference=reference)


def _paired(task: Mapping[str, Any], name: str) -> CodeTask:
    pairs, solutions = _json(task["input_output"], "input_output"), _json(task.get("solutions") or "[]", "solutions")
    if not isinstance(pairs, Mapping):
        raise ConfigError(f"input_output is a {type(pairs).__name__}; it holds {{'inputs': [...], 'outputs': [...]}}")
    reference = next(iter(_texts(solutions, "solutions")), None)
    tests = load_tests(pairs)
    if reference is not None and _is_method(reference, str(pairs.get("fn_name"))):
        tests = [replace(test, function=f"Solution.{test.function}") for test in tests if isinstance(test, CallTest)]
    asked = [str(task[key]) for key in ("question", "question_content", "starter_code") if task.get(key)]
    return CodeTask(name=name, prompt="\n\n".join(asked), tests=tuple(tests), reference=reference)


def _is_method(source: str, function: str) -> bool:
    """Return whether a solution has a function as a method of its class Solution, as LeetCode wants it."""
    classes = [node for node in _statements(source) if isinstance(node, ast.ClassDef) and node.name == "Solution"]
    return any(isinstance(node, ast.FunctionDef) and node.name == function for one in classes for node in one.body)


def _defined(source: str) -> set[str]:
    """Return the functions and classes that a program defines."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return {node.name for node in _statements(source) if isinstance(node, kinds)}


def _names(source: str) -> set[str]:
    """Return the names that code uses."""
    nodes = (node for statement in _statements(source) for node in ast.walk(statement))
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def _statements(source: str) -> list[ast.stmt]:
    """Return the statements of a program; none, where Python cannot parse it."""
    tree = parsed(source)
    return [] if tree is None else tree.body


def _text(task: Mapping[str, Any], key: str) -> str:
    value = task.get(key)
    if not isinstance(value, str):
        raise ConfigError(f"{key} = {shown(value)} must be text")
    return value


def _texts(value: Any, key: str) -> Sequence[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"{key} = {shown(value)} must be a list of text")
    return value


def _json(value: Any, key: str) -> Any:
    """Return what a field holds; APPS keeps JSON in a text.

    Raises:
        ConfigError: It is a text that is not JSON.
    """
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{key} is a text that is not JSON: {error}") from None
