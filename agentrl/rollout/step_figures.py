"""Figures out of the metrics of a run's steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def figures(rows: Iterable[Mapping[str, Any]], *names: str) -> list[tuple[float, ...]]:
    """Return the named figures of the steps that have all of them. One that is no finite number, which the audit reports, is not there."""
    found: Iterator[tuple[Any, ...]] = (tuple(row.get(name) for name in names) for row in rows)
    return [
        values for values in found if all(type(value) in (int, float) and abs(value) < math.inf for value in values)
    ]
