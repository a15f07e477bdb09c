"""The episodes that the page asks for, as its address says it: ?task=3&reason=failed&sort=best&limit=50."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.errors import UsageError
from agentrl.record.end_reason import EndReason
from agentrl.run.open_run import FAILED
from agentrl.store.episodes import Order

ORDERS: tuple[Order, ...] = ("newest", "oldest", "best", "worst")
STALENESS = "g.step - 1 - g.version"
"""Versions between a group's start and the step that it is trained in."""
_CONDITIONS = {
    "task": "g.task = ?",
    "group": "e.group_id = ?",
    "step": "g.step = ?",
    "reason": "e.reason = ?",
    "min_reward": "e.reward >= ?",
    "max_reward": "e.reward <= ?",
    "min_staleness": f"{STALENESS} >= ?",
}


@dataclass(frozen=True)
class Wanted:
    """The episodes that are asked for, as the page's address says it."""

    where: Mapping[str, Any] = field(default_factory=dict)
    """Conditions, as `list_episodes` takes them."""
    role: str = ""
    text: str = ""
    ids: Sequence[int] = ()
    order: Order = "newest"
    after: int | None = None
    limit: int = 50


def wanted(query: Mapping[str, str], most: int = 1000) -> Wanted:
    """Return what a query asks for.

    Args:
        query: The fields of the page's address.
        most: The largest limit.

    Raises:
        UsageError: A field has no value that it may have.
    """
    where: dict[str, Any] = {}
    for name, condition in _CONDITIONS.items():
        if value := query.get(name, ""):
            where[condition] = value if name == "reason" else number_of(name, value, whole="reward" not in name)
    reason = query.get("reason", "")
    if reason not in ("", FAILED, *EndReason):
        raise UsageError(f"reason = {reason!r}: no episode has it; use {FAILED} or one of {', '.join(EndReason)}")
    if reason == FAILED:
        del where[_CONDITIONS["reason"]]
        where["e.reason != ?"] = EndReason.FINISHED
    order = next((order for order in ORDERS if order == query.get("sort", "newest")), None)
    if order is None:
        raise UsageError(f"sort = {query['sort']!r}: use one of {', '.join(ORDERS)}")
    cursor, ids = query.get("cursor", ""), query.get("ids", "")
    return Wanted(
        where=where,
        role=query.get("role", ""),
        text=query.get("text", ""),
        ids=[int(number_of("ids", one)) for one in ids.split(",")] if ids else (),
        order=order,
        after=int(number_of("cursor", cursor)) if cursor else None,
        limit=int(min(max(1, number_of("limit", query.get("limit") or "50")), most)),
    )


def number_of(name: str, value: str, *, whole: bool = True) -> float:
    """Return the number that a field of the page's address holds.

    Raises:
        UsageError: It holds something else.
    """
    try:
        return int(value) if whole else float(value)
    except ValueError:
        raise UsageError(f"{name} = {value!r} is no number; use one, or leave it out") from None
