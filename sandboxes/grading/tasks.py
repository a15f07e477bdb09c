"""Code tasks as they stand in files: agentrl's own form, and the rows of the data sets that people train on.

a row ─► load_code_task ─► CodeTask: prompt, tests, public tests, reference, language, prelude
"""

from __future__ import annotations

import builtins
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from agentrl.errors import ConfigError
from agentrl.sandboxes.checked_fields import check_argument, shown
from agentrl.sandboxes.grading.comparison import Comparison
from agentrl.sandboxes.grading.extract import extract_code
from agentrl.sandboxes.grading.task_tests import COMPARISON, Row, comparison, load_tests, paired_tests, read_json
from agentrl.sandboxes.grading.tests import (
    CPP,
    JAVA,
    LANGUAGES,
    PYTHON,
    AssertTest,
    CallTest,
    Checker,
    IOTest,
    Language,
    Test,
    check_limits,
)
from agentrl.sandboxes.grading.verdict import Baseline, check_baseline
from agentrl.sandboxes.sandbox import MB

REFERENCES = ("solution", "reference", "canonical_solution", "code")

PRELUDE = (
    *("typing", "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json"),
)
"""Modules whose names programs for LiveCodeBench and APPS use without importing them."""
_PRELUDE_LINE = (
    "import builtins; exec({imports!r}, imported := {{}}); vars(builtins).update({{**imported, **vars(builtins)}}); "
    "sys.setrecursionlimit(50_000); sys.set_int_max_str_digits(50_000)"
)
_FUTURE = re.compile(r"^from __future__ import (?:\([\w,\s]+\)|[\w, ]+)", re.MULTILINE)

_PRINTS_1 = """import contextlib, io, sys
sys.argv[2:] = sys.argv[:1:-1]
said = io.StringIO()
with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
    exec(compile({source!r}, "checker.py", "exec"), {{"__name__": "__main__"}})
sys.exit(said.getvalue().strip() != "1")
"""
"""A checker of open-r1/codeforces takes input, answer and output, and prints 1 where it accepts."""


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
    prelude: tuple[str, ...] = ()
    """Modules whose names a program may use without importing them."""
    partial: bool = False
    """Whether the reward is a fraction."""
    baseline: Baseline | None = None
    """What programs that do nothing pass, as `agentrl vet` has measured it."""

    def program(self, source: str) -> str:
        """Return a program as it is graded: after one line that imports all of those modules of which it mentions a name.

        They go where builtins are, so that no function of theirs is taken for one that the program defines.
        """
        if not self.prelude or self.language != PYTHON:
            return source
        words = {*re.findall(r"\w+", source)} - {*dir(builtins)}
        used = [name for name in self.prelude if words & _names(name)]
        imports = "; ".join([*(f"from {name} import *" for name in used), f"import {', '.join(['sys', *used])}"])
        line = _PRELUDE_LINE.format(imports=imports)
        return "; ".join([*_FUTURE.findall(source), line]) + "\n" + _FUTURE.sub("pass", source)


@cache
def _names(module: str) -> frozenset[str]:
    names = vars(importlib.import_module(module))
    return frozenset({module, *names.get("__all__", (name for name in names if name[0] != "_"))})


def load_code_task(task: Row, index: int = 0) -> CodeTask:
    """Return a task of any form that is understood, by the fields that it has.

        tests: [...], with prompt, solution, public_tests                                            agentrl, see `load_tests`
        test, entry_point, prompt, canonical_solution                                                HumanEval
        test_list, text or prompt, code, test_setup_code                                             MBPP
        input_output: {"inputs", "outputs", "fn_name"}, question, starter_code, solutions            APPS, TACO, LiveCodeBench
        public_test_cases, private_test_cases, question_content, starter_code, metadata              LiveCodeBench
        public_tests, private_tests, generated_tests: {"input", "output"}, description, solutions    CodeContests
        official_tests: [{"input", "output"}], examples, description, generated_checker              Codeforces (open-r1)

    Each may have `prompt`, `solution`, `language`, `partial`, `baseline`, and for tests that do not say otherwise `tolerance` and
    `limits`, some of those of `Limits`. A field that is null or "" is one that is not there.

    Args:
        task: the task, as it stands in its file.
        index: its index there, which names it where it has no name.

    Raises:
        ConfigError: Something is wrong with it; it says what.
    """
    check_argument("task", task, Mapping[str, Any])
    # A table of tasks has null where a task has no such field, or an empty text.
    task = {key: value for key, value in task.items() if value not in (None, "")}
    form = next((form for key, form in _FORMS.items() if key in task), None)
    if form is None:
        raise ConfigError(
            f"no tests: a task has one of {', '.join(_FORMS)}; this one has {', '.join(sorted(task)[:8]) or 'nothing'}"
        )
    partial, baseline = task.get("partial", False), task.get("baseline")
    check_argument("partial", partial, bool)
    language = LANGUAGES.get(str(task.get("language", "python")).lower())
    if language is None and form is _own:  # in other forms the field may say something else
        raise ConfigError(f"language = {shown(task['language'])} must be one of {', '.join(LANGUAGES)}")
    language = language or PYTHON
    loaded = form({**task, "language": language}, task_name(task, index))
    check_baseline("baseline", baseline, len(loaded.tests))
    limits, tolerance = _limits(task), task.get("tolerance")
    reference = loaded.reference or next((_text(task, key) for key in REFERENCES if key in task), None)
    if reference is not None and reference.lstrip().startswith("```"):
        reference = extract_code(reference, language.names)
    return replace(
        loaded,
        reference=reference,
        language=language,
        partial=partial,
        baseline=baseline,
        tests=tuple(_with_defaults(test, limits, tolerance) for test in loaded.tests),
        public_tests=tuple(_with_defaults(test, limits, tolerance) for test in loaded.public_tests),
    )


def task_name(task: Row, index: int) -> str:
    """Return the name of a task, or else of its index in its file."""
    keys = ("name", "task_id", "problem_id", "question_id", "id")
    return next((str(task[key]) for key in keys if task.get(key) not in (None, "")), f"task {index}")


def _limits(task: Row) -> Row:
    """Return the limits of a task's tests: its own `limits`, and before those the ones of the contest that a row is of."""
    own: Row = task.get("limits", {})
    check_argument("limits", own, Mapping[str, Any])
    check_limits(own)
    seconds, memory_mb = task.get("time_limit"), task.get("memory_limit")
    if isinstance(seconds, Mapping):
        seconds = seconds["seconds"] + seconds["nanos"] / 1e9
    if "memory_limit_bytes" in task:
        memory_mb = task["memory_limit_bytes"] / MB
    of_contest = {"timeout_s": seconds, "memory_mb": int(memory_mb) if isinstance(memory_mb, float) else memory_mb}
    known = {name: value for name, value in of_contest.items() if isinstance(value, int | float) and value > 0}
    return own if "tests" in task else {**known, **own}


def _with_defaults(test: Test, limits: Row, tolerance: Any) -> Test:
    """Return a test with the limits and the tolerance of its task where it has none of its own."""
    changes: dict[str, Any] = {"limits": {**limits, **(test.limits or {})}} if limits else {}
    if tolerance is not None and isinstance(test, IOTest) and test.compare == Comparison():
        changes["compare"] = comparison("the task", tolerance)
    if tolerance is not None and isinstance(test, CallTest) and test.tolerance is None:
        changes["tolerance"] = tolerance
    return replace(test, **changes)


def _own(task: Row, name: str) -> CodeTask:
    tests, public = load_tests(task["tests"]), load_tests(task.get("public_tests", []), "public_tests")
    return CodeTask(name=name, prompt=_text(task, "prompt", ""), tests=tuple(tests), public_tests=tuple(public))


def _humaneval(task: Row, name: str) -> CodeTask:
    if missing := {"prompt", "test"} - task.keys():
        form = f"a task with entry_point is read as HumanEval's, which has {' and '.join(sorted(missing))} too"
        raise ConfigError(f"{form}; give it those, or `tests` of agentrl's own form in place of entry_point")
    prompt = _text(task, "prompt")
    prelude = f"{prompt.rstrip()}\n    pass\n"  # the beginning of a function, of which a comment may be all
    test = AssertTest(code=_text(task, "test"), entry_point=_text(task, "entry_point"), prelude=prelude)
    reference = prompt + task["canonical_solution"] if "canonical_solution" in task else None
    asked = f"Write this Python program to its end.\n\n```python\n{prompt.rstrip()}\n```"
    return CodeTask(name=name, prompt=asked, tests=(test,), reference=reference)


def _mbpp(task: Row, name: str) -> CodeTask:
    prelude = "\n".join([*_texts(task, "test_imports"), _text(task, "test_setup_code", "")]).strip()
    shown_tests = [*_texts(task, "test_list"), *_texts(task, "challenge_test_list")]
    # A builtin's name, such as `sum`, is the program's where the reference defines it.
    own = sorted({*re.findall(r"^(?:def|class) (\w+)", _text(task, "code", ""), re.MULTILINE)} & {*dir(builtins)})

    def made(code: str) -> AssertTest:
        names = tuple(one for one in own if re.search(rf"\b{one}\b", code))
        return AssertTest(code=code, prelude=prelude, candidate_names=names)

    tests = tuple(map(made, [_text(task, "test")] if "test" in task else shown_tests))  # MBPP+ has its full test there
    asked = _text(task, "text", "") or _text(task, "prompt", "")  # as MBPP's sanitized tasks have it
    if not asked or not shown_tests:
        return CodeTask(name=name, tests=tests)
    # Nothing but a test says how the function is called.
    asked = f"{asked}\n\nThis must pass:\n\n```python\n{shown_tests[0]}\n```"
    return CodeTask(name=name, prompt=asked, tests=tests, public_tests=(made(shown_tests[0]),))


def _contest(task: Row, name: str) -> CodeTask:
    """Return the task of a contest's row. It is asked by its own prompt, or by its parts with what the program has to be.

    Raises:
        ConfigError: It is no problem on standard input and output, or a field is wrong.
    """
    if task.get("input_mode", "stdio") != "stdio" or task.get("interaction_format"):
        raise ConfigError("the problem is interactive or reads a file (interaction_format, input_mode); leave it out")
    metadata = read_json(task.get("metadata", {}), "metadata") if "public_test_cases" in task else {}
    check_argument("metadata", metadata, Mapping[str, Any])
    checker, function = task.get("generated_checker"), metadata.get("func_name")
    compare = COMPARISON if checker is None else Checker(source=_PRINTS_1.format(source=checker))
    public, hidden = (
        [
            test
            for key in keys
            if not isinstance(task.get(key), int | None)
            for test in paired_tests(task[key], key, function, compare)
        ]
        for keys in (_PUBLIC, _HIDDEN)
    )
    tests = (*public, *(test for test in hidden if test not in public))
    solutions = read_json(task.get("solutions", []), "solutions")
    if "private_tests" in task and solutions:
        written = zip(solutions["language"], solutions["solution"], strict=True)
        solutions = [code for of, code in written if _CONTEST_LANGUAGES.get(of) == task["language"]]
    check_argument("solutions", solutions, list[str])
    shown_pairs = [f"Input:\n{one['input']}\nOutput:\n{one['output']}" for one in task.get("examples", [])]
    texts = [*(_text(task, key) for key in _PARTS if task.get(key)), *shown_pairs, _text(task, "note", "")]
    language = task["language"].names[0]
    if starter := _text(task, "starter_code", "").strip():
        texts.append(f"```{language}\n{starter}\n```")
    reads = any(isinstance(test, IOTest) for test in tests)
    does = "reads standard input and prints the answer" if reads else "defines the function"
    asked = "\n\n".join([*filter(None, texts), f"Write a program ({language}) that {does}, in one fenced code block."])
    return CodeTask(
        name=name,
        prompt=_text(task, "prompt", "") or (asked if any(texts) else ""),
        tests=tests,
        public_tests=tuple(public),
        reference=next(iter(solutions), None),
        prelude=PRELUDE if {"input_output", "public_test_cases"} & task.keys() else (),
    )


_PUBLIC = ("public_test_cases", "public_tests", "examples")
_HIDDEN = ("input_output", "private_test_cases", "private_tests", "generated_tests", "official_tests")
_PARTS = ("question", "question_content", "description", "input_format", "output_format")
_CONTEST_LANGUAGES = {2: CPP, 3: PYTHON, 4: JAVA}
_FORMS: Mapping[str, Callable[[Row, str], CodeTask]] = {
    "tests": _own,
    "entry_point": _humaneval,
    "test_list": _mbpp,
    **dict.fromkeys(("input_output", "public_test_cases", "private_tests", "official_tests"), _contest),
}
"""By the field that tells each of them from the others, in this order."""


def _text(task: Row, key: str, default: str | None = None) -> str:
    text: str = task.get(key, default)
    check_argument(key, text, str)
    return text


def _texts(task: Row, key: str) -> Sequence[str]:
    texts: Sequence[str] = task.get(key, [])
    check_argument(key, texts, list[str])
    return texts
