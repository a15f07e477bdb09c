"""The problems that a check found, each with its remedy, the error that reports them all, and the clauses of a contract."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import anyio

from agentrl.errors import CheckFailedError, one_line


@dataclass
class Problems:
    """The problems of one subject, such as an environment; each is noted once."""

    subject: str
    found: dict[str, str] = field(default_factory=dict)
    """Remedies by problem."""

    def add(self, problem: str, remedy: str) -> None:
        """Note a problem, unless one with the same remedy is there already: it is the same mistake seen again."""
        if remedy not in self.found.values():
            self.found.setdefault(problem, remedy)

    def raise_any(self) -> None:
        """Raise what was found, if anything was.

        Raises:
            CheckFailedError: Every problem, with its remedy.
        """
        if self.found:
            count = "1 problem" if len(self.found) == 1 else f"{len(self.found)} problems"
            lines = [
                f"{number}. {problem}\n   {remedy}" for number, (problem, remedy) in enumerate(self.found.items(), 1)
            ]
            raise CheckFailedError("\n".join([f"{self.subject} has {count}:", *lines]))


class BrokenContractError(Exception):
    """A clause of the contract does not hold: (what happened, what the contract says)."""


def require(holds: bool, problem: str, remedy: str) -> None:
    """Check one clause.

    Args:
        holds: Whether it holds.
        problem: What happened.
        remedy: What the contract says.

    Raises:
        BrokenContractError: It does not hold.
    """
    if not holds:
        raise BrokenContractError(problem, remedy)


async def try_cases(
    cases: Iterable[Callable[[], Awaitable[None]]], problems: Problems, *, timeout_s: float, ends: str, raises: str
) -> None:
    """Run the cases of a contract, and note what is against it.

    Args:
        cases: Each is called what it tries.
        problems: Where it is noted.
        timeout_s: Bound of each case.
        ends: What the contract says of a case that does not end; `{name}` in it becomes that of the case.
        raises: What it says of a case that raises.
    """
    for case in cases:
        name = case.__name__.replace("_", " ")
        try:
            with anyio.fail_after(timeout_s):
                await case()
        except TimeoutError:
            problems.add(f"{name}: it took longer than {timeout_s:g} s", ends.format(name=name))
        except Exception as error:
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            if isinstance(error, BrokenContractError):
                problem, remedy = error.args
            else:
                problem, remedy = f"{type(error).__name__}: {one_line(error)}", raises.format(name=name)
            problems.add(f"{name}: {problem}", remedy)
