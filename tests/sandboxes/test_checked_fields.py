"""What a user makes is checked where it is made."""

from __future__ import annotations

import dataclasses
import timeit
from typing import Any

import pytest

from agentrl import sandboxes
from agentrl.errors import ConfigError
from agentrl.sandboxes import (
    AssertTest,
    CallTest,
    Checker,
    Comparison,
    IOTest,
    Language,
    Limits,
    SandboxSpec,
    TestFile,
)

OURS = {"CodeBlock", "CodeTask", "ExecResult", "SessionResult", "PoolMetrics", "RunSandboxes", "TestResult", "Verdict"}
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
VALUES = (
    object(),
    "text",
    b"bytes",
    1,
    1.5,
    True,
    None,
    ["a"],
    ("a",),
    {"a": "b"},
    {1: 2},
    int,
    Limits(),
    Comparison(),
)
ANYTHING = {"expected"}


def allowed(field: str, default: Any) -> tuple[Any, ...]:
    """Which of VALUES a field takes, written down by hand."""
    by_name: dict[str, tuple[Any, ...]] = {
        "args": (["a"], ("a",)),
        "kwargs": ({"a": "b"},),
        "files": ({"a": "b"},),
        "candidate_names": (["a"], ("a",)),
        "folders": (),  # text is no pair of folders
        "run": (("a",),),
        "build": (("a",),),
        "compare": (Comparison(),),
        "framework": (),
        "argument": (None,),  # 1 is beyond no args
        "tolerance": (1, 1.5, None),
        "trust": (None,),
        "nan_equal": (True,),
        "exact": (True,),
        "wrapped": (True,),
        "names": (("a",),),
        "network": (True,),
        "entry_point": ("text", None),
        "runtime": ("text", None),
        "language": (),
        "limits": (Limits(),) if isinstance(default, Limits) else (None,),
        "cpu_s": (1, 1.5, None),
    }
    if field in by_name:
        return by_name[field]
    if field in ("file", "source", "stdin", "stdout", "name", "function", "code", "prelude", "module", "image"):
        return ("text",)
    if field in ("memory_mb", "disk_mb", "file_mb", "processes", "open_files"):
        return (1,)
    assert field in ("build_timeout_s", "timeout_s", "output_mb", "cpus", "absolute", "relative"), field
    return (1, 1.5)


def test_every_value_that_a_user_makes_is_here() -> None:
    public = [getattr(sandboxes, name) for name in sandboxes.__all__]
    values = {one.__name__ for one in public if isinstance(one, type) and dataclasses.is_dataclass(one)}
    assert {kind.__name__ for kind in RIGHT} == values - OURS


FIELDS = [(kind, field.name) for kind in RIGHT for field in dataclasses.fields(kind) if field.name not in ANYTHING]


@pytest.mark.parametrize(("kind", "field"), FIELDS, ids=lambda part: part if isinstance(part, str) else part.__name__)
def test_a_value_of_a_wrong_type_is_named(kind: type, field: str) -> None:
    right = kind(**RIGHT[kind])
    taken = allowed(field, getattr(right, field))
    for value in VALUES:
        if any(value is one or (type(value) is type(one) and value == one) for one in taken):
            kind(**RIGHT[kind] | {field: value})
        else:
            with pytest.raises(ConfigError, match=rf"{kind.__name__}\.{field} "):
                kind(**RIGHT[kind] | {field: value})


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), float("-inf"), 10**10, 10**400])
def test_a_limit_is_above_zero_and_finite(value: float) -> None:
    for field in dataclasses.fields(Limits):
        with pytest.raises(ConfigError, match=rf"Limits\.{field.name} = .* must be .*number above 0"):
            Limits(**{field.name: value})


@pytest.mark.parametrize(
    ("kind", "given", "complaint"),
    [
        (Comparison, {"absolute": -1}, "Comparison.absolute = -1 must be a number of at least 0"),
        (Comparison, {"relative": float("nan")}, "Comparison.relative = nan must be"),
        (CallTest, {"tolerance": float("inf")}, "CallTest.tolerance = inf must be"),
        (CallTest, {"function": ""}, "CallTest.function = '' must be the name of a function"),
        (CallTest, {"function": "f(1)"}, "CallTest.function = 'f\\(1\\)' must be the name of a function"),
        (CallTest, {"args": [1], "argument": 1}, "CallTest.argument = 1 must be one of its 1 args, from 0 on"),
        (CallTest, {"args": [1], "argument": -1}, "CallTest.argument = -1 must be one of its 1 args"),
        (AssertTest, {"entry_point": ""}, "AssertTest.entry_point = '' must be"),
        (IOTest, {"compare": Comparison}, "IOTest.compare = <class .*Comparison'> must be a Comparison"),
        (Language, {"run": "./main"}, "Language.run = './main' must be a tuple of text"),
        (SandboxSpec, {"folders": (("/opt/x",),)}, "SandboxSpec.folders = .* must be a tuple of \\(text, text\\)"),
        (TestFile, {"framework": "nose"}, "TestFile.framework = 'nose' must be 'unittest' or 'pytest'"),
        (TestFile, {"module": "a.b"}, "TestFile.module = 'a.b' must be one name"),
        (TestFile, {"files": {"a": 1}}, "TestFile.files = .* must be a dict of text to text or bytes"),
    ],
)
def test_a_value_without_sense_is_named(kind: type, given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        kind(**RIGHT[kind] | given)


@pytest.mark.soak
def test_what_is_made_by_the_thousand_is_made_quickly() -> None:
    makers = [
        lambda: IOTest(stdin="1 2", stdout="3"),
        lambda: CallTest(function="f", args=[1, 2], expected=3),
        lambda: TestFile(code="x", files={"a": "b", "c": "d"}),
        lambda: Limits(timeout_s=2),
    ]
    for make in makers:
        # A few millionths of a second; the bound is for a busy machine.
        assert min(timeit.repeat(make, number=200, repeat=5)) / 200 < 1e-4
