"""Partial credit: nothing for a program that does nothing, all for one that passes all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.sandboxes import (
    AssertTest,
    CallTest,
    IOTest,
    SandboxPool,
    Status,
    Test,
    TestFile,
    TestResult,
    Verdict,
    grade,
)
from agentrl.sandboxes.grading.vet import do_nothing_programs, measured_baseline, stubs

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


def verdict(*tests: list[bool]) -> Verdict:
    """Return a verdict in which each test has some results."""
    status = {True: Status.PASSED, False: Status.WRONG_ANSWER}
    return Verdict(
        results=tuple(
            TestResult(name="test", status=status[passed], test_index=index)
            for index, results in enumerate(tests)
            for passed in results
        )
    )


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.data())
def test_credit_is_exact_and_grows_with_what_passes(free: list[bool], data: st.DataObject) -> None:
    passed = data.draw(st.lists(st.booleans(), min_size=len(free), max_size=len(free)))
    more = [one or data.draw(st.booleans()) for one in passed]
    nothing, credit, greater, full = (
        verdict(*([one] for one in run)).credit([*map(float, free)]) for run in (free, passed, more, [True] * len(free))
    )
    earnable = free.count(False)
    assert nothing == 0.0
    assert credit == (sum(p and not f for p, f in zip(passed, free, strict=True)) / earnable if earnable else 0.0)
    assert credit <= greater <= full == float(earnable > 0)


def test_a_file_that_no_longer_loads_is_one_test_that_fails() -> None:
    assert verdict([False], [True]).credit([0.0, 0.0]) == 0.5
    assert verdict([False, True, True, True], [True]).credit([0.0, 0.0]) == 0.875


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
    async def credits_of(tests: list[Test], *programs: str) -> list[float | None]:
        baseline = await measured_baseline(tests, pool)
        return [(await grade(source, tests, pool=pool, partial=baseline)).fraction for source in programs]

    tests: list[Test] = [SUBLIST]
    nothing = do_nothing_programs(tests).values()
    assert await measured_baseline(tests, pool) == [0.5]
    assert await credits_of(tests, *nothing, RIGHT) == [0.0, 0.0, 0.0, 1.0]
    (half,) = await credits_of(tests, HALF)
    assert half == pytest.approx(2 / 3)
    calls: list[Test] = [CallTest(function="f", args=[n], expected=n if n else None) for n in range(3)]
    assert await credits_of(calls, "def f(x): return x or None", "def f(x): return 1") == [1, 0.5]
