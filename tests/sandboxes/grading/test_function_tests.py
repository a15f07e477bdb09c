"""From the runs of test code to results: a pass is confirmed or none, and each failure is charged to whoever made it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agentrl.sandboxes import (
    AssertTest,
    BackendName,
    CallTest,
    Limits,
    SandboxPool,
    SandboxSpec,
    TestFile,
    grade,
    open_pool,
)
from tests.sandboxes.rings import gate

pytestmark = pytest.mark.anyio

ALWAYS_EQUAL = "class P:\n def __init__(self, x): pass\n def __eq__(self, other): return True\ndef f(x): return 0"
SPOILS = "def f(x):\n x.append(1)\n return len(x)\ndef g(x): return 0"
UNEARNED = {
    "an equality": (
        ALWAYS_EQUAL,
        "from solution import P, f\ndef test_a(): assert P(1) == P(1)\ndef test_b(): assert f(1) == 1",
        "import unittest\nfrom solution import P, f\nclass T(unittest.TestCase):\n def test_a(self): self.assertEqual(P(1), P(1))\n"
        " def test_b(self): self.assertEqual(f(1), 1)",
    ),
    "an argument": (
        SPOILS,
        "from solution import f, g\ndef test_a():\n x = [1]\n assert f(x) == 2 and x == [1]\ndef test_b(): assert g(1) == 1",
        "import unittest\nfrom solution import f, g\nclass T(unittest.TestCase):\n def test_a(self):\n  x = [1]\n"
        "  self.assertTrue(f(x) == 2 and x == [1])\n def test_b(self): self.assertEqual(g(1), 1)",
    ),
}
SKIPS = """
import unittest
from solution import f
class A(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if {skip}: raise unittest.SkipTest("no")
    def test_a(self): self.assertEqual(f(1), 1)
    def test_c(self): self.assertEqual(f(1), 1)
class B(unittest.TestCase):
    def test_b(self): self.assertEqual(f(2), 2)
"""


@pytest.fixture(scope="module")
async def pool(bubblewrap: BackendName) -> AsyncIterator[SandboxPool]:
    async with open_pool(SandboxSpec(limits=Limits(timeout_s=5, memory_mb=400)), backend=bubblewrap, size=2) as pool:
        yield pool


@pytest.mark.parametrize("name", gate("an argument", of=UNEARNED))
async def test_a_pass_that_is_not_confirmed_is_none(pool: SandboxPool, name: str) -> None:
    """With fail_fast there is no further run once a test has failed, which would show what the other has not earned."""
    source, by_pytest, by_unittest = UNEARNED[name]
    for test in (TestFile(code=by_pytest), TestFile(code=by_unittest, framework="unittest")):
        slow = await grade(source, [test], pool=pool)
        fast = await grade(source, [test], pool=pool, fail_fast=True)
        assert (slow.pass_rate, fast.pass_rate) == (0.0, 0.0), (slow.results, fast.results)
        assert [result.status.value for result in fast.results] == ["not_run", "wrong_answer"]


async def test_what_needs_no_confirmation_has_passed(pool: SandboxPool) -> None:
    code = "from solution import f\ndef test_a(): assert f(1) == 1\ndef test_b(): assert f(2) == 1\ndef test_c(): assert f(3) == 3"
    fast = await grade("def f(x): return x", [TestFile(code=code)], pool=pool, fail_fast=True)
    assert [result.status.value for result in fast.results] == ["passed", "wrong_answer", "not_run"]


@pytest.mark.parametrize("count", [*(pytest.param(few, marks=pytest.mark.soak) for few in (10, 9_000)), 200_000])
async def test_what_a_program_prints_is_no_part_of_its_answer(pool: SandboxPool, count: int) -> None:
    prints = f"import sys\ndef f(x):\n print('a' * {count})\n sys.stderr.write('b' * {count})\n return x"
    call, code = CallTest(function="f", args=[1], expected=1), AssertTest(code="assert f(1) == 1")
    assert (await grade(prints, [call, code], pool=pool)).passed
    raises = f"def f(x):\n print('a' * {count})\n raise KeyError('why')"
    assert (await grade(raises, [call], pool=pool)).results[0].message == "KeyError: 'why'"


NEEDS = {
    "a list that holds itself": "x = [1]\nx.append(x)\nassert f(x) == 1",
    "a list without end in a function": "x = []\nx.append(x)\nassert f([x]) == 1",
    "a Decimal that is too large": "from decimal import Decimal\nassert f(Decimal('1e20000')) == 1",
    "a Fraction that is too long": "from fractions import Fraction\nassert f(Fraction(1, 16 ** 30_000)) == 1",
}


@pytest.mark.parametrize("name", gate("a list that holds itself", of=NEEDS))
async def test_an_argument_that_cannot_pass_is_nobody_s_failure(pool: SandboxPool, name: str) -> None:
    """Nor does our own error satisfy a test that expects one of the program's."""
    code = NEEDS[name]
    expects = f"{code.rpartition('assert')[0]}\ntry:\n {code.rpartition('assert')[2].partition('==')[0]}\nexcept Exception: pass\nelse: assert False"
    for tried in (code, expects):
        verdict = await grade("def f(x): return 1", [AssertTest(code=tried)], pool=pool)
        assert verdict.status == "checker_error", verdict.results


@pytest.mark.soak
@pytest.mark.timeout(120)
async def test_a_program_that_floods_the_tests_has_failed(pool: SandboxPool) -> None:
    """It would rather that its tests could not be graded."""
    source = "def f(x): return 'a' * 7_000_000\ndef g(x): return 0"
    verdict = await grade(source, [AssertTest(code="assert g([f(1)] * 6) == 1")], pool=pool)
    assert verdict.status in ("runtime_error", "output_limit", "wrong_answer"), verdict.results


@pytest.mark.parametrize("skip", [True, pytest.param(False, marks=pytest.mark.soak)])
async def test_the_tests_of_a_class_that_is_skipped_are_none(pool: SandboxPool, skip: bool) -> None:
    test = TestFile(code=SKIPS.format(skip=skip), framework="unittest")
    verdict = await grade("def f(x): return x", [test], pool=pool)
    assert verdict.passed
    assert len(verdict.results) == (1 if skip else 3)
    wrong = await grade("def f(x): return 0", [test], pool=pool)
    assert {result.status.value for result in wrong.results} == {"wrong_answer"}


@pytest.mark.soak
@pytest.mark.timeout(120)
async def test_no_program_chooses_which_class_is_skipped(pool: SandboxPool) -> None:
    source = "import unittest\ndef ready(): raise unittest.SkipTest('no')\ndef f(x): return x if x > 1 else 0"
    code = SKIPS.format(skip=False).replace("from solution import f", "from solution import f, ready")
    code = code.replace('if False: raise unittest.SkipTest("no")', "ready()")
    verdict = await grade(source, [TestFile(code=code, framework="unittest")], pool=pool)
    assert not verdict.passed, verdict.results


@pytest.mark.soak
@pytest.mark.timeout(120)
async def test_long_names_of_the_program_s_cost_the_host_little(pool: SandboxPool) -> None:
    case = "CASES = ['\\U0001f600' * 600_000, 'b' * 5_000, 'b' * 5_000 + 'c']"
    code = "import pytest, solution\n@pytest.mark.parametrize('case', solution.CASES)\ndef test_case(case): assert case"
    verdict = await grade(case, [TestFile(code=code)], pool=pool)
    assert verdict.passed, verdict.results
    names = [result.name for result in verdict.results]
    assert len(set(names)) == 3
    assert max(map(len, names)) < 2_000
