"""Partial credit: which share of the tests a program passes, of those that a program has to do something to pass.

    reward = (passed − passed by programs that do nothing) / (all − those)

counted test by test, so that a program earns nothing by a test that it would pass by doing nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

ResultKey = tuple[str, int]
"""The name of a result, and how many results of the same test came before it with that name."""


class Result(Protocol):
    """As much of a `TestResult` as counting needs."""

    @property
    def test_index(self) -> int:
        """Index of the test that the result is of."""
        ...

    @property
    def name(self) -> str:
        """Name of the result."""
        ...

    @property
    def passed(self) -> bool:
        """Whether it passed."""
        ...


@dataclass(frozen=True)
class Baseline:
    """What programs that do nothing make of the tests of one task, by the index of the test."""

    known: Mapping[int, AbstractSet[ResultKey]]
    """The results of each test, as the program with the most of them has them."""
    free: Mapping[int, AbstractSet[ResultKey]]
    """Those that any of the programs passes."""

    @property
    def earnable(self) -> int:
        """The number of known results that have to be earned."""
        return sum(len(keys - self.free[index]) for index, keys in self.known.items())

    @property
    def free_count(self) -> int:
        """The number of results that come for nothing."""
        return sum(map(len, self.free.values()))


def baseline_of(runs: Iterable[Sequence[Result]]) -> Baseline:
    """Return the baseline that the results of programs that do nothing amount to."""
    known: dict[int, set[ResultKey]] = {}
    free: dict[int, set[ResultKey]] = {}
    for results in runs:
        for index, passed in _by_test(results).items():
            known[index] = max(known.get(index, set()), set(passed), key=len)
            free.setdefault(index, set()).update(key for key, value in passed.items() if value)
    return Baseline(known, free)


def partial_credit(results: Sequence[Result], baseline: Baseline) -> float:
    """Return the share of tests passed, of those that do not come for nothing: from 0, for a program that does nothing, to 1.

    A file's tests count as they are in the program's own run, or in the baseline where that has more of them: a program that breaks the
    file's import passes none of its tests, and does not make them fewer. Nor can it make them more: what one function is run with may
    be data of the program's, so runs that no baseline has count as one test, of which a share may pass. 0 where no test is left to earn.
    """
    earned, earnable = 0.0, 0
    own = _by_test(results)
    for index in own.keys() | baseline.known.keys():
        known, free = baseline.known.get(index, set()), baseline.free.get(index, set())
        passed = _shares(own.get(index, {}), known | free)
        counted = set(passed if len(passed) >= len(known) else known) - free
        counted -= {key for key in counted if key not in known and _comes_free(key[0], known, free)}
        earnable += len(counted)
        earned += sum(passed.get(key, 0.0) for key in counted)
    return earned / earnable if earnable else 0.0


def _shares(passed: Mapping[ResultKey, bool], known: AbstractSet[ResultKey]) -> dict[ResultKey, float]:
    """Return the share of each test that passes: 1 or 0, but of the runs of a function with parameters that nobody knows, together."""
    together: dict[ResultKey, list[bool]] = {}
    for key, value in passed.items():
        name, bracket, _ = key[0].partition("[")
        together.setdefault((name, 0) if bracket and key not in known else key, []).append(value)
    return {key: sum(values) / len(values) for key, values in together.items()}


def _comes_free(function: str, known: AbstractSet[ResultKey], free: AbstractSet[ResultKey]) -> bool:
    """Return whether every run of a function that a baseline has comes for nothing."""
    runs = {key for key in known if key[0].partition("[")[0] == function}
    return bool(runs) and runs <= free


def _by_test(results: Sequence[Result]) -> dict[int, dict[ResultKey, bool]]:
    seen: Counter[tuple[int, str]] = Counter()
    found: dict[int, dict[ResultKey, bool]] = {}
    for result in results:
        key = (result.test_index, result.name)
        found.setdefault(result.test_index, {})[result.name, seen[key]] = result.passed
        seen[key] += 1
    return found
