"""Partial rewards: the share of the tests that a program passes, without what programs that do nothing pass.

    reward = Σ (passed − free) / Σ (1 − free)        over the tests; of a file, over its functions

`free` is the share of a function's runs that a program passes by doing nothing. Parameters of a function count together, so that
no program earns more by making more of them.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from agentrl.sandboxes.grading.code_reading import names_of_program
from agentrl.sandboxes.grading.tests import CallTest, IOTest, Test
from agentrl.sandboxes.grading.verdict import TestResult

Baseline = Sequence[Mapping[str, float]]
"""What programs that do nothing pass of each test: the share of its runs, by the name of the function; `[{"test 1": 1.0}, ...]`."""

_STUBS = """
class _Stub(Exception):
    def __init__(self, *args, **kwargs): pass
    def __getattr__(self, name): return _stub
def _stub(*args, **kwargs):
    {body}
"""


def do_nothing_programs(tests: Sequence[Test]) -> dict[str, str]:
    """Return the programs that count as doing nothing for `tests`, by name.

    The empty program; and for tests that call, every name that they want as a function that returns None, or that raises
    NotImplementedError. They are in Python whatever the language of the task: what they print is nothing.
    """
    programs = {"empty": ""}
    if not all(isinstance(test, IOTest) for test in tests):
        programs["stubs"] = stubs(tests, "return None")
        programs["stubs that raise"] = stubs(tests, "raise NotImplementedError")
    return programs


def stubs(tests: Sequence[Test], body: str) -> str:
    """Return a program with every name that tests want: LIMIT is None, Stack a class, push a function with this body."""
    lines = []
    for name in sorted({name for test in tests for name in _wanted(test)}):
        if name[1:].isupper():
            lines.append(f"{name} = None")
        else:
            lines.append(f"class {name}(_Stub): pass" if name[0].isupper() else f"{name} = _stub")
    return "\n".join([_STUBS.format(body=body), *lines, ""])


def _wanted(test: Test) -> set[str]:
    """Return the names that a test wants of a program."""
    if isinstance(test, CallTest):
        return {re.split(r"\W", test.function)[0]}
    return set() if isinstance(test, IOTest) else {*names_of_program(test).values()}


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


def least_shares(runs: Sequence[Sequence[TestResult]], count: int) -> Baseline:
    """Return the baseline of `count` tests from the results of programs that do nothing: of each function the most that one passes."""
    of_programs = [_shares(results, count) for results in runs]
    return [
        {name: max(run.get(name, 0.0) for run in of_test) for name in max(of_test, key=len)}
        for of_test in zip(*of_programs, strict=True)
    ]


def tests_digest(*content: object) -> bytes:
    """Return a name for the content of tests and of what they are run with."""
    # The repr of these dataclasses holds all of their content, and is the same for the same content.
    return hashlib.sha256(repr(content).encode(errors="surrogatepass")).digest()
