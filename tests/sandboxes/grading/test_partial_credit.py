"""Partial credit: nothing for a program that does nothing, all for one that passes all."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.sandboxes import (
    AssertTest,
    BackendName,
    CallTest,
    IOTest,
    Limits,
    SandboxSpec,
    Status,
    Test,
    TestFile,
    TestResult,
    grade,
    grade_partial,
    open_pool,
)
from agentrl.sandboxes.grading.do_nothing import do_nothing_programs
from agentrl.sandboxes.grading.partial_credit import Baseline, baseline_of, partial_credit
from agentrl.sandboxes.grading.program_names import Wanted, names_of_program
from agentrl.sandboxes.measured_once import KEPT, MeasuredOnce

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
ALL_EQUAL = "EQUAL = SUBLIST = 0\ndef sublist(a, b): return 0\ndef is_sorted(items): return False"


def result(passed: bool, name: str = "test", test_index: int = 0) -> TestResult:
    return TestResult(name=name, status=Status.PASSED if passed else Status.WRONG_ANSWER, test_index=test_index)


outcomes = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from("abc"), st.booleans()).map(lambda one: result(one[2], one[1], one[0])),
    max_size=12,
)


@given(outcomes, st.lists(outcomes, max_size=3))
def test_credit_is_a_share_and_nothing_for_those_that_do_nothing(
    results: list[TestResult], nothing: list[list[TestResult]]
) -> None:
    baseline = baseline_of(nothing)
    assert 0 <= partial_credit(results, baseline) <= 1
    assert [partial_credit(run, baseline) for run in nothing] == [0.0] * len(nothing)


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.data())
def test_credit_is_exact_and_grows_with_what_passes(free: list[bool], data: st.DataObject) -> None:
    passed = data.draw(st.lists(st.booleans(), min_size=len(free), max_size=len(free)))
    more = [one or data.draw(st.booleans()) for one in passed]
    baseline = baseline_of([[result(one, str(index), index) for index, one in enumerate(free)]])
    credit, greater, full = (
        partial_credit([result(one, str(index), index) for index, one in enumerate(run)], baseline)
        for run in (passed, more, [True] * len(free))
    )
    earnable = free.count(False)
    assert credit == (sum(p and not f for p, f in zip(passed, free, strict=True)) / earnable if earnable else 0.0)
    assert credit <= greater <= full == float(earnable > 0)


def test_a_file_that_no_longer_loads_has_no_fewer_tests() -> None:
    loaded = [result(False, name) for name in "abcd"]
    broken = [result(False, "the file")]
    assert partial_credit(broken, baseline_of([loaded])) == 0
    # Nor do the tests of a file that loads with a real solution alone count as one.
    assert partial_credit([result(True, name) for name in "abcd"], baseline_of([broken, broken])) == 1
    assert partial_credit([result(name == "a", name) for name in "abcd"], baseline_of([broken])) == 0.25


@given(st.integers(1, 500), st.integers(0, 500), st.sampled_from(["import", "one", "three"]))
def test_a_program_does_not_choose_how_many_tests_there_are(own: int, passing: int, loads: str) -> None:
    """A file has three tests, and one that runs with whatever the program says."""
    real = [result(False, name) for name in "abc"]
    names = {"import": [], "one": ["test[x]"], "three": ["test[x]", "test[y]", "test[z]"]}[loads]
    baseline = baseline_of([[*real, *(result(False, name) for name in names)] if names else [result(False, "file")]])
    chosen = [result(number < passing, f"test[{number}]") for number in range(own)]
    credit = partial_credit([*real, *chosen], baseline)
    assert credit <= 1 / 4
    assert (credit > 0) == (passing > 0 and loads != "three")


def test_what_tests_want_of_a_program() -> None:
    code = """
import pytest
import solution
from solution import Stack, EmptyError as Empty, push as put, LIMIT

def test():
    with pytest.raises(Empty): Stack().pop()
    assert put(LIMIT) == solution.size() + solution.ZERO
"""
    assert names_of_program([TestFile(code=code)]) == {
        "EmptyError": Wanted.EXCEPTION,
        "LIMIT": Wanted.VALUE,
        "Stack": Wanted.CLASS,
        "ZERO": Wanted.VALUE,
        "push": Wanted.FUNCTION,
        "size": Wanted.FUNCTION,
    }
    tests: list[Test] = [
        IOTest(),
        CallTest(function="add"),
        CallTest(function="Solution.sum"),
        AssertTest(code="def check(candidate): assert candidate(1)", entry_point="found"),
        AssertTest(code="assert isclose(root(2), 1.4)", prelude="from math import isclose"),
        AssertTest(code="assert ("),
    ]
    assert names_of_program(tests) == {
        "Solution": Wanted.CLASS,
        "add": Wanted.FUNCTION,
        "found": Wanted.FUNCTION,
        "root": Wanted.FUNCTION,
    }


async def measured_by(baselines: MeasuredOnce[Baseline], key: int, asked: list[int]) -> Baseline:
    async def measure() -> Baseline:
        asked.append(key)
        await anyio.sleep(0.01)
        return baseline_of([[result(True, str(key))]])

    return await baselines.get(key, measure)


@pytest.mark.anyio
async def test_each_baseline_is_measured_once_and_their_number_is_bounded() -> None:
    baselines, asked = MeasuredOnce[Baseline](), list[int]()
    async with anyio.create_task_group() as tasks:
        for index in range(8):
            tasks.start_soon(measured_by, baselines, index % 2, asked)
    assert sorted(asked) == [0, 1]

    async def fails() -> Baseline:
        raise ConfigError("no")

    with pytest.raises(ConfigError):
        await baselines.get("other", fails)
    assert (await baselines.get("other", lambda: measured_by(MeasuredOnce[Baseline](), 7, asked))).free_count == 1
    asked.clear()
    async with anyio.create_task_group() as tasks:
        for index in range(10, 10 + KEPT):
            tasks.start_soon(measured_by, baselines, index, asked)
    await measured_by(baselines, 10 + KEPT - 1, asked)
    assert len(asked) == KEPT
    await measured_by(baselines, 0, asked)
    assert len(asked) == KEPT + 1


@pytest.mark.anyio
async def test_programs_that_do_nothing_earn_nothing(bubblewrap: BackendName) -> None:
    async with open_pool(SandboxSpec(limits=Limits(timeout_s=2)), backend=bubblewrap) as pool:

        async def credit(source: str, tests: list[Test]) -> float:
            return (await grade_partial(source, tests, pool=pool)).fraction

        tests: list[Test] = [SUBLIST]
        nothing = do_nothing_programs(tests)
        rates = {name: (await grade(source, tests, pool=pool)).pass_rate for name, source in nothing.items()}
        assert rates["stubs"] >= 2 / 6
        assert [await credit(source, tests) for source in nothing.values()] == [0.0, 0.0, 0.0]
        assert await credit(RIGHT, tests) == 1
        assert await credit(HALF, tests) == 2 / 3
        # What is the same for every answer passes what None passes.
        assert await credit(ALL_EQUAL, tests) == 0
        calls: list[Test] = [CallTest(function="f", args=[n], expected=n if n else None) for n in range(3)]
        assert await credit("def f(x): return x or None", calls) == 1
        assert await credit("def f(x): return 1", calls) == 0.5
        assert await credit("def f(x): pass", calls) == 0


@pytest.mark.anyio
async def test_a_task_with_nothing_left_to_earn_is_refused(bubblewrap: BackendName) -> None:
    tests = [AssertTest(code="assert not f(1)"), CallTest(function="f", args=[2], expected=None)]
    async with open_pool(backend=bubblewrap) as pool:
        with pytest.raises(ConfigError, match="does nothing passes all 2 tests of this task"):
            await grade_partial("def f(x): return False", tests, pool=pool)
        plain = await grade("def f(x): return None", tests, pool=pool)
    with pytest.raises(ConfigError, match="grade with partial=True"):
        _ = plain.fraction
    assert plain.pass_rate == 1
