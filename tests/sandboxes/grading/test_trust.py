"""How far a pass can be trusted is read from the test's code, or said by its author."""

from __future__ import annotations

import pytest

from agentrl.errors import ConfigError
from agentrl.sandboxes import AssertTest, CallTest, IOTest, Status, Test, TestFile, TestResult, Verdict
from agentrl.sandboxes.grading.trust import Trust, need_of, trust_of

F = "from solution import f\n"
APART: dict[str, Test] = {
    "an assertion": AssertTest(code="assert f(1) == 2"),
    "a check": AssertTest(code="def check(candidate):\n assert candidate(1) == 2", entry_point="f"),
    "a method": AssertTest(code="def check(candidate):\n assert candidate(n=1) == 2", entry_point="Solution().f"),
    "a method begun": AssertTest(code="def check(f): f(1)", entry_point="Solution().f", prelude="class Solution: pass"),
    "a library of the program's": AssertTest(code="assert math.isclose(f(math.pi), 2)"),
    "the result is data": AssertTest(code="assert f('a').upper().split()[0] == 'A' and isinstance(f(1), (int, str))"),
    "the function is passed on": AssertTest(code="assert list(map(f, [1])) == [2]\nassert f(1) == 2"),
    "pytest": TestFile(code=f"import pytest\n{F}def test():\n with pytest.raises(ValueError): f(1)"),
    "parameters": TestFile(code=f"import pytest\n{F}@pytest.mark.parametrize('n', [1])\ndef test(n): assert f(n) == 2"),
    "unittest": TestFile(
        framework="unittest",
        code=f"import unittest\n{F}class T(unittest.TestCase):\n def test(self):\n"
        "  with self.assertRaises(ValueError) as e: f(1)\n  self.assertEqual(e.exception.args[0], 'no')",
    ),
    "own data is changed": AssertTest(code="x = [1]\nx.append(2)\nassert f(x) == 2"),
    "a module": TestFile(code="import solution as s\ndef test(): assert s.f(1) is None"),
    "a module of another name": TestFile(code="from two_fer import f\ndef test(): assert f(1)", module="two_fer"),
    "a class for annotations": AssertTest(
        code="class Node: pass\ndef tree(v) -> Node: return v\ndef check(f): f(tree([1]))",
        prelude="class TreeNode: 1\ndef f(root: TreeNode): 1",
        entry_point="f",
    ),
    "data beside": TestFile(code=f"{F}def test(): assert f(1) == 2", files={"cases.json": "[]"}),
}
INSIDE: dict[str, tuple[str, Test]] = {
    "a class": ("class Stack", AssertTest(code="assert Stack().pop() is None")),
    "a subclass": ("class Base", AssertTest(code="class Own(Base): pass\nassert Own().go() == 1")),
    "a class of another name": ("class Stack", TestFile(code="from solution import Stack as s\ndef test(): s().pop()")),
    "a class in lower case": ("to change", TestFile(code=f"{F}def test():\n s = f()\n s.append(1)\n assert s.pop()")),
    "a fixture of its objects": ("to change", TestFile(code=f"{F}def s(): return f()\ndef test(s): s.append(1)")),
    "a field of its objects": ("to change", AssertTest(code="class TestF:\n def test(self):\n  self.s.append(f(1))")),
    "a default": ("defaultdict", AssertTest(code="from collections import defaultdict\nf(defaultdict(list))")),
    "a warning": ("warns", AssertTest(code="import pytest\nwith pytest.warns(UserWarning): f(1)")),
    "a log": ("assertLogs", TestFile(code=f"{F}class TestF:\n def test(self):\n  with self.assertLogs(): f(1)")),
    "fields with names": ("namedtuple", AssertTest(code="import collections as c\nf(c.namedtuple('P', 'x')(1))")),
    "no end": ("no end", AssertTest(code="for n in f(1):\n if n > 9: break\nassert n == 10")),
    "an object of a library's": ("ChainMap", AssertTest(code="import collections as c\nassert f(c.ChainMap()) == 1")),
    "a context": ("getcontext", AssertTest(code="import decimal\ndecimal.getcontext().prec = 5\nassert f(1)")),
    "a default of a module": ("defaultdict", AssertTest(code="import collections as c\nf(c.defaultdict())")),
    "an exception": ("class Full", AssertTest(code="try: f(1)\nexcept Full: pass")),
    "a constant": ("value LIMIT", TestFile(code="from solution import LIMIT\ndef test(): assert LIMIT == 1")),
    "a loop": ("import of asyncio", TestFile(code=f"import asyncio\n{F}def test(): assert asyncio.run(f(1)) == 2")),
    "async": ("to await", TestFile(code=f"{F}async def test(): assert await f(1) == 2")),
    "a mock": (
        "mock",
        TestFile(code=f"from unittest import mock\n{F}def test():\n with mock.patch('solution.g'): f(1)"),
    ),
    "a fixture": ("tmp_path", TestFile(code=f"{F}def test(tmp_path): f(str(tmp_path))")),
    "an inspection": ("inspect", AssertTest(code="import inspect\nassert inspect.signature(f(1))")),
    "an object": ("attribute name", AssertTest(code="made = f(1)\nassert made.name == 'a'")),
    "a function given": ("give the program a function", AssertTest(code="assert f(lambda x: x) == 1")),
    "a function of a module given": (
        "give the program",
        AssertTest(code="import operator\nassert f(operator.add) == 1"),
    ),
    "a function returned": ("call or enter", AssertTest(code="assert f(1)(2) == 3")),
    "a context manager": ("call or enter", AssertTest(code="with f(1): pass")),
    "a decorator": ("more of the program's f", AssertTest(code="@f\ndef g(): pass\nassert f(g) == 1")),
    "a generator": ("next", AssertTest(code="assert next(f(1)) == 1")),
    "an exit": ("SystemExit", AssertTest(code="try: f(1)\nexcept SystemExit: pass")),
    "an exit wanted": ("SystemExit", AssertTest(code="import pytest\nwith pytest.raises(SystemExit): f(1)")),
    "arrays": ("import of numpy", AssertTest(code="import numpy as np\nassert f(np.ones(2)) == 2")),
    "a prelude": ("class Node", AssertTest(code="def check(f): f(Node)", prelude="class Node: 1", entry_point="f")),
    "identity": ("know an object again", AssertTest(code="x = []\nassert f(x) is x")),
    "a file": ("attribute read", AssertTest(code="f('a')\nassert open('a').read() == ''")),
    "code beside": ("helper.py", TestFile(code=F, files={"helper.py": ""})),
    "no Python": ("to be Python", AssertTest(code="assert (")),
}


@pytest.mark.parametrize("name", APART)
def test_code_that_only_calls_functions_runs_apart(name: str) -> None:
    test = APART[name]
    assert isinstance(test, AssertTest | TestFile)
    assert need_of(test) is None
    assert trust_of(test) is Trust.APART


@pytest.mark.parametrize("name", INSIDE)
def test_code_that_needs_more_runs_inside(name: str) -> None:
    need, test = INSIDE[name]
    assert isinstance(test, AssertTest | TestFile)
    assert need in str(need_of(test))
    assert trust_of(test) is Trust.INSIDE


def test_values_are_compared_outside() -> None:
    assert {trust_of(IOTest()), trust_of(CallTest(function="f"))} == {Trust.OUTSIDE}


def test_the_author_decides() -> None:
    assert trust_of(AssertTest(code="assert f(1) == 2", trust="inside")) is Trust.INSIDE
    assert trust_of(AssertTest(code="assert f(1) == 2", trust="apart")) is Trust.APART
    with pytest.raises(
        ConfigError, match="trust = 'apart' cannot grade test 'of stacks', which needs the program's class Stack"
    ):
        trust_of(AssertTest(code="assert Stack().pop() is None", trust="apart", name="of stacks"))
    with pytest.raises(ConfigError, match="trust = 'outside' must be 'apart' or 'inside'"):
        AssertTest(code="", trust="outside")  # type: ignore[arg-type]


def test_a_verdict_has_the_least_trust_of_its_results() -> None:
    results = [
        TestResult(name="a", status=Status.PASSED, trust=trust) for trust in (Trust.OUTSIDE, Trust.INSIDE, Trust.APART)
    ]
    assert Verdict(results=tuple(results)).trust is Trust.INSIDE
    assert Verdict(results=(results[0], results[2])).trust is Trust.APART
