"""Test code uses a candidate's classes as if they were its own, and no class passes for what it says of itself."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Literal

import anyio
import pytest

from agentrl.sandboxes import (
    AssertTest,
    BackendName,
    Limits,
    SandboxPool,
    SandboxSpec,
    Test,
    TestFile,
    Verdict,
    grade,
    open_pool,
)
from tests.sandboxes.inside import (
    candidate_classes,
    consistency_cases,
    first_contact,
    identity_cases,
    lying_objects,
    one_process_cases,
    plain_jokers,
    replay_cases,
    stand_in_cases,
)
from tests.sandboxes.inside.cases import as_test
from tests.sandboxes.plain_python import passes_in_plain_python

pytestmark = pytest.mark.anyio

FAILURES = {"wrong_answer", "runtime_error", "time_limit"}
"""The program's own: `checker_error` would be charged to nobody."""


AT_ONCE = 2
"""Programs that are graded at a time: a verdict waits for one process after another."""
PATIENCE_S = 120.0
"""The deadline of an honest program's verdict: whether it passes is the question, and not how busy the machine is."""


@pytest.fixture(scope="module")
async def pool(bubblewrap: BackendName) -> AsyncIterator[SandboxPool]:
    """What a class passes for is found outside the candidate's sandbox, and is the same in every one."""
    spec = SandboxSpec(limits=Limits(timeout_s=5, memory_mb=300))
    async with open_pool(spec, backend=bubblewrap, size=2 * AT_ONCE) as pool:
        yield pool


async def verdicts(
    programs: Mapping[str, tuple[str, Test]],
    pool: SandboxPool,
    limits: Limits | None = None,
    deadline_s: float | None = None,
) -> dict[str, Verdict]:
    """The verdict on each program by its test, in their order."""
    found: dict[str, Verdict] = {}
    waiting = deque(programs.items())

    async def work() -> None:
        while waiting:
            name, (source, test) = waiting.popleft()
            found[name] = await grade(source, [test], pool=pool, limits=limits, deadline_s=deadline_s)

    async with anyio.create_task_group() as group:
        for _ in range(AT_ONCE):
            group.start_soon(work)
    return {name: found[name] for name in programs}


def with_assertions(programs: Mapping[str, tuple[str, str]]) -> dict[str, tuple[str, Test]]:
    """Programs whose test code is assertions."""
    return {name: (source, AssertTest(code=code)) for name, (source, code) in programs.items()}


def with_files(programs: Mapping[str, tuple[str, str]]) -> dict[str, tuple[str, Test]]:
    """Programs whose test code is a file of pytest's."""
    return {name: (source, TestFile(code=code)) for name, (source, code) in programs.items()}


def with_either(programs: Mapping[str, tuple[str, str]]) -> dict[str, tuple[str, Test]]:
    """Programs whose test code is what it looks like."""
    return {name: (source, as_test(code)) for name, (source, code) in programs.items()}


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_honest_classes_pass(pool: SandboxPool) -> None:
    assert len(candidate_classes.honest()) >= 20
    for name, verdict in (
        await verdicts(with_assertions(candidate_classes.honest()), pool, deadline_s=PATIENCE_S)
    ).items():
        assert verdict.passed, (name, verdict.results)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_cheating_classes_fail(pool: SandboxPool) -> None:
    programs = {**candidate_classes.cheats(), **lying_objects.lies()}
    assert len(programs) >= 40
    limits = Limits(timeout_s=0.5, memory_mb=300)
    for name, verdict in (await verdicts(with_assertions(programs), pool, limits)).items():
        assert verdict.status in FAILURES, (name, verdict.results)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_honest_programs_pass_as_in_one_process(pool: SandboxPool) -> None:
    programs = {**stand_in_cases.honest(), **one_process_cases.honest()}
    for name, verdict in (await verdicts(with_files(programs), pool, deadline_s=PATIENCE_S)).items():
        assert verdict.passed, (name, verdict.results)


async def test_a_conftest_beside_the_tests_is_theirs(pool: SandboxPool) -> None:
    conftest = "import pytest\n@pytest.fixture\ndef two(): return 2\n@pytest.fixture(autouse=True)\ndef off(): import solution; solution.on = False"
    code = "import solution\ndef test(two): assert solution.double(two) == 4 and solution.state() is False"
    source = "on = True\ndef double(x): return 2 * x\ndef state(): return on"
    verdict = await grade(source, [TestFile(code=code, files={"conftest.py": conftest})], pool=pool)
    assert verdict.passed, verdict.results


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_cases_pass_in_one_process() -> None:
    """They are true of Python, and not of the sandbox alone."""
    cases = one_process_cases.honest()
    found = passes_in_plain_python(cases.values())
    assert {name: passed for name, passed in zip(cases, found, strict=True) if not passed} == {}


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_the_cheats_pass_in_one_process() -> None:
    """One that fails by itself shows nothing of the grader."""
    own_failures = candidate_classes.FAIL_IN_ONE_PROCESS | lying_objects.FAIL_IN_ONE_PROCESS
    programs = {**candidate_classes.cheats(), **lying_objects.lies(), **plain_jokers.cheats()}
    assert own_failures <= programs.keys()
    passing = set()
    for name, (source, code) in programs.items():
        whole = (
            "import os, sys, types\nsolution = sys.modules['solution'] = types.ModuleType('solution')\n"
            f"exec({source!r}, vars(solution))\nfrom solution import *\n{code}\nos._exit(0)"
        )
        done = await anyio.run_process([sys.executable, "-c", whole], check=False, stderr=subprocess.DEVNULL)
        passing |= {name} if done.returncode == 0 else set()
    assert passing == programs.keys() - own_failures


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_cheats_get_nothing_and_are_counted(pool: SandboxPool) -> None:
    """What the candidate's process says of its own inability is no excuse: the tests that it does not pass have failed."""
    limits = Limits(timeout_s=1, memory_mb=300)
    for name, verdict in (await verdicts(with_files(stand_in_cases.cheats()), pool, limits)).items():
        statuses = {result.status.value for result in verdict.results}
        assert statuses <= FAILURES, (name, verdict.results)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_an_object_that_is_equal_to_the_first_it_meets_is_equal_to_nothing(pool: SandboxPool) -> None:
    programs = {name: (first_contact.HONEST, code) for name, code in first_contact.tests().items()}
    for name, honest in (await verdicts(with_assertions(programs), pool, deadline_s=PATIENCE_S)).items():
        assert honest.passed, (name, honest.results)
    programs = {name: (first_contact.CHEAT, code) for name, code in first_contact.tests().items()}
    for name, cheat in (await verdicts(with_assertions(programs), pool)).items():
        assert cheat.status == "wrong_answer", (name, cheat.results)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_an_object_that_guesses_what_is_expected_is_no_plain_data(pool: SandboxPool) -> None:
    for name, verdict in (await verdicts(with_assertions(plain_jokers.honest()), pool, deadline_s=PATIENCE_S)).items():
        assert verdict.passed, (name, verdict.results)
    for name, verdict in (await verdicts(with_assertions(plain_jokers.cheats()), pool)).items():
        assert verdict.status in FAILURES, (name, verdict.results)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_honest_programs_pass_each_run(pool: SandboxPool) -> None:
    honest = {**replay_cases.honest(), **consistency_cases.honest(), **identity_cases.honest()}
    for name, verdict in (await verdicts(with_either(honest), pool, deadline_s=PATIENCE_S)).items():
        assert verdict.passed, (name, verdict.results)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_what_names_one_thing_twice_or_spoils_what_it_is_given_has_failed(pool: SandboxPool) -> None:
    limits = Limits(timeout_s=1, memory_mb=300)
    found = await verdicts(with_either(identity_cases.cheats()), pool, limits, deadline_s=10)
    for name, verdict in found.items():
        assert {result.status.value for result in verdict.results} & FAILURES, (name, verdict.results)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("programs", [replay_cases.cheats(), consistency_cases.cheats()])
async def test_what_passes_whatever_is_expected_does_not_pass(
    pool: SandboxPool, programs: dict[str, tuple[str, str]]
) -> None:
    limits = Limits(timeout_s=2, memory_mb=300)
    for name, verdict in (await verdicts(with_either(programs), pool, limits)).items():
        assert {result.status.value for result in verdict.results} <= FAILURES | {"passed"}, name
        assert not verdict.passed, name


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_no_comparison_is_too_late_and_no_process_too_early_gone(pool: SandboxPool) -> None:
    """Of two dozen comparisons each is asked again, and of tests before one in which the program ends itself."""
    source = "import os\nclass M:\n def __init__(self, x): self.x = x\n def __eq__(self, o): return isinstance(o, M)\ndef end(): os._exit(0)"
    code = "\n".join(f"def test_{number}(): assert M({number}) == M({number})" for number in range(24))
    many = await grade(source, [TestFile(code=f"from solution import *\n{code}")], pool=pool)
    assert {result.status.value for result in many.results} == {"wrong_answer"}
    ended = "from solution import M, end\ndef test_a(): assert M(1) == M(1)\ndef test_b(): end()"
    verdict = await grade(source, [TestFile(code=ended)], pool=pool)
    assert [result.status.value for result in verdict.results] == ["wrong_answer", "runtime_error"]


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_the_right_test_is_revoked_after_a_skipped_one(pool: SandboxPool) -> None:
    source = "import os\nclass Q:\n def __init__(self, x): pass\n def __eq__(self, o): return isinstance(o, Q)\nclass P(Q):\n def __init__(self, x): self.x = x\n def __eq__(self, o): return self.x == o.x\ndef end(): os._exit(0)"
    code = (
        "import pytest\nfrom solution import P, Q, end\n"
        "def test_skipped():\n try: end()\n except BaseException: pytest.skip('')\n"
        "def test_cheat(): assert Q(1) == Q(1)\ndef test_honest(): assert P(1) == P(1)"
    )
    verdict = await grade(source, [TestFile(code=code)], pool=pool)
    found = {result.name.rpartition("::")[2]: result.passed for result in verdict.results}
    assert (found["test_cheat"], found["test_honest"]) == (False, True), verdict.results


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_what_the_candidate_has_the_tests_do_takes_its_time(pool: SandboxPool) -> None:
    source = "def take(q): return q.get()"
    code = "import queue\nfrom solution import take\ndef test(): assert take(queue.Queue()) == 1"
    with anyio.fail_after(30):
        verdict = await grade(source, [TestFile(code=code)], pool=pool, limits=Limits(timeout_s=0.5, memory_mb=300))
    assert verdict.status == "time_limit", verdict.results


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_functions_of_the_library_are_the_candidate_s_own(pool: SandboxPool) -> None:
    """One that a test gives runs where the candidate runs: in the tests' process, `pickle.loads` would run anything."""
    source = "import os\ndef where(loads): return loads(b'cos\\ngetpid\\n(tR.') == os.getpid()\ndef same(f): return f"
    code = "import pickle, operator, sys\nassert where(pickle.loads)\nassert same(operator.add) is operator.add and same(sys.stdout) is sys.stdout"
    verdict = await grade(source, [AssertTest(code=code)], pool=pool)
    assert verdict.passed, verdict.results


async def test_an_argument_that_is_given_back_is_the_same(pool: SandboxPool) -> None:
    source = "def sort(x): x.sort(); return x\ndef copy(x): return list(x)"
    code = "q = [2, 1]\nr = sort(q)\nassert r is q and q == [1, 2] and copy(q) is not q\nr.append(3)\nassert sort(q) == [1, 2, 3]"
    verdict = await grade(source, [AssertTest(code=code, in_place=True)], pool=pool)
    assert verdict.passed, verdict.results


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_a_file_s_tests_are_revoked_one_by_one(pool: SandboxPool) -> None:
    source = "class P:\n def __init__(self, *a): self.a = a\n def __eq__(self, o): return isinstance(o, P)"
    code = "from solution import P\ndef test_equal(): assert P(1) == P(1)\ndef test_made(): assert P(1).a == (1,)"
    verdict = await grade(source, [TestFile(code=code)], pool=pool)
    assert [result.status.value for result in verdict.results] == ["wrong_answer", "passed"]


NEEDS = {
    "an object that is entered, of a class that is closed": "import sqlite3\nenter(sqlite3.connect(':memory:'))",
    "a class derived from the candidate's": "class Mine(Base): pass",
    "an argument without end": "use(range(10**9))",
    "an object whose attributes are used, of a class that is closed": "import sqlite3\nuse(sqlite3.connect(':memory:'))",
    "what Python itself has of a class": "from dataclasses import dataclass\n@dataclass\nclass Mine: x: int\ndocument(Mine(1))",
}


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("caught", ["Exception", "BaseException", ""])
async def test_what_a_test_needs_and_cannot_have_is_no_pass(pool: SandboxPool, caught: str) -> None:
    source = "class Base: pass\ndef use(it): return it.total_changes\ndef document(it): return it.__dataclass_fields__\ndef enter(it):\n with it: pass"
    for name, code in NEEDS.items():
        lines = "\n".join(f" {line}" for line in code.splitlines())
        test = AssertTest(code=f"try:\n{lines}\nexcept {caught}: pass\nelse: assert False")
        verdict = await grade(source, [test], pool=pool)
        assert verdict.status == "checker_error", (name, verdict.results)
        assert "needs" in verdict.results[0].message or "uses" in verdict.results[0].message


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_a_change_that_the_test_does_not_see_is_mentioned(pool: SandboxPool) -> None:
    source = "def last(items): return items.pop()"
    code = "items = [1, 2]\nassert last(items) == 2 and items == [1]"
    verdict = await grade(source, [AssertTest(code=code), AssertTest(code=code, in_place=True)], pool=pool)
    assert [result.passed for result in verdict.results] == [False, True]
    assert "with in_place = true" in verdict.results[0].message


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_nonsense_satisfies_no_expectation(pool: SandboxPool) -> None:
    source = "import sys\nsys.modules['agentrl.sandboxes.inside.candidate'].Candidate.call = lambda *_: {'ok': {'what': 1}}\ndef f(): pass"
    code = "import pytest\nfrom solution import f\ndef test_raises():\n    with pytest.raises(BaseException): f()\n    pytest.skip('no need')"
    verdict = await grade(source, [TestFile(code=code)], pool=pool)
    assert [result.status.value for result in verdict.results] == ["wrong_answer"]


ENDS = {
    "pytest": "from solution import f\ndef test_a(): assert f(1) == 2\ndef test_b(): assert f(2) == 3",
    "unittest": "import unittest\nfrom solution import f\nclass T(unittest.TestCase):\n def test_a(self): self.assertEqual(f(1), 2)\n"
    " def test_b(self):\n  with self.subTest(): self.assertEqual(f(2), 3)",
}


@pytest.mark.parametrize("framework", [pytest.param("pytest", marks=pytest.mark.soak), "unittest"])
async def test_who_ends_the_tests_has_failed_them(pool: SandboxPool, framework: Literal["pytest", "unittest"]) -> None:
    """A test has passed when its framework says so, and not when it says nothing else."""
    for raised in ("KeyboardInterrupt", "SystemExit(0)", "GeneratorExit", "BaseException", "StopIteration", "End"):
        source = f"class End(KeyboardInterrupt): pass\ndef f(x): raise {raised}"
        test = TestFile(code=ENDS[framework], framework=framework)
        verdict = await grade(source, [test], pool=pool)
        statuses = {result.status.value for result in verdict.results}
        assert statuses <= {"runtime_error", "wrong_answer", "not_run"}, (raised, verdict.results)


WAYS_TO_END = {
    "as the tests are collected": (
        "class G:\n def __init__(self): raise SystemExit",
        "from solution import G\nG()\ndef test(): assert True",
    ),
    "as an object is shown": (
        "class G:\n def __repr__(self): raise SystemExit\n def value(self): return 1",
        "from solution import G\nimport pytest\n@pytest.fixture\ndef g(): return G()\ndef test(g): assert g.value() == 2",
    ),
    "with a large number": (
        "def f(): return 10**9",
        "from solution import f\ndef test(): assert len('x' * f() * f()) == 1",
    ),
    "with a wait": ("def f(): return 10**9", "import time\nfrom solution import f\ndef test(): time.sleep(f())"),
    "with a power": ("def f(): return 10**10", "from solution import f\ndef test(): assert 3 ** f() == 1"),
}


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", WAYS_TO_END)
async def test_who_has_the_tests_end_has_failed_them(pool: SandboxPool, way: str) -> None:
    source, code = WAYS_TO_END[way]
    verdict = await grade(
        source, [TestFile(code=code)], pool=pool, limits=Limits(timeout_s=0.2, memory_mb=300), deadline_s=3
    )
    statuses = {result.status.value for result in verdict.results}
    assert statuses <= FAILURES, verdict.results


async def test_what_is_skipped_or_expected_to_fail_is_no_failure(pool: SandboxPool) -> None:
    files = {
        "pytest": "import pytest\nfrom solution import f\ndef test_it(): assert f(1) == 2\ndef test_skip(): pytest.skip()\n"
        "@pytest.mark.xfail\ndef test_fails(): assert f(1) == 3\n@pytest.mark.xfail(run=False)\ndef test_no(): pass\ndef test_x(): pytest.xfail('')",
        "unittest": "import unittest\nfrom solution import f\nclass T(unittest.TestCase):\n def test_it(self): self.assertEqual(f(1), 2)\n"
        " def test_skip(self): self.skipTest('')\n @unittest.expectedFailure\n def test_fails(self): self.assertEqual(f(1), 3)\n"
        " def test_part(self):\n  for i in range(2):\n   with self.subTest(i=i):\n    if i: self.skipTest('')\n    self.assertEqual(f(i), 1)",
    }
    for framework, code in files.items():
        test = TestFile(code=code, framework="unittest" if framework == "unittest" else "pytest")
        verdict = await grade("def f(x): return x + 1", [test], pool=pool)
        assert verdict.passed, verdict.results


async def test_the_module_s_names_can_be_patched(pool: SandboxPool) -> None:
    source = "import random\nRATE = 2\ndef fetch(x): raise OSError\ndef total(x): return fetch(x) * RATE + random.randint(1, 6)"
    code = """
from unittest.mock import Mock, patch
import pytest
import solution
def test_patched():
    with patch("solution.fetch", return_value=5) as fetch, patch("solution.RATE", 3), patch("solution.random.randint", Mock(return_value=1)):
        assert solution.total(7) == 16
        fetch.assert_called_once_with(7)
    with pytest.raises(OSError): solution.total(7)
    assert solution.RATE == 2
def test_monkeypatched(monkeypatch):
    monkeypatch.setattr(solution, "fetch", lambda x: x)
    monkeypatch.setattr("solution.RATE", 10)
    assert 51 <= solution.total(5) <= 56
def test_restored():
    with pytest.raises(OSError): solution.total(7)
    assert solution.RATE == 2
"""
    verdict = await grade(source, [TestFile(code=code)], pool=pool)
    assert [result.status.value for result in verdict.results] == ["passed"] * 3, verdict.results


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_names_are_the_candidate_s_only_where_nobody_else_s(pool: SandboxPool) -> None:
    source = "def sum(items): return 'mine'\ndef sqrt(x): return 'mine'\nclass Solution:\n    def double(self, x): return 2 * x"
    explicit = TestFile(
        code="from solution import sum\nfrom math import *\ndef test(): assert sum([1]) == 'mine' and sqrt(4) == 2"
    )
    star = TestFile(
        code="from math import *\nfrom solution import *\ndef test(): assert sum([1]) == 1 and sqrt(4) == 2"
    )
    method = AssertTest(code="def check(candidate): assert candidate(3) == 6", entry_point="Solution().double")
    builtin = AssertTest(
        code="def check(candidate): assert candidate([1]) == 'mine' and sum([1]) == 1", entry_point="sum"
    )
    verdict = await grade(source, [explicit, star, method, builtin], pool=pool)
    assert verdict.passed, verdict.results


async def test_changes_of_arguments_are_seen_after_calls_that_return_none(pool: SandboxPool) -> None:
    source = "def empty(items):\n    items.clear()\n    return []\ndef sort(items): items.sort()"
    code = "xs = [2, 1]\nassert empty(xs) == sorted(xs)"
    verdict = await grade(source, [AssertTest(code=code), AssertTest(code=code, in_place=True)], pool=pool)
    assert [result.passed for result in verdict.results] == [False, True]
    verdict = await grade(
        source,
        [AssertTest(code="xs = [2, 1]\nsort(xs)\nassert xs == [1, 2]", in_place=no) for no in (None, False)],
        pool=pool,
    )
    assert [result.passed for result in verdict.results] == [True, False]
