"""Partial rewards: the share of the tests that a program passes, without what programs that do nothing pass.

    reward = Σ (passed − free) / Σ (1 − free)        over the tests; of a file, over its functions

`free` is the share of a function's runs that a program passes by doing nothing. Parameters of a function count together, so that
no program earns more by making more of them.
"""

from __future__ import annotations

import builtins
import hashlib
import keyword
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from agentrl.concurrency.threads import in_thread
from agentrl.errors import ConfigError
from agentrl.sandboxes.checked_fields import check_argument
from agentrl.sandboxes.grading.grade import grade
from agentrl.sandboxes.grading.tests import CPP, PYTHON, AssertTest, CallTest, IOTest, Language, Test, TestFile
from agentrl.sandboxes.grading.verdict import TestResult, Verdict
from agentrl.sandboxes.pool import SandboxPool
from agentrl.sandboxes.seams import Limits

Baseline = Sequence[Mapping[str, float]]
"""What programs that do nothing pass of each test: the share of its runs, by the name of the function; `[{"test 1": 1.0}, ...]`."""

_STUBS = """
class _Stub(Exception):
    def __init__(self, *args, **kwargs): pass
    def __getattr__(self, name): return _stub
def _stub(*args, **kwargs):
    {body}
"""


def do_nothing_programs(tests: Sequence[Test], language: Language = PYTHON) -> dict[str, str]:
    """Return the programs that count as doing nothing for `tests`, by name.

    The empty program; and in Python, for tests that call, every name that they want as a function that returns None, or that
    raises NotImplementedError.
    """
    programs = {"empty": "int main() {}\n" if language == CPP else ""}
    if language == PYTHON and not all(isinstance(test, IOTest) for test in tests):
        programs["stubs"] = stubs(tests, "return None")
        programs["stubs that raise"] = stubs(tests, "raise NotImplementedError")
    return programs


def stubs(tests: Sequence[Test], body: str) -> str:
    """Return a program with every name that tests may want: LIMIT is None, Stack a class, push a function with this body."""
    names = sorted({name for test in tests for name in _wanted(test)} - {*dir(builtins), *keyword.kwlist})
    lines = [
        f"{name} = None"
        if name[1:].isupper()
        else f"class {name}(_Stub): pass"
        if name[0].isupper()
        else f"{name} = _stub"
        for name in names
    ]
    return "\n".join([_STUBS.format(body=body), *lines, ""])


def _wanted(test: Test) -> set[str]:
    """Return the names that a test may want of a program; of code, every word but the modules that it imports."""
    match test:
        case CallTest(function=name) | AssertTest(entry_point=str(name)):
            return {re.split(r"\W", name)[0]}
        case AssertTest(code=code) | TestFile(code=code):
            return {*re.findall(r"\b[A-Za-z]\w*", code)} - {*re.findall(r"^import (\w+)", code, re.MULTILINE)}
    return set()


def partial_credit(results: Sequence[TestResult], baseline: Baseline) -> float:
    """Return the share of tests passed of those that do not come for nothing: 0 for a program that does nothing, 1 for one that passes all.

    A file's functions are those of the program's own run, or of the baseline where that has more: a program that cannot be imported
    does not make them fewer. 0 where nothing is left to earn.
    """
    earned = earnable = 0.0
    for own, free in zip(_shares(results, len(baseline)), baseline, strict=True):
        for name in own if len(own) >= len(free) else free:
            earnable += 1 - free.get(name, 0.0)
            earned += max(0.0, own.get(name, 0.0) - free.get(name, 0.0))
    return earned / earnable if earnable else 0.0


def earnable(baseline: Baseline) -> bool:
    """Return whether a program that does nothing leaves a test to earn."""
    return any(share < 1 for free in baseline for share in free.values())


def _shares(results: Sequence[TestResult], count: int) -> list[dict[str, float]]:
    """Return of each test the share of its runs that pass, by the name of the function."""
    runs: list[dict[str, list[bool]]] = [defaultdict(list) for _ in range(count)]
    for result in results:
        runs[result.test_index][result.name.partition("[")[0]].append(result.passed)
    return [{name: sum(passed) / len(passed) for name, passed in test.items()} for test in runs]


async def grade_partial(
    source: str,
    tests: Sequence[Test],
    *,
    pool: SandboxPool,
    language: Language = PYTHON,
    limits: Limits | None = None,
    deadline_s: float | None = None,
    baseline: Baseline | None = None,
) -> Verdict:
    """Run a program against all its tests, as `grade` does, for a verdict that has a `fraction`.

    `baseline` is that of a vetted task. Without it, what programs that do nothing pass is measured first, once for the same tests
    in the same pool, and is no part of `deadline_s`.

    Raises:
        ConfigError: The tests make no sense, or programs that do nothing pass all of them.
        SandboxError: None could be had within the pool's `wait_timeout_s`, or none can be started.
    """
    if baseline is None:
        baseline = await measured_baseline(tests, pool=pool, language=language, limits=limits)
    if not earnable(baseline):
        raise ConfigError(
            "a program that does nothing passes all tests of this task, so that no partial reward can be earned; mend its tests "
            "or leave it out (`agentrl vet` finds such tasks)"
        )
    verdict = await grade(source, tests, pool=pool, language=language, limits=limits, deadline_s=deadline_s)
    return replace(verdict, fraction=partial_credit(verdict.results, baseline))


async def measured_baseline(
    tests: Sequence[Test], *, pool: SandboxPool, language: Language = PYTHON, limits: Limits | None = None
) -> Baseline:
    """Return what programs that do nothing pass of `tests`. Measured once for the same tests; raises as `grade` does."""
    check_argument("pool", pool, SandboxPool)
    check_argument("tests", tests, Sequence[Test])

    key = await in_thread(_digest, list(tests), language, limits)
    async with pool.measuring[key]:
        if key not in pool.baselines:
            runs = []
            for source in do_nothing_programs(tests, language).values():
                verdict = await grade(source, tests, pool=pool, language=language, limits=limits)
                runs.append(_shares(verdict.results, len(tests)))
            pool.baselines[key] = [
                {name: max(run.get(name, 0.0) for run in of_test) for name in max(of_test, key=len)}
                for of_test in zip(*runs, strict=True)
            ]
    baseline: Baseline = pool.baselines[key]
    return baseline


def _digest(*content: object) -> bytes:
    # The repr of these dataclasses holds all of their content, and is the same for the same content.
    return hashlib.sha256(repr(content).encode(errors="surrogatepass")).digest()
