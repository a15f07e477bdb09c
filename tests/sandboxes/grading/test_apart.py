"""Test code that only calls functions runs apart from the program: plain data passes, and nothing else."""

from __future__ import annotations

import pytest

from agentrl.sandboxes import AssertTest, CallTest, Limits, SandboxPool, Test, TestFile, grade
from agentrl.sandboxes.grading.trust import Trust
from tests.sandboxes.grading.trials import all_kinds_of_tests

pytestmark = pytest.mark.anyio


async def test_every_kind_of_test_of_a_function_is_unforgeable(pool: SandboxPool) -> None:
    verdict = await grade(
        "def add(a, b): return a + b\nif __name__ == '__main__': print(add(*map(int, input().split())))",
        all_kinds_of_tests(),
        pool=pool,
    )
    assert verdict.passed, verdict.results
    assert verdict.trust is Trust.APART


PASSES = {
    "in place": ("def f(x): x.sort()", "x = [2, 1]\nf(x)\nassert x == [1, 2]"),
    "a set and a dict in place": (
        "def f(x, y): x.add(1); y['a'] = 2",
        "x, y = set(), {}\nf(x, y)\nassert (x, y) == ({1}, {'a': 2})",
    ),
    "a deque, a bytearray and a named argument in place": (
        "def f(x, y, *, z): x.append(1); y[0] = 98; z.sort()",
        "from collections import deque\nx, y, z = deque(), bytearray(b'a'), [2, 1]\nf(x, y, z=z)\n"
        "assert (x, y, z) == (deque([1]), bytearray(b'b'), [1, 2])",
    ),
    "in place, and a value": (
        "def f(x):\n x.sort()\n return x.pop()",
        "x = [3, 1, 2]\nassert (f(x), f(x)) == (3, 2)\nassert x == [1]",
    ),
    "a generator": ("def f(n): yield from range(n)", "assert list(f(3)) == [0, 1, 2]"),
    "a Counter": (
        "from collections import Counter\ndef f(x): return Counter(x)",
        "assert f('aab')['z'] == 0 and f('aab') == {'a': 2, 'b': 1}",
    ),
    "an exception": (
        "def f(x): raise KeyError('gone')",
        "try: f(1)\nexcept KeyError as e: assert e.args == ('gone',)\nelse: assert False",
    ),
    "the base of an exception": (
        "class Own(ValueError): pass\ndef f(x): raise Own('no')",
        "try: f(1)\nexcept ValueError as e: assert str(e) == 'no'",
    ),
    "an exception with a text of its own": (
        "class Own(Exception):\n def __str__(self): return f'needs {self.args[0]}'\ndef f(x): raise Own(5)",
        "import pytest\nwith pytest.raises(Exception, match='needs 5'): f(1)",
    ),
    "a range without an end in sight": ("def f(r): return r[-1]", "assert f(range(10**12)) == 10**12 - 1"),
    "iterators and ranges": (
        "def f(x, *, y): return next(x), next(x), y.step, sum(y)",
        "assert f((n for n in (1, 2)), y=range(0, 5, 2)) == (1, 2, 2, 6)",
    ),
    "of JSON": (
        "import json\nf = json.loads",
        "import pytest\nwith pytest.raises(ValueError, match='Expecting'): f('{')",
    ),
    "a method of Solution": ("class Solution:\n def f(self, x): return x + 1", "assert f(1) == 2"),
    "a module of the program's": ("import math\ndef f(x): return math.pi", "assert math.isclose(f(1), math.pi)"),
    "named arguments": ("def f(x, *, times=1): return x * times", "assert f('a', times=2) == 'aa'"),
    "a program that prints": ("print('at load')\ndef f(x):\n print('{\"ok\": 3}')\n return x", "assert f(1) == 1"),
    "a program that reads": ("import sys\ndef f(x): return sys.stdin.read()", "assert f(1) == ''"),
}


@pytest.mark.parametrize("name", PASSES)
async def test_functions_are_as_in_plain_python(pool: SandboxPool, name: str) -> None:
    source, code = PASSES[name]
    verdict = await grade(source, [AssertTest(code=code, trust="apart")], pool=pool)
    assert verdict.passed, verdict.results


FAILS = {
    "an object": ("def f(x): return object()", "try: assert f(1) == 1\nexcept BaseException: pass", "wrong_answer"),
    "a subclass": ("class One(int): pass\ndef f(x): return One(1)", "assert f(1) == 1", "wrong_answer"),
    "an object in a list": ("def f(x): return [object()]", "assert f(1)", "wrong_answer"),
    "without end": ("def f(x):\n while True: yield 1", "assert f(1)", "wrong_answer"),
    "an exit": ("import os\ndef f(x): os._exit(0)", "try: f(1)\nexcept BaseException: pass", "runtime_error"),
    "SystemExit": ("def f(x): raise SystemExit(0)", "try: f(1)\nexcept BaseException: pass", "runtime_error"),
    "a hang": ("def f(x):\n while True: pass", "try: f(1)\nexcept BaseException: pass", "time_limit"),
    "too much memory": ("def f(x): return len(bytearray(b'x') * 10**9)", "assert f(1)", "runtime_error"),
    "too much data": ("def f(x): return 'a' * 9_000_000", "assert f(1)", "wrong_answer"),
    "another name": ("def g(x): return x", "assert f(1) == 1", "runtime_error"),
    "no Python": ("def f(x: return x", "assert f(1) == 1", "runtime_error"),
    "a builtin of its own": ("def len(x): return 1\ndef f(x): return x", "assert len(f([])) == 1", "wrong_answer"),
}


@pytest.mark.parametrize("name", FAILS)
async def test_what_fails_a_call_fails_its_test(pool: SandboxPool, name: str) -> None:
    source, code, status = FAILS[name]
    (result,) = (await grade(source, [AssertTest(code=code, trust="apart")], pool=pool)).results
    assert result.status == status, result


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(x): return object()", "an object of class object, which is not plain data"),
        ("def f(x):\n while True: yield 1", "an iterator of more than 10,000 items, which may have no end"),
    ],
)
async def test_what_cannot_pass_has_a_remedy(pool: SandboxPool, source: str, message: str) -> None:
    (result,) = (await grade(source, [AssertTest(code="assert f(1)")], pool=pool)).results
    assert result.message == f"the program gives {message}; if right, use trust = 'inside'"


@pytest.mark.parametrize(
    ("test", "message"),
    [
        (AssertTest(code="assert f(made) == 1", prelude="made = object()", trust="apart"), "trust = 'inside'"),
        (AssertTest(code="import no_such_module\nassert f(1) == 1"), "no_such_module"),
        (TestFile(code="from solution import f\nimport json.nosuch\ndef test(): assert f(1)"), "nosuch"),
        (AssertTest(code="assert f(1)", prelude="import os\nos._exit(0)"), "ended before it was done"),
    ],
)
async def test_what_is_the_tests_own_fault_is_nobody_s(pool: SandboxPool, test: Test, message: str) -> None:
    (result,) = (await grade("def f(x): return 1", [test], pool=pool)).results
    assert (result.status, message in result.message) == ("checker_error", True), result


async def test_a_test_that_loses_the_program_costs_no_other_test(pool: SandboxPool) -> None:
    source = "import os\ndef f(n):\n if n == 1: os._exit(0)\n while n == 2: pass\n return n"
    code = (
        "import pytest\nfrom solution import f\n@pytest.mark.parametrize('n', range(4))\ndef test(n): assert f(n) == n"
    )
    verdict = await grade(source, [TestFile(code=code)], pool=pool, limits=Limits(timeout_s=0.3))
    assert [result.status.value for result in verdict.results] == ["passed", "runtime_error", "time_limit", "passed"]


async def test_a_call_is_compared_outside(pool: SandboxPool) -> None:
    source = "class Solution:\n def g(self, x): return x\ndef f(x): return x\ndef big(n): return [0] * n"
    names = ("f", "g", "Solution.g", "Solution().g", "Solution.f")
    tests = [
        *(CallTest(function=name, args=[1], expected=1) for name in names),
        CallTest(function="f", args=[10**5000], expected=10**5000),
        CallTest(function="big", args=[10**6], expected=0),
        CallTest(function="f", args=[[1.5, float("nan")]], expected=[1.5, float("nan")]),
    ]
    verdict = await grade(source, tests, pool=pool)
    assert [result.passed for result in verdict.results] == [True] * 6 + [False, True], verdict.results
    assert verdict.trust is Trust.OUTSIDE
