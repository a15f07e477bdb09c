"""Tests as they stand in a task file: JSON objects, or the `input_output` of APPS, TACO and LiveCodeBench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from agentrl.errors import ConfigError
from agentrl.sandboxes.comparison import Exact, Floats
from agentrl.sandboxes.protocol import Limits
from agentrl.sandboxes.verdict import AssertTest, CallTest, Checker, IOTest, Test, TestFile

_KINDS: dict[str, type[IOTest] | type[CallTest] | type[AssertTest] | type[TestFile]] = {
    "io": IOTest,
    "call": CallTest,
    "assert": AssertTest,
    "file": TestFile,
}


def load_tests(content: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> list[Test]:
    """The tests in a task. Raises ConfigError that names what is wrong.

        [{"kind": "io", "stdin": "1 2", "stdout": "3"},
         {"kind": "io", "stdin": "2", "stdout": "1.41421 nan", "tolerance": 1e-4, "nan_equal": true},
         {"kind": "call", "function": "add", "args": [1, 2], "expected": 3, "limits": {"timeout_s": 2}},
         {"kind": "assert", "code": "assert add(1, 2) == 3"},
         {"kind": "file", "framework": "unittest", "code": "..."}]

    The other fields are those of the tests' classes. For `io`, `exact` or `tolerance` or the source of a `checker` says how to
    compare; `nan_equal`, beside a tolerance, whether nan is right where nan is expected. {"inputs": [...], "outputs": [...], "fn_name": "add"} is understood too; without fn_name it is of kind `io`.
    """
    if isinstance(content, Mapping):
        return _paired_tests(content)
    return [_load_test(index, dict(test)) for index, test in enumerate(content)]


def _load_test(index: int, test: dict[str, Any]) -> Test:
    kind = _KINDS.get(test.pop("kind", None) or "")
    where = f"tests[{index}]"
    if kind is None:
        raise ConfigError(f"{where} needs a kind: one of {', '.join(_KINDS)}")
    if isinstance(test.get("limits"), Mapping):
        try:
            test["limits"] = Limits(**test["limits"])
        except TypeError as error:
            raise ConfigError(f"{where}.limits: {error}") from None
    if kind is IOTest:
        if test.pop("exact", False):
            test["compare"] = Exact()
        if (tolerance := test.pop("tolerance", None)) is not None:
            nan_equal = test.pop("nan_equal", False)
            test["compare"] = Floats(absolute=tolerance, relative=tolerance, nan_equal=nan_equal)
        if (checker := test.pop("checker", None)) is not None:
            test["compare"] = Checker(source=checker)
    unknown = test.keys() - {field.name for field in fields(kind)}
    if unknown:
        raise ConfigError(f"{where} has an unknown field {sorted(unknown)[0]!r}")
    try:
        return kind(**test)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}") from None


def _paired_tests(content: Mapping[str, Any]) -> list[Test]:
    try:
        pairs = list(zip(content["inputs"], content["outputs"], strict=True))
    except (KeyError, ValueError, TypeError) as error:
        raise ConfigError(f"tests need `inputs` and `outputs` of the same length: {error!r}") from None
    function = content.get("fn_name")
    if function is None:
        return [IOTest(stdin=_text(given), stdout=_text(expected)) for given, expected in pairs]
    # APPS wraps a single value that is returned in a list of one.
    return [CallTest(function=function, args=given, expected=_unwrapped(expected)) for given, expected in pairs]


def _text(lines: str | Sequence[str]) -> str:
    return lines if isinstance(lines, str) else "\n".join(map(str, lines))


def _unwrapped(expected: Any) -> Any:
    return expected[0] if isinstance(expected, list) and len(expected) == 1 else expected
