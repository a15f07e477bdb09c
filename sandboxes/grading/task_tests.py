"""Tests as they stand in a task file: JSON objects, or the `input_output` of APPS, TACO and LiveCodeBench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from agentrl.errors import ConfigError
from agentrl.sandboxes.checked_fields import Values, check_argument, shown
from agentrl.sandboxes.grading.comparison import Exact, Floats
from agentrl.sandboxes.grading.parsed import parsed
from agentrl.sandboxes.grading.tests import AssertTest, CallTest, Checker, IOTest, Test, TestFile

T = TypeVar("T", bound=Values)
_KINDS: dict[str, type[IOTest] | type[CallTest] | type[AssertTest] | type[TestFile]] = {
    "io": IOTest,
    "call": CallTest,
    "assert": AssertTest,
    "file": TestFile,
}
_COMPARES = ("exact", "tolerance", "checker")
"""Fields of a task's test that say how its output is compared, one of them."""
NOTHING_INSTEAD: Mapping[str, Sequence[str]] = {}


def load_tests(content: Sequence[Mapping[str, Any]] | Mapping[str, Any], name: str = "tests") -> list[Test]:
    """Return the tests in a task.

        [{"kind": "io", "stdin": "1 2", "stdout": "3"},
         {"kind": "io", "stdin": "2", "stdout": "1.41421 nan", "tolerance": 1e-4, "nan_equal": true},
         {"kind": "io", "stdin": "2", "stdout": "1.41421", "tolerance": {"absolute": 1e-4, "relative": 0}},
         {"kind": "call", "function": "add", "args": [1, 2], "expected": 3, "limits": {"timeout_s": 2}},
         {"kind": "assert", "code": "assert add(1, 2) == 3"},
         {"kind": "file", "framework": "unittest", "code": "..."}]

    The other fields are those of the tests' classes. For `io`, one of `exact`, `tolerance` and the source of a `checker` says how to
    compare, and without any the same words are wanted, whatever the space between them; a tolerance that is a number is absolute
    and relative, as in `Floats`; `nan_equal`, beside a tolerance, says that nan is right where nan is expected.
    {"inputs": [...], "outputs": [...], "fn_name": "add"} is understood too; without fn_name it is of kind `io`.
    `name` is that of the field, for complaints.

    Raises:
        ConfigError: Something is wrong with it; it says what.
    """
    if isinstance(content, Mapping) and "kind" in content:
        raise ConfigError(f"{name} is one test; it must be a list of tests")
    if isinstance(content, Mapping):
        return _paired_tests(content)
    check_argument(name, content, Sequence[Any])
    return [_load_test(f"{name}[{index}]", test) for index, test in enumerate(content)]


def _load_test(where: str, content: Mapping[str, Any]) -> Test:
    if not isinstance(content, Mapping):
        raise ConfigError(f"{where} = {shown(content)} must be an object, such as {{'kind': 'io', ...}}")
    # A table of tests has null where a test has no such field; None is expected where somebody says so.
    test = {key: value for key, value in content.items() if value is not None or key == "expected"}
    named = test.pop("kind", None)
    kind = _KINDS.get(str(named))
    if kind is None:
        raise ConfigError(
            f"{where} needs a kind: one of {', '.join(_KINDS)}" + (f", not {shown(named)}" if named else "")
        )
    if kind is not CallTest and test.get("expected", False) is None:
        del test["expected"]
    if kind is IOTest:
        return _load_io_test(where, test)
    if kind is AssertTest and isinstance(test.get("candidate_names"), list):
        test["candidate_names"] = tuple(test["candidate_names"])
    made = _made(where, kind, test)
    if kind is CallTest and "expected" not in test:
        raise ConfigError(f"{where} has no field 'expected', which it needs; it is null where None is expected")
    return made


def _load_io_test(where: str, test: dict[str, Any]) -> IOTest:
    if "compare" in test:
        raise ConfigError(f"{where} has an unknown field 'compare'; {', '.join(_COMPARES)} say how to compare")
    compares = {name: test.pop(name) for name in (*_COMPARES, "nan_equal") if test.get(name) is not None}
    check_argument(f"{where}.exact", compares.get("exact", False), bool)
    chosen = [name for name in _COMPARES if compares.get(name, False) is not False]
    if len(chosen) > 1:
        raise ConfigError(f"{where} has {' and '.join(chosen)}, which are ways to compare; leave one of them")
    if "nan_equal" in compares and chosen != ["tolerance"]:
        raise ConfigError(f"{where}.nan_equal needs a tolerance beside it")
    if chosen == ["exact"]:
        test["compare"] = Exact()
    elif chosen == ["tolerance"]:
        tolerance, nan_equal = compares["tolerance"], compares.get("nan_equal", False)
        given = tolerance if isinstance(tolerance, Mapping) else {"absolute": tolerance, "relative": tolerance}
        test["compare"] = _made(f"{where}.tolerance", Floats, {"nan_equal": nan_equal, **given})
    elif chosen == ["checker"]:
        test["compare"] = _made(f"{where}.checker", Checker, {"source": compares["checker"]})
        if parsed(compares["checker"]) is None:
            raise ConfigError(f"{where}.checker = {shown(compares['checker'])} must be the text of a Python program")
    made = _made(where, IOTest, test, instead={"compare": (*_COMPARES, "nan_equal")})
    if "stdout" not in test and chosen != ["checker"]:
        raise ConfigError(
            f"{where} has no field 'stdout', which it needs without a checker; '' where nothing is printed"
        )
    return made


def _made(
    where: str, kind: type[T], given: Mapping[str, Any], instead: Mapping[str, Sequence[str]] = NOTHING_INSTEAD
) -> T:
    """Return a value of these fields.

    `instead`: the fields that a task has in place of one.

    Raises:
        ConfigError: They are wrong; it says where they stand.
    """
    known = fields(kind)
    if unknown := sorted(map(str, given.keys() - {field.name for field in known})):
        names = [name for field in known for name in instead.get(field.name, [field.name])]
        raise ConfigError(f"{where} has an unknown field {unknown[0]!r}; it may have {', '.join(names)}")
    for field in known:
        if field.name not in given and field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"{where} has no field {field.name!r}, which it needs")
    try:
        return kind(**given)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _paired_tests(content: Mapping[str, Any]) -> list[Test]:
    if missing := {"inputs", "outputs"} - content.keys():
        raise ConfigError(f"tests that are a dict need `inputs` and `outputs`, and this one has no {min(missing)!r}")
    inputs, outputs = content["inputs"], content["outputs"]
    for name in ("inputs", "outputs"):
        check_argument(name, content[name], Sequence[Any])
    if len(inputs) != len(outputs):
        raise ConfigError(f"tests need `inputs` and `outputs` of the same length, not {len(inputs)} and {len(outputs)}")
    function = content.get("fn_name")
    if function is None:
        return [
            IOTest(stdin=_text(f"inputs[{index}]", given), stdout=_text(f"outputs[{index}]", expected))
            for index, (given, expected) in enumerate(zip(inputs, outputs, strict=True))
        ]
    # APPS wraps a single value that is returned in a list of one.
    return [
        _made(f"inputs[{index}]", CallTest, {"function": function, "args": given, "expected": _unwrapped(expected)})
        for index, (given, expected) in enumerate(zip(inputs, outputs, strict=True))
    ]


def _text(where: str, lines: str | Sequence[str]) -> str:
    check_argument(where, lines, str | Sequence[Any])
    return lines if isinstance(lines, str) else "\n".join(map(str, lines))


def _unwrapped(expected: Any) -> Any:
    return expected[0] if isinstance(expected, list) and len(expected) == 1 else expected
