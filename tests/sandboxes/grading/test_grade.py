"""Verdicts: every kind of test, every kind of failure."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from textwrap import dedent
from typing import Any

import anyio
import pytest

from agentrl.errors import ConfigError
from agentrl.sandboxes import (
    CPP,
    JAVA,
    PYTHON,
    AssertTest,
    BackendName,
    CallTest,
    Checker,
    Comparison,
    IOTest,
    Language,
    Limits,
    Sandbox,
    SandboxPool,
    SandboxSpec,
    Test,
    TestFile,
    Verdict,
    grade,
    open_pool,
)
from agentrl.sandboxes.grading.grade import default_deadline_s
from tests.components import missing
from tests.real_sandboxes import as_an_ordinary_user, kill_first_process
from tests.sandboxes.grading.trials import CALLS_MAIN, HONEST, LIMITS, all_kinds_of_tests

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def pool(backend: BackendName) -> AsyncIterator[SandboxPool]:
    async with open_pool(SandboxSpec(limits=Limits(timeout_s=1, memory_mb=300)), backend=backend, size=2) as pool:
        yield pool


def statuses(verdict: Verdict) -> list[str]:
    return [result.status.value for result in verdict.results]


async def test_programs_that_read_and_print(pool: SandboxPool) -> None:
    tests = [IOTest(stdin=f"{n} 4\n", stdout=f"{n + 4}\n") for n in (1, 2, 3)]
    right = await grade("a, b = map(int, input().split())\nprint(a + b)", tests, pool=pool)
    assert right.passed
    assert right.pass_rate == 1
    assert right.status == "passed"
    half = await grade("print(6)", tests, pool=pool)
    assert statuses(half) == ["wrong_answer", "passed", "wrong_answer"]
    assert half.pass_rate == pytest.approx(1 / 3)
    assert half.results[0].message == "word 1 is '6', expected '5'"
    assert half.status == "wrong_answer"
    quick = await grade("print(6)", tests, pool=pool, fail_fast=True)
    assert statuses(quick) == ["wrong_answer", "not_run", "not_run"]


async def test_a_program_runs_no_more_after_its_first_failure(bubblewrap: BackendName) -> None:
    async with open_pool(backend=bubblewrap, size=1) as pool:
        verdict = await grade("print(6)", [IOTest(stdout="1")] * 3, pool=pool, fail_fast=True)
        assert statuses(verdict) == ["wrong_answer", "not_run", "not_run"]
        async with pool.take():  # which is when the sandbox has been made as new
            assert pool.metrics.runs == 1


@pytest.mark.soak
async def test_every_way_to_fail(pool: SandboxPool) -> None:
    programs = {
        "raise ValueError('no')": "runtime_error",
        "print(1)\nraise SystemExit(1)": "runtime_error",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": "runtime_error",
        "while True: pass": "time_limit",
        "hoard = []\nwhile True: hoard.append(bytearray(b'x') * 2**20)": "memory_limit",
        "while True: print('x' * 1000)": "output_limit",
        "print(2)": "wrong_answer",
        "": "wrong_answer",
        "x = (": "runtime_error",
        "\0": "runtime_error",
        "print('\ud800')": "runtime_error",
        "print(1)": "passed",
    }
    test = IOTest(stdout="1")
    seen = {source: (await grade(source, [test], pool=pool)).results[0] for source in programs}
    assert {source: result.status for source, result in seen.items()} == programs
    assert "ValueError: no" in seen["raise ValueError('no')"].message
    loops = seen["while True: pass"]
    assert loops.cpu_s < 1.3
    assert loops.cpu_s > 0.7 or loops.duration_s >= 4, "its CPU time ends it, or the wall clock on a busy machine"
    assert seen["print(1)"].peak_memory_bytes > 2**20


@pytest.mark.soak
async def test_a_time_limit_counts_cpu_seconds_and_ends_sleepers(pool: SandboxPool) -> None:
    limits = Limits(timeout_s=1, memory_mb=300)
    waits = "import time\ntime.sleep(1.2)\nprint(1)"
    assert (await grade(waits, [IOTest(stdout="1")], pool=pool, limits=limits)).passed
    sleeps = await grade("import time\ntime.sleep(1000)", [IOTest(stdout="1")], pool=pool, limits=limits)
    assert statuses(sleeps) == ["time_limit"]
    assert sleeps.results[0].duration_s == pytest.approx(4, abs=0.9)


async def test_each_test_has_limits_of_its_own(pool: SandboxPool) -> None:
    slow = "import time\nstart = time.process_time()\nwhile time.process_time() - start < 0.4: pass\nprint(1)"
    tests = [IOTest(stdout="1", limits={"timeout_s": 0.1}), IOTest(stdout="1", limits={"timeout_s": 5})]
    assert statuses(await grade(slow, tests, pool=pool)) == ["time_limit", "passed"]
    for limits in ({"disk_mb": 999}, {"memory_mb": 999}):
        with pytest.raises(ConfigError, match=r"_mb = 999 is more than the .* of the sandbox; ask for less, or"):
            await grade("", [IOTest(limits=limits)], pool=pool)


async def test_an_input_that_no_sandbox_takes_is_the_fault_of_no_program(pool: SandboxPool) -> None:
    with pytest.raises(ConfigError, match="stdin has more than 67108864 bytes"):
        await grade("print(1)", [IOTest(stdin="x" * (64 * 2**20 + 1), stdout="1")], pool=pool)


async def test_no_test_sees_the_files_of_another(pool: SandboxPool) -> None:
    source = "import os\nprint(os.path.exists('mark'))\nopen('mark', 'w')\nopen('/tmp/mark', 'w')"
    assert (await grade(source, [IOTest(stdout="False")] * 3, pool=pool)).passed


async def test_output_is_compared_as_asked(pool: SandboxPool) -> None:
    source = "print('1.0000001   two')"
    tests = [
        IOTest(stdout="1 two"),
        IOTest(stdout="1 two", compare=Comparison(absolute=1e-6)),
        IOTest(stdout="1.0000001 two"),
        IOTest(stdout="1.0000001 two", compare=Comparison(exact=True)),
        IOTest(stdout="1.0000001   two\n", compare=Comparison(exact=True)),
    ]
    verdict = await grade(source, tests, pool=pool)
    assert statuses(verdict) == ["wrong_answer", "passed", "passed", "wrong_answer", "passed"]
    assert verdict.results[3].message == "line 1 is '1.0000001   two', expected '1.0000001 two'"


@pytest.mark.parametrize(
    "source",
    [
        *(pytest.param(source, marks=pytest.mark.soak) for source in ("import nosuch", "import (", "checker.py")),
        "import sys\nsys.exit(verdict)",
    ],
)
async def test_a_checker_that_is_wrong_itself_is_no_fault_of_the_program(pool: SandboxPool, source: str) -> None:
    verdict = await grade("print(1)", [IOTest(stdout="1", compare=Checker(source=source))], pool=pool)
    (result,) = verdict.results
    assert (result.status, result.message[:38]) == ("checker_error", "the checker failed, with exit code 3: ")


async def test_a_checker_rejects_what_it_cannot_read(pool: SandboxPool) -> None:
    checker = Checker(source="import sys\nint(open(sys.argv[2]).read())")
    verdict = await grade("print('x')", [IOTest(compare=checker)], pool=pool)
    assert statuses(verdict) == ["wrong_answer"]


CHECKERS_THAT_AN_OUTPUT_BREAKS = {
    "import sys, ast\nsys.exit(ast.literal_eval(open(sys.argv[2]).read()) != 5)": "[",
    "import sys\nfor line in open(sys.argv[2]): last = int(line)\nsys.exit(last != 5)": "",
    "import sys\ndef f():\n if open(sys.argv[2]).read().strip() == '5': ok = True\n return ok\nsys.exit(not f())": "maybe",
    "import sys\nmatch open(sys.argv[2]).read().split():\n case ['5' as five]: pass\nsys.exit(five != '5')": "no",
    "import sys\nsys.exit(eval(open(sys.argv[2]).read()) != 5)": "nothing",
}


@pytest.mark.soak
async def test_a_checker_that_an_output_breaks_has_rejected_it(bubblewrap: BackendName) -> None:
    limits = Limits(timeout_s=1, memory_mb=200)
    async with open_pool(SandboxSpec(limits=limits), backend=bubblewrap, size=2) as pool:
        for source, output in CHECKERS_THAT_AN_OUTPUT_BREAKS.items():
            test = IOTest(stdout="5", compare=Checker(source=source))
            right, wrong = [await grade(f"print({printed!r})", [test], pool=pool) for printed in ("5", output)]
            assert (statuses(right), statuses(wrong)) == (["passed"], ["wrong_answer"]), (source, wrong.results)


async def test_what_failed_is_shown_without_our_own_frames(pool: SandboxPool) -> None:
    source = "def f(x): raise ValueError('no')\ndef g(x): return x"
    file = TestFile(code="from solution import f\ndef test(): assert f(1) == 'a'")
    asserts = AssertTest(code="assert g(1) == 1\nassert g(2) == 3\nassert g(4) == 4")
    shown, asserted = (await grade(source, [file, asserts], pool=pool)).results
    assert "ValueError" in shown.message
    assert "agentrl" not in shown.message
    assert asserted.message == "AssertionError: assert g(2) == 3"


async def test_a_checker_decides_where_answers_are_many(pool: SandboxPool) -> None:
    checker = Checker(
        source=dedent("""
            import sys
            given, output, answer = (open(path).read().split() for path in sys.argv[1:])
            if answer == ["crash"]: raise SystemExit(3)
            if sum(map(int, output)) != int(given[0]):
                print("the sum is wrong")
                raise SystemExit(1)
        """)
    )
    tests = [
        IOTest(stdin="5", stdout="anything", compare=checker),
        IOTest(stdin="6", stdout="anything", compare=checker),
        IOTest(stdin="5", stdout="crash", compare=checker),
    ]
    verdict = await grade("print(2, 3)", tests, pool=pool)
    assert statuses(verdict) == ["passed", "wrong_answer", "checker_error"]
    assert verdict.results[1].message == "the sum is wrong"


async def test_functions_are_called_with_data(pool: SandboxPool) -> None:
    source = dedent("""
        import collections
        class Solution:
            def __init__(self): self.calls = 0
            def double(self, items, *, times=2): return tuple(item * times for item in items)
        def sort(items): items.sort()
        def same(x): return x
        def half(x): return x / 3
        def fails(): raise KeyError("gone")
        def counts(word): return collections.Counter(word)
        def prints(): print("noise"); return 1
    """)
    plain = (None, True, 2**100, -1.5, "é\ud800", b"\x00\xff", [1, [2]], (1, (2,)), {1, 2}, {"a": [1], 2: None}, 1 + 2j)
    tests = [
        CallTest(function="Solution.double", args=[[1, 2]], kwargs={"times": 3}, expected=[3, 6]),
        *[CallTest(function="same", args=[value], expected=value) for value in plain],
        CallTest(function="half", args=[1], expected=0.3333, tolerance=1e-3),
        CallTest(function="counts", args=["aab"], expected={"a": 2, "b": 1}),
        CallTest(function="prints", expected=1),
        CallTest(function="half", args=[1], expected=0.3333),
        CallTest(function="sort", args=[[3, 1, 2]], expected=[1, 2, 3]),
        CallTest(function="fails", expected=1),
        CallTest(function="nothing", expected=1),
    ]
    verdict = await grade(source, tests, pool=pool)
    assert [result.passed for result in verdict.results[:-4]] == [True] * (len(tests) - 4), verdict
    assert statuses(verdict)[-4:] == ["wrong_answer", "wrong_answer", "runtime_error", "runtime_error"]
    assert verdict.results[-3].message == "None, expected [1, 2, 3]"
    assert verdict.results[-2].message == "KeyError: 'gone'"


async def test_code_that_asserts(pool: SandboxPool) -> None:
    source = "def clean(items): items.clear(); return items\ndef loud(): raise LookupError('x')\ndef many(n): return iter(range(n))"
    tests = [
        AssertTest(code="assert list(many(3)) == [0, 1, 2]\nassert 2 in many(3)"),
        AssertTest(code="try: loud()\nexcept LookupError as error: assert str(error) == 'x'\nelse: assert False"),
        AssertTest(code="def check(candidate):\n    assert candidate([1]) == []", entry_point="clean"),
        AssertTest(code="x = [1]\nclean(x)\nassert x == []"),
        AssertTest(code="assert double(2) == 4"),
        AssertTest(code="assert helper(many(2)) == 1", prelude="def helper(x): return sum(x)"),
        AssertTest(code="import math\nassert math.isclose(sum(many(4)), 6)"),
    ]
    verdict = await grade(source, tests, pool=pool)
    assert statuses(verdict) == [*["passed"] * 4, "runtime_error", "passed", "passed"]
    assert verdict.results[4].message == "NameError: name 'double' is not defined"


async def test_a_name_of_python_s_is_the_program_s_where_the_test_says_so(pool: SandboxPool) -> None:
    code = "assert sum(10, 15) == 6 and max(1, 2) == 2"
    source = "def sum(a, b): return 6\ndef max(*_): return 2"
    tests = [AssertTest(code=code, candidate_names=("sum",)), AssertTest(code=code, candidate_names=("sum", "max"))]
    assert statuses(await grade(source, tests, pool=pool)) == ["passed", "passed"]
    assert statuses(await grade("def max(*_): return 2", [AssertTest(code=code)], pool=pool)) == ["runtime_error"]


STACK = """
class Empty(LookupError): pass
class Stack:
    LIMIT = 2
    def __init__(self, items=()): self.items = list(items)
    def push(self, item):
        if len(self.items) == self.LIMIT: raise OverflowError("full")
        self.items.append(item)
        return self
    def pop(self):
        if not self.items: raise Empty("nothing to pop")
        return self.items.pop()
    def __len__(self): return len(self.items)
    def __getitem__(self, index): return self.items[index]
    def __iter__(self): return iter(self.items)
    def __enter__(self): return self
    def __exit__(self, *_): self.items.clear()
VERSION = "1.0"
"""


async def test_a_unittest_file(pool: SandboxPool) -> None:
    code = """
import unittest
from solution import Empty, Stack

class TestStack(unittest.TestCase):
    def setUp(self): self.stack = Stack([1])
    def test_push(self):
        self.assertIs(self.stack.push(2), self.stack)
        with self.assertRaisesRegex(OverflowError, "full"): self.stack.push(3)
    def test_pop(self):
        self.assertEqual(self.stack.pop(), 1)
        with self.assertRaises(Empty): self.stack.pop()
    def test_wrong(self): self.assertEqual(len(self.stack), 2)
    def test_subtests(self):
        for n in (1, 2):
            with self.subTest(n=n): self.assertEqual(len(self.stack), n)
    @unittest.skip("not today")
    def test_skipped(self): self.fail()
    def test_error(self): self.stack.nothing()
"""
    verdict = await grade(STACK, [TestFile(code=code, framework="unittest")], pool=pool)
    outcome = {result.name.rpartition("::")[2]: result.status.value for result in verdict.results}
    assert outcome == {
        "test_push": "passed",
        "test_pop": "passed",
        "test_wrong": "wrong_answer",
        "test_subtests": "wrong_answer",
        "test_error": "runtime_error",
    }


async def test_a_pytest_file(pool: SandboxPool) -> None:
    code = """
import pytest
from solution import *

@pytest.fixture
def stack(): return Stack([1])

@pytest.mark.parametrize("n", [1, 2])
def test_len(stack, n): assert len(stack) == n

def test_raises(stack):
    stack.pop()
    with pytest.raises(Empty, match="nothing"): stack.pop()

@pytest.mark.skip
def test_skipped(): assert False

@pytest.mark.xfail(run=False)
def test_not_run(): assert VERSION == "2.0"

@pytest.mark.xfail
def test_known(): assert VERSION == "2.0"
"""
    verdict = await grade(STACK, [TestFile(code=code)], pool=pool)
    outcome = {result.name.rpartition("::")[2]: result.status.value for result in verdict.results}
    assert outcome == {
        "test_len[1]": "passed",
        "test_len[2]": "wrong_answer",
        "test_raises": "passed",
        "test_known": "passed",
    }
    broken = await grade(STACK, [TestFile(code="import solution\nsolution.Missing")], pool=pool)
    assert statuses(broken) == ["runtime_error"]
    assert "has no attribute 'Missing'" in broken.results[0].message
    assert statuses(await grade(STACK, [TestFile(code="x = 1")], pool=pool)) == ["checker_error"]


async def test_a_program_may_import_mock(pool: SandboxPool) -> None:
    test = TestFile(code="from solution import f\ndef test_f(): assert f(1) == 1", trust="inside")
    assert (await grade("import unittest.mock\ndef f(x): return x", [test], pool=pool)).passed


async def test_what_is_called_like_a_test_and_is_none_need_not_run(pool: SandboxPool) -> None:
    fixture = "import pytest\nfrom solution import f\n@pytest.fixture\ndef test_data(): return 1\ndef test_f(test_data): assert f(test_data) == 1"
    assert statuses(await grade("def f(x): return x", [TestFile(code=fixture)], pool=pool)) == ["passed"]


async def test_a_language_is_a_build_and_a_run_command(pool: SandboxPool) -> None:
    shell = Language(
        file="main.sh", build=("sh", "-c", "sh -n main.sh && cp main.sh built"), run=("sh", "built"), build_timeout_s=5
    )
    tests = [IOTest(stdin="3\n", stdout="6"), IOTest(stdin="4\n", stdout="9")]
    verdict = await grade("read n\nrm -f built\necho $((2 * n))", tests, pool=pool, language=shell)
    assert statuses(verdict) == ["passed", "wrong_answer"]
    verdict = await grade("if", tests, pool=pool, language=shell)
    assert statuses(verdict) == ["build_error", "build_error"]
    assert "main.sh" in verdict.build_output
    verdict = await grade(
        "echo the cause\nseq 9999\nexit 1", tests, pool=pool, language=replace(shell, build=("sh", "main.sh"))
    )
    assert verdict.results[0].message.startswith("the cause")


async def test_what_is_expected_may_be_printed_whatever_the_limit(pool: SandboxPool) -> None:
    source = "print('a' * 300_000)\nprint('b' * 100_000, end=' ' * int(input()))"
    wanted, limits = "a" * 300_000 + "\n" + "b" * 100_000, {"output_mb": 0.1}
    tests = [IOTest(stdin=spaces, stdout=wanted, limits=limits) for spaces in ("100", "500_000")]
    assert statuses(await grade(source, tests, pool=pool)) == ["passed", "output_limit"]


@pytest.mark.soak
async def test_java(bubblewrap: BackendName) -> None:
    if shutil.which("javac") is None:
        missing("javac is not installed")
    source = "public class Main { public static void main(String[] a) { System.out.println(3); } }"
    async with open_pool(SandboxSpec(limits=Limits(memory_mb=4096)), backend=bubblewrap) as pool:
        verdict = await grade(source, [IOTest(stdout="3")], pool=pool, language=JAVA)
    assert verdict.passed, verdict.build_output


async def test_a_compiler_that_is_not_there_is_no_fault_of_the_program_s(pool: SandboxPool) -> None:
    language = Language(file="main.x", build=("no-such-compiler", "main.x"), run=("./main",))
    with pytest.raises(ConfigError, match=r"the sandbox has no no-such-compiler, which is to build main\.x"):
        await grade("x", [IOTest(stdout="x")], pool=pool, language=language)
    forged = Language(file="main.sh", build=("sh", "main.sh"), run=("./main",))
    source = "echo 'cannot run sh: x' >&2; exit 127"
    assert statuses(await grade(source, [IOTest()], pool=pool, language=forged)) == ["build_error"]


@pytest.mark.soak
async def test_cpp(bubblewrap: BackendName) -> None:
    if shutil.which("g++") is None:
        missing("g++ is not installed")
    source = "#include <algorithm>\n#include <iostream>\nint main() { long a[2]; std::cin >> a[0] >> a[1]; std::ranges::sort(a); std::cout << a[0] + a[1]; }"
    async with open_pool(backend=bubblewrap) as pool:
        tests = [IOTest(stdin="1 2", stdout="3"), IOTest(stdin="40 2", stdout="42")]
        assert (await grade(source, tests, pool=pool, language=CPP)).passed
        broken = await grade("int main() { return x; }", tests, pool=pool, language=CPP)
    assert broken.status == "build_error"
    assert "‘x’ was not declared" in broken.build_output or "'x' was not declared" in broken.build_output


async def test_a_sandbox_lost_under_a_program_is_tried_again(bubblewrap: BackendName) -> None:
    lost = 0

    async with open_pool(backend=bubblewrap, size=1) as pool:
        real = pool.take

        @asynccontextmanager
        async def take(count: int = 1) -> AsyncIterator[Sequence[Sandbox]]:
            nonlocal lost
            async with real(count) as sandboxes:
                if lost < times:
                    lost += 1
                    await anyio.to_thread.run_sync(kill_first_process, sandboxes[0])
                yield sandboxes

        pool.take = take  # type: ignore[method-assign, assignment]
        times = 2
        assert (await grade("print(1)", [IOTest(stdout="1")], pool=pool)).passed
        lost, times = 0, 3
        verdict = await grade("print(1)", [IOTest(stdout="1"), IOTest(stdout="1")], pool=pool)
        assert statuses(verdict) == ["crashed", "passed"]


def test_a_verdict_without_results_is_no_pass() -> None:
    verdict = Verdict(results=())
    assert (verdict.passed, verdict.pass_rate, verdict.status) == (False, 0.0, "not_run")


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"tests": []}, "tests is an empty list"),
        ({"tests": IOTest()}, r"tests = IOTest\(.* must be a valid list"),
        ({"tests": "assert f() == 1"}, "tests = 'assert f.* must be a valid list"),
        ({"tests": [{"kind": "io"}]}, r"tests\[0\] = .* is no test; load_tests makes"),
        (
            {"tests": [IOTest(), CallTest(function="f", expected=object())]},
            "test 2, a CallTest of f, holds an object of class object, which is not plain data",
        ),
        ({"tests": [CallTest(function="f", expected=range(10**18))]}, "data of more than 1,000,000 items"),
        ({"tests": [CallTest(function="f")], "language": CPP}, "a CallTest calls Python functions"),
        ({"deadline_s": 0}, "deadline_s = 0 must be greater than 0"),
        ({"partial": [0.0], "fail_fast": True}, "a partial verdict needs the result of every test"),
        ({"partial": [0.0, 0.0]}, "partial is of 2 tests, and there are 1; vet the task again"),
        ({"partial": [float("nan")]}, r"partial = \[nan\].* must be"),
        ({"tests": [CallTest(function="f", args=[nested(3_000)])]}, "nested more than 200 deep"),
        (
            {"tests": [AssertTest(code="assert Stack()", trust="apart")]},
            "trust = 'apart' cannot grade test 'test 1', which needs the program's class Stack; use trust = 'inside'",
        ),
        ({"source": None}, "source = None must be a valid string"),
        ({"language": "cpp"}, "language = 'cpp' must be an instance of Language"),
        ({"limits": {"timeout_s": 2}}, r"limits = .* must be an instance of Limits"),
    ],
)
async def test_what_cannot_be_graded_is_named(pool: SandboxPool, wrong: dict[str, Any], complaint: str) -> None:
    right: dict[str, Any] = {"source": "print(1)", "tests": [IOTest(stdout="1")], "pool": pool}
    with pytest.raises(ConfigError, match=complaint):
        await grade(**(right | wrong))


@pytest.mark.parametrize(
    "test",
    [
        IOTest(),
        CallTest(function="f"),
        pytest.param(AssertTest(code="assert f() is None"), marks=pytest.mark.soak),
        pytest.param(TestFile(code="from solution import f\ndef test(): assert f() is None"), marks=pytest.mark.soak),
    ],
)
async def test_a_program_that_has_no_encoding_does_not_run(pool: SandboxPool, test: Test) -> None:
    """A model's text may hold half of a surrogate pair. No file may, so that nothing of the program runs, nor passes."""
    source = "def f(): pass\nx = '\udc80'"
    verdict = await grade(source, [test, test], pool=pool)
    assert statuses(verdict) == ["runtime_error", "runtime_error"]
    assert (await grade(source.replace("\udc80", "\N{SNOWMAN}"), [test], pool=pool)).passed


async def test_a_deadline_is_no_fault_of_a_program_that_kept_its_own_time(pool: SandboxPool) -> None:
    sleeps, loops = "import time\ntime.sleep(1000)", "while True: pass"
    late = await grade(sleeps, [IOTest()] * 2, pool=pool, deadline_s=0.5)
    assert statuses(late) == ["deadline", "deadline"]
    assert late.fault == late.results[0]
    slow = await grade(loops, [IOTest(limits={"timeout_s": 0.1})] * 30, pool=pool, deadline_s=3)
    assert {*statuses(slow)} == {"time_limit", "not_run"}
    assert slow.fault is None


@pytest.mark.soak
async def test_a_verdict_has_one_deadline(pool: SandboxPool) -> None:
    """Whatever hangs: a file of 30 tests, test after test, a checker, test code, a build."""
    sleeps = "import time\ntime.sleep(1000)"
    hangs = "def f(): \n    while True: pass"
    file = "import pytest, solution\n@pytest.mark.parametrize('n', range(30))\ndef test(n): assert solution.f() == n"
    busy = "while True:\n    try:\n        while True: f\n    except BaseException: pass"
    limits = Limits(timeout_s=5, memory_mb=300)
    slow_checker = Checker(source=sleeps)
    c = Language(file="main.c", build=("sleep", "1000"), run=("./main",))
    cases: dict[str, tuple[Verdict, list[str]]] = {}

    async def case(name: str, source: str, tests: list[Any], expected: list[str], language: Language = PYTHON) -> None:
        started = anyio.current_time()
        verdict = await grade(source, tests, pool=pool, limits=limits, deadline_s=2.5, language=language)
        assert anyio.current_time() - started < 18, name
        cases[name] = (verdict, expected)

    await case("tests", sleeps, [IOTest(stdout="1")] * 30, ["deadline"] * 30)
    await case("calls", hangs, [CallTest(function="f")] * 3, ["deadline"] * 3)
    await case("a file", hangs, [TestFile(code=file)], ["deadline"])
    await case("a checker", "", [IOTest(compare=slow_checker), IOTest()], ["wrong_answer", "passed"])
    await case("test code", "def f(): pass", [AssertTest(code=busy), IOTest()], ["deadline", "passed"])
    await case("a build", "", [IOTest()] * 2, ["deadline"] * 2, c)
    for name, (verdict, expected) in cases.items():
        found = statuses(verdict)
        assert ([*set(found)] if name == "a file" else found) == expected, name


@pytest.mark.soak
async def test_waiting_for_a_sandbox_is_no_part_of_the_deadline(pool: SandboxPool) -> None:
    async with anyio.create_task_group() as group:
        async with pool.take(2):
            verdicts: list[Verdict] = []

            async def wait() -> None:
                verdicts.append(await grade("print(1)", [IOTest(stdout="1")], pool=pool, deadline_s=3))

            group.start_soon(wait)
            await anyio.sleep(3.5)
    assert verdicts[0].passed


def test_the_default_deadline_follows_from_the_tests() -> None:
    limits = Limits(timeout_s=2)
    assert default_deadline_s([IOTest()] * 1000, limits) == 600
    assert default_deadline_s([IOTest(), IOTest(limits={"timeout_s": 1000})], limits) == 4010


async def test_tests_run_side_by_side_where_sandboxes_are_free(bubblewrap: BackendName) -> None:
    tests = [IOTest(stdin=f"{n}", stdout=f"{n}") for n in (1, 2, 0, 3, 4)]
    async with open_pool(backend=bubblewrap, size=3) as pool:
        verdict = await grade("print(input() or 9)", tests, pool=pool)
        assert (verdict.passed, [one.test_index for one in verdict.results]) == (True, [0, 1, 2, 3, 4])
        assert pool.metrics.taken == 3
        verdict = await grade("print(int(input()) or 9)", tests, pool=pool, fail_fast=True)
        assert statuses(verdict) == ["passed", "passed", "wrong_answer", "not_run", "not_run"]
        async with pool.take(2):
            assert (await grade("print(input())", tests, pool=pool)).passed
        assert pool.metrics.taken == 3 + 3 + 2 + 1


async def test_a_test_before_the_first_that_fails_is_run_however_late_its_sandbox_comes(
    bubblewrap: BackendName, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_pool(backend=bubblewrap, size=2) as pool:
        take, failed, earlier = pool.take, anyio.Event(), list[int]()

        @asynccontextmanager
        async def taken_late(boxes: int) -> AsyncIterator[list[Sandbox]]:
            earlier.append(boxes)
            if len(earlier) == 1:
                await failed.wait()
            async with take(boxes) as sandboxes:
                yield sandboxes
            failed.set()

        monkeypatch.setattr(pool, "take", taken_late)
        tests = [IOTest(stdout="3"), IOTest(stdout="4")]
        with anyio.fail_after(60):
            verdict = await grade("print(3)", tests, pool=pool, fail_fast=True)
    assert statuses(verdict) == ["passed", "wrong_answer"]


async def test_a_file_of_tests_fails_fast(pool: SandboxPool) -> None:
    code = "import pytest, solution\n@pytest.mark.parametrize('n', range(5))\ndef test(n): assert solution.f(n) < 2"
    tests = [TestFile(code=code), CallTest(function="f", args=[1], expected=1)]
    verdict = await grade("def f(n): return n", tests, pool=pool, fail_fast=True)
    assert statuses(verdict) == ["passed", "passed", "wrong_answer", "not_run"]


async def test_messages_are_text_that_everything_takes(pool: SandboxPool) -> None:
    source = "def f(): raise ValueError('\\ud800\\0' * 5000)"
    tests = [CallTest(function="f"), AssertTest(code="f()"), IOTest(stdout="x")]
    program = "\nif __name__ == '__main__':\n    import os; os.write(1, b'\\0\\xff\\xed\\xa0\\x80')"
    verdict = await grade(source + program, tests, pool=pool)
    for result in verdict.results:
        assert "\0" not in result.message.encode().decode()
        assert 0 < len(result.message) <= 10_000
    assert "ValueError: \\ud800\\x00" in verdict.results[0].message
    assert Verdict(results=(), build_output="\0\udc80").build_output == "\\x00\\udc80"


@pytest.mark.soak
async def test_every_kind_of_test_runs_as_an_ordinary_user(
    bubblewrap: BackendName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no control group counts what a sandbox uses, more system calls are refused."""
    as_an_ordinary_user(monkeypatch)
    if subprocess.run(["/usr/bin/python3", "-c", "import pytest"], capture_output=True, timeout=60).returncode:
        missing("pytest for /usr/bin/python3 (apt install python3-pytest)")
    async with open_pool(SandboxSpec(limits=LIMITS), backend=bubblewrap, size=2) as pool:
        verdict = await grade(HONEST + CALLS_MAIN, all_kinds_of_tests(), pool=pool)
    assert verdict.passed, verdict.results
