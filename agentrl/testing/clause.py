"""A clause of a contract, and what says that it does not hold."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import anyio

from agentrl.errors import one_line
from agentrl.testing.problems import Problems


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
