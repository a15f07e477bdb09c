"""Tests as they stand in tasks: objects with a kind, or pairs of inputs and outputs."""

from __future__ import annotations

import base64
import io
import json
import pickle
import re
import zlib
from collections.abc import Mapping
from typing import Any, TypeVar

from agentrl.errors import ConfigError
from agentrl.sandboxes.checked_fields import check_argument, shown
from agentrl.sandboxes.grading.comparison import Comparison
from agentrl.sandboxes.grading.tests import AssertTest, CallTest, Checker, IOTest, Test, TestFile

T = TypeVar("T")
Row = Mapping[str, Any]
KINDS: Mapping[str, type[Test]] = {"io": IOTest, "call": CallTest, "assert": AssertTest, "file": TestFile}
COMPARISON = Comparison()
COMPARES = ("exact", "tolerance")
"""Fields of an `io` test that are those of its Comparison."""


def load_tests(content: Any, name: str = "tests") -> list[Test]:
    """Return the tests in a task.

        [{"kind": "io", "stdin": "1 2", "stdout": "3"},
         {"kind": "io", "stdin": "2", "stdout": "1.41421", "tolerance": 1e-4},
         {"kind": "io", "stdin": "2", "stdout": "1.41421", "tolerance": {"absolute": 1e-4, "relative": 0}},
         {"kind": "call", "function": "add", "args": [1, 2], "expected": 3, "limits": {"timeout_s": 2}},
         {"kind": "assert", "code": "assert add(1, 2) == 3"},
         {"kind": "file", "framework": "unittest", "code": "..."}]

    The other fields are those of the tests' classes. For `io`, one of `exact`, `tolerance` and the source of a `checker` says how to
    compare; a tolerance that is a number is absolute and relative, as in `Comparison`.
    {"inputs": [...], "outputs": [...], "fn_name": "add"} is understood too; without fn_name it is of kind `io`.
    `name` is that of the field, for complaints.

    Raises:
        ConfigError: Something is wrong with it; it says what.
    """
    if isinstance(content, Mapping) and "kind" not in content:
        return paired_tests(content, name)
    check_argument(name, content, list[Any] | tuple[Any, ...])
    return [_load_test(f"{name}[{index}]", test) for index, test in enumerate(content)]


def _load_test(where: str, content: Row) -> Test:
    if not isinstance(content, Mapping) or str(content.get("kind")) not in KINDS:
        raise ConfigError(f"{where} = {shown(content)} must be an object with a kind: one of {', '.join(KINDS)}")
    kind = KINDS[str(content["kind"])]
    if kind is IOTest and content.get("stdout") is None and content.get("checker") is None:
        raise ConfigError(
            f"{where} has no field 'stdout', which it needs without a checker; '' where nothing is printed"
        )
    if kind is CallTest and "expected" not in content:
        raise ConfigError(f"{where} has no field 'expected', which it needs; it is null where None is expected")
    # A table of tests has null where a test has no such field.
    test = {key: value for key, value in content.items() if key != "kind" and value is not None}
    if kind is IOTest:
        checker, compare = test.pop("checker", None), {key: test.pop(key) for key in COMPARES if key in test}
        if checker is not None and any(compare.values()):
            raise ConfigError(f"{where} has a checker and {min(compare)}, which are ways to compare; leave one of them")
        made = comparison(where, **compare) if checker is None else _made(where, Checker, {"source": checker})
        test = {"compare": made, **test}
    return _made(where, kind, test)


def comparison(where: str, tolerance: Any = 0.0, **given: Any) -> Comparison:
    """Return a comparison of a task: a tolerance that is a number is absolute and relative.

    Raises:
        ConfigError: A field of it is wrong.
    """
    both = tolerance if isinstance(tolerance, Mapping) else {"absolute": tolerance, "relative": tolerance}
    return _made(where, Comparison, {**given, **both})


def _made(where: str, kind: type[T], given: Row) -> T:
    try:
        return kind(**given)
    except (TypeError, ConfigError) as error:
        raise ConfigError(f"{where}: {error}") from None


def paired_tests(
    content: Any, name: str, function: str | None = None, compare: Comparison | Checker = COMPARISON
) -> list[Test]:
    """Return the tests of inputs and outputs: {"inputs": [...], "outputs": [...]}, the same with "input", or [{"input", "output"}, ...].

    Raises:
        ConfigError: It has another shape.
    """
    tests: list[Test] = []
    content = read_json(content, name)
    try:
        if isinstance(content, Mapping):
            function = function or content.get("fn_name") or None
            sides = [content.get(f"{side}s", content.get(side)) for side in ("input", "output")]
        else:
            sides = [[one[side] for one in content] for side in ("input", "output")]
        pairs = list(zip(*sides, strict=True))
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"{name} = {shown(content)} must hold inputs and outputs, as many of each") from None
    for index, (given, expected) in enumerate(pairs):
        where = f"{name}[{index}]"
        if function is None:  # texts, or lists of their lines
            lines = ["\n".join(map(str, text)) if isinstance(text, list) else text for text in (given, expected)]
            tests.append(_made(where, IOTest, {"stdin": lines[0], "stdout": lines[1], "compare": compare}))
            continue
        call = {"function": function, "args": given, "expected": expected, "wrapped": True}
        if isinstance(given, str):  # LiveCodeBench has a line of JSON for each argument
            args = [read_json(line, where) for line in given.split("\n") if line.strip()]
            call |= {"args": args, "expected": read_json(expected, where), "wrapped": False}
        tests.append(_made(where, CallTest, call))
    return tests


class _TextUnpickler(pickle.Unpickler):  # noqa: S301
    def find_class(self, module: str, name: str) -> Any:  # of which text needs none
        raise pickle.UnpicklingError(f"it holds a {module}.{name}, and text alone is read")


def read_json(value: Any, key: str) -> Any:
    """Return what a field holds. Data sets keep JSON in a text, and LiveCodeBench its private tests packed.

    Raises:
        ConfigError: It is a text that is neither.
    """
    if not isinstance(value, str):
        return value
    try:
        if re.fullmatch(r"[\w+/]{16,}=*", value, re.ASCII) and not value.isdigit():
            value = _TextUnpickler(io.BytesIO(zlib.decompress(base64.b64decode(value)))).load()
        return json.loads(value)
    except (ValueError, TypeError, EOFError, RecursionError, zlib.error, pickle.UnpicklingError) as error:
        raise ConfigError(f"{key} is a text that is not JSON: {error}") from None
