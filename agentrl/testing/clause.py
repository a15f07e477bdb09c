"""A clause of a contract, and what says that it does not hold."""

from __future__ import annotations


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
