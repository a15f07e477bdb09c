"""Tests as they stand in a task file."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.errors import ConfigError
from agentrl.sandboxes import AssertTest, CallTest, Checker, Exact, Floats, IOTest, TestFile, load_tests


def test_each_kind_of_test() -> None:
    content: list[dict[str, Any]] = [
        {"kind": "io", "stdin": "1", "stdout": "2", "function": None, "args": None, "expected": None},
        {"kind": "io", "stdout": "2", "exact": True},
        {"kind": "io", "stdout": "2", "tolerance": 0.1},
        {"kind": "io", "stdout": "nan", "tolerance": 0.1, "nan_equal": True},
        {"kind": "io", "stdout": "2", "tolerance": {"absolute": 0.1, "relative": 0}},
        {"kind": "io", "stdout": "2", "exact": False, "checker": "import sys"},
        {"kind": "call", "function": "f", "args": [1], "expected": 2, "limits": {"timeout_s": 2}},
        {"kind": "assert", "code": "assert f(1) == 2", "name": "first"},
        {"kind": "file", "code": "", "framework": "unittest"},
    ]
    assert load_tests(content) == [
        IOTest(stdin="1", stdout="2"),
        IOTest(stdout="2", compare=Exact()),
        IOTest(stdout="2", compare=Floats(absolute=0.1, relative=0.1)),
        IOTest(stdout="nan", compare=Floats(absolute=0.1, relative=0.1, nan_equal=True)),
        IOTest(stdout="2", compare=Floats(absolute=0.1, relative=0)),
        IOTest(stdout="2", compare=Checker(source="import sys")),
        CallTest(function="f", args=[1], expected=2, limits={"timeout_s": 2}),
        AssertTest(code="assert f(1) == 2", name="first"),
        TestFile(code="", framework="unittest"),
    ]


def test_pairs_of_inputs_and_outputs() -> None:
    assert load_tests({"inputs": ["1 2", ["3", "4"]], "outputs": ["3\n", ["7"]]}) == [
        IOTest(stdin="1 2", stdout="3\n"),
        IOTest(stdin="3\n4", stdout="7"),
    ]
    assert load_tests({"inputs": [[1, 2]], "outputs": [[3]], "fn_name": "add"}) == [
        CallTest(function="add", args=[1, 2], expected=3)
    ]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ([{"stdin": "1"}], r"tests\[0\] needs a kind: one of io, call, assert, file"),
        ([{"kind": "io", "stdout": ""}, {"kind": "io", "stdinn": ""}], r"tests\[1\] has an unknown field 'stdinn'"),
        ([{"kind": "assert"}], r"tests\[0\] has no field 'code'"),
        ([{"kind": "io", "limits": {"time": 1}}], r"tests\[0\]: limits has an unknown field 'time'; .* timeout_s,"),
        ([{"kind": "io", "limits": {"timeout_s": -1}}], r"tests\[0\]: Limits.timeout_s = -1 must be a number above"),
        ([{"kind": "io", "limits": 3}], r"tests\[0\]: IOTest.limits = 3 must be a Limits or a dict"),
        ([{"kind": "io", "exact": "no"}], r"tests\[0\].exact = 'no' must be True or False"),
        ([{"kind": "io", "tolerance": "1"}], r"tests\[0\].tolerance: Floats.absolute = '1' must be a number"),
        ([{"kind": "io", "nan_equal": True}], r"tests\[0\].nan_equal needs a tolerance"),
        ([{"kind": "io", "exact": True, "tolerance": 1}], r"tests\[0\] has exact and tolerance.*leave one"),
        (
            [{"kind": "io", "tolerance": {"digits": 3}}],
            r"tests\[0\].tolerance has an unknown field 'digits'; .* relative",
        ),
        ([{"kind": "io", "compare": "exact"}], r"unknown field 'compare'; exact, tolerance, checker say"),
        ([{"kind": "io", "input": "1"}], r"unknown field 'input'; it may have stdin, stdout, exact, tolerance, "),
        ([{"kind": "io", "checker": 3}], r"tests\[0\].checker: Checker.source = 3 must be text"),
        ([{"kind": ["io"]}], r"tests\[0\] needs a kind: .*, not \['io'\]"),
        ([{"kind": "call", "function": "f", "args": "12"}], r"tests\[0\]: CallTest.args = '12' must be a list"),
        ([{"kind": "file", "code": "", "framework": "nose"}], r"tests\[0\]: TestFile.framework = 'nose' must be"),
        (["assert 1"], r"tests\[0\] = 'assert 1' must be an object"),
        ("assert 1", "tests = 'assert 1' must be a list"),
        (None, "tests = None must be a list"),
        ({"inputs": 1, "outputs": 2}, "inputs = 1 must be a list"),
        ({"inputs": [1], "outputs": ["1"]}, r"inputs\[0\] = 1 must be text or a list"),
        ({"inputs": [1], "outputs": [1], "fn_name": "f"}, r"inputs\[0\]: CallTest.args = 1 must be a list"),
        ({"inputs": [[1]], "outputs": [1], "fn_name": 3}, r"inputs\[0\]: CallTest.function = 3 must be"),
        ({"inputs": [1], "outputs": []}, "`inputs` and `outputs` of the same length"),
        ({"inputs": [1]}, "`inputs` and `outputs`"),
    ],
)
def test_mistakes_are_named(content: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_tests(content)
