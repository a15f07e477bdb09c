"""Values that take long to measure, measured once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import anyio

T = TypeVar("T")
KEPT = 1024


@dataclass(eq=False)
class _Entry(Generic[T]):
    measuring: anyio.Lock = field(default_factory=anyio.Lock)
    value: T | None = None


class MeasuredOnce(Generic[T]):
    """Values by their keys, each measured once; the last KEPT of them."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Hashable, _Entry[T]] = OrderedDict()

    async def get(self, key: Hashable, measure: Callable[[], Awaitable[T]]) -> T:
        """Return the value of `key`, measured if it is not known; who asks meanwhile waits for it. What `measure` raises is not kept."""
        entry = self._entries.setdefault(key, _Entry())
        self._entries.move_to_end(key)
        if len(self._entries) > KEPT:
            self._entries.popitem(last=False)
        async with entry.measuring:
            if entry.value is None:
                entry.value = await measure()
        return entry.value
