"""What a user makes is checked where it is made."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from agentrl import sandboxes
from agentrl.errors import ConfigError
from agentrl.sandboxes import AssertTest, CallTest, Checker, Comparison, IOTest, Language, Limits, SandboxSpec, TestFile

OURS = {"CodeTask", "ExecResult", "TestResult", "Verdict"}
"""Values that a user is given, and never makes."""
RIGHT: dict[type, dict[str, Any]] = {
    Language: {"file": "main.rs", "run": ("./main",)},
    Checker: {"source": "import sys"},
    IOTest: {},
    CallTest: {"function": "f"},
    AssertTest: {"code": "assert 1"},
    TestFile: {"code": "def test(): pass"},
    Limits: {},
    SandboxSpec: {},
    Comparison: {},
}


def test_every_value_that_a_user_makes_is_here() -> None:
    public = [getattr(sandboxes, name) for name in sandboxes.__all__]
    values = {one.__name__ for one in public if isinstance(one, type) and dataclasses.is_dataclass(one)}
    assert {kind.__name__ for kind in RIGHT} == values - OURS


@pytest.mark.parametrize("kind", RIGHT, ids=lambda kind: kind.__name__)
def test_a_value_of_a_wrong_type_is_named(kind: type) -> None:
    kind(**RIGHT[kind])
    for field in dataclasses.fields(kind):
        if field.name != "expected":  # of a CallTest, which may be anything
            with pytest.raises(ConfigError, match=rf"{kind.__name__}\.{field.name} = <object.* must be"):
                kind(**RIGHT[kind] | {field.name: object()})


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), float("-inf"), 10**10, 10**400])
def test_a_limit_is_above_zero_and_finite(value: float) -> None:
    for field in dataclasses.fields(Limits):
        with pytest.raises(ConfigError, match=rf"Limits\.{field.name} = .* must be "):
            Limits(**{field.name: value})


@pytest.mark.parametrize(
    ("kind", "given", "complaint"),
    [
        (Comparison, {"absolute": -1}, "Comparison.absolute = -1 must be greater than or equal to 0"),
        (Comparison, {"relative": float("nan")}, "Comparison.relative = nan must be"),
        (CallTest, {"function": ""}, "CallTest.function = '' must be the name of a function"),
        (CallTest, {"function": "f(1)"}, "CallTest.function = 'f\\(1\\)' must be the name of a function"),
        (
            IOTest,
            {"compare": "exact"},
            "IOTest.compare = 'exact' must be an instance of Comparison or an instance of Checker",
        ),
        (Language, {"run": "./main"}, "Language.run = './main' must be a valid tuple"),
        (TestFile, {"framework": "nose"}, "TestFile.framework = 'nose' must be 'unittest' or 'pytest'"),
        (SandboxSpec, {"limits": {"memory_mb": 1}}, "SandboxSpec.limits = .* must be an instance of Limits"),
        (Limits, {"memory_mb": True}, "Limits.memory_mb = True must be a valid integer"),
        (TestFile, {"module": "a.b"}, "TestFile.module = 'a.b' must be one name"),
        (TestFile, {"files": {"a": 1}}, "TestFile.files = .*, whose 1 must be a valid string or a valid bytes"),
    ],
)
def test_a_value_without_sense_is_named(kind: type, given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        kind(**RIGHT[kind] | given)
