"""Partial credit: nothing for a program that does nothing, all for one that passes all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.sandboxes import (
    AssertTest,
    CallTest,
    IOTest,
    SandboxPool,
    Status,
    Test,
    TestFile,
    TestResult,
    grade,
)
from agentrl.sandboxes.grading.grade import measured_baseline
from agentrl.sandboxes.grading.partial_credit import (
    do_nothing_programs,
    partial_credit,
    stubs,
)

SUBLIST = TestFile(
    code="""
import pytest
from solution import EQUAL, SUBLIST, sublist, is_sorted

def test_empty(): assert sublist([], []) == EQUAL
def test_part(): assert sublist([1], [1, 2]) == SUBLIST
def test_differ(): assert EQUAL != SUBLIST
def test_sorted(): assert is_sorted([1, 2])
def test_unsorted(): assert not is_sorted([2, 1])
def test_not_a_list():
    with pytest.raises(TypeError): is_sorted(3)
"""
)
RIGHT = """
EQUAL, SUBLIST, OTHER = 0, 1, 2
def sublist(a, b): return EQUAL if a == b else SUBLIST if str(a)[1:-1] in str(b) else OTHER
def is_sorted(items): return sorted(items) == items
"""
HALF = "EQUAL = SUBLIST = 0\ndef sublist(a, b): return 0\ndef is_sorted(items): return sorted(items) == items"


def result(passed: bool, name: str = "test", test_index: int = 0) -> TestResult:
    return TestResult(name=name, status=Status.PASSED if passed else Status.WRONG_ANSWER, test_index=test_index)


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.data())
def test_credit_is_exact_and_grows_with_what_passes(free: list[bool], data: st.DataObject) -> None:
    passed = data.draw(st.lists(st.booleans(), min_size=len(free), max_size=len(free)))
    more = [one or data.draw(st.booleans()) for one in passed]
    baseline = [{f"test {index + 1}": float(one)} for index, one in enumerate(free)]
    nothing, credit, greater, full = (
        partial_credit([result(one, f"test {index + 1}", index) for index, one in enumerate(run)], baseline)
        for run in (free, passed, more, [True] * len(free))
    )
    earnable = free.count(False)
    assert nothing == 0.0
    assert credit == (sum(p and not f for p, f in zip(passed, free, strict=True)) / earnable if earnable else 0.0)
    assert credit <= greater <= full == float(earnable > 0)


def test_a_file_that_no_longer_loads_has_no_fewer_tests() -> None:
    functions = dict.fromkeys("abcd", 0.0)
    assert partial_credit([result(False, "the file")], [functions]) == 0
    # Nor do the tests of a file that loads with a real solution alone count as one.
    assert partial_credit([result(True, name) for name in "abcd"], [{"the file": 0.0}]) == 1
    assert partial_credit([result(name == "a", name) for name in "abcd"], [{"the file": 0.0}]) == 0.25


@given(st.integers(1, 500), st.integers(0, 500))
def test_a_program_does_not_choose_how_many_tests_there_are(own: int, passing: int) -> None:
    """A file has three functions, and one that runs with whatever the program says."""
    runs = [result(False, name) for name in "abc"] + [result(index < passing, f"test[{index}]") for index in range(own)]
    assert partial_credit(runs, [dict.fromkeys([*"abc", "test"], 0.0)]) == pytest.approx(min(passing / own, 1) / 4)


def test_stubs_define_what_tests_want() -> None:
    code = "import pytest, solution\nfrom solution import Stack, push as put\n\ndef test():\n    assert put(Stack.of()) == solution.size()"
    tests: list[Test] = [
        IOTest(),
        TestFile(code=code),
        CallTest(function="Solution.sum"),
        AssertTest(code="def check(candidate): assert candidate(1)", entry_point="found"),
        AssertTest(code="assert root(2) == LIMIT"),
    ]
    space: dict[str, object] = {}
    exec(stubs(tests, "return 7"), space)
    assert {"Stack", "push", "size", "Solution", "found", "root"} <= space.keys()
    assert not {"pytest", "candidate", "put"} & space.keys()
    exec("seen = push(Stack(1)), Stack(2).top(), Solution().sum([1])", space)
    assert (space["seen"], space["LIMIT"]) == ((7, 7, 7), None)


@pytest.mark.anyio
async def test_programs_that_do_nothing_earn_nothing(pool: SandboxPool) -> None:
    async def credit(source: str, tests: list[Test]) -> float | None:
        return (await grade(source, tests, pool=pool, partial=True)).fraction

    tests: list[Test] = [SUBLIST]
    nothing = do_nothing_programs(tests)
    rates = {name: (await grade(source, tests, pool=pool)).pass_rate for name, source in nothing.items()}
    assert rates["stubs"] >= 2 / 6
    assert [await credit(source, tests) for source in nothing.values()] == [0.0, 0.0, 0.0]
    assert await credit(RIGHT, tests) == 1
    assert await credit(HALF, tests) == 2 / 3
    calls: list[Test] = [CallTest(function="f", args=[n], expected=n if n else None) for n in range(3)]
    assert await credit("def f(x): return x or None", calls) == 1
    assert await credit("def f(x): return 1", calls) == 0.5


@pytest.mark.anyio
async def test_a_baseline_is_measured_once_or_read_from_the_task(pool: SandboxPool) -> None:
    tests = [CallTest(function="f", args=[1], expected=None), CallTest(function="f", args=[2], expected=2)]
    assert await measured_baseline(tests, pool, pool.spec.limits) == [{"test 1": 1.0}, {"test 2": 0.0}]
    taken = pool.metrics.taken
    assert (await grade("def f(x): return 2", tests, pool=pool, partial=True)).fraction == 1
    assert pool.metrics.taken == taken + 1
    known = [{"test 1": 0.0}, {"test 2": 0.0}]
    assert (await grade("def f(x): return 2", tests, pool=pool, partial=known)).fraction == 0.5
    assert pool.metrics.taken == taken + 2


@pytest.mark.anyio
async def test_a_task_with_nothing_left_to_earn_is_refused(pool: SandboxPool) -> None:
    tests = [AssertTest(code="assert not f(1)"), CallTest(function="f", args=[2], expected=None)]
    with pytest.raises(ConfigError, match="does nothing passes all tests of this task"):
        await grade("def f(x): return False", tests, pool=pool, partial=True)
    plain = await grade("def f(x): return None", tests, pool=pool)
    assert (plain.pass_rate, plain.fraction) == (1, None)
