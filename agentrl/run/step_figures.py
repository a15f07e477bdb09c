"""Figures out of the metrics of a run's steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agentrl.store.rewards import RewardFigure


def figures(rows: Iterable[Mapping[str, Any]], *names: str) -> list[tuple[float, ...]]:
    """Return the named figures of the steps that have all of them. One that is no finite number, which the audit reports, is not there."""
    found: Iterator[tuple[Any, ...]] = (tuple(row.get(name) for name in names) for row in rows)
    return [
        values for values in found if all(type(value) in (int, float) and abs(value) < math.inf for value in values)
    ]


def pooled_figure(rows: Iterable[Mapping[str, Any]]) -> RewardFigure:
    """Return the figure of several steps together, from their metrics: every group weighs the same, whatever its step."""
    rows = list(rows)
    counts = figures(rows, "reward_groups", "reward_episodes", "reward_failed")
    means = figures(rows, "reward_mean", "reward_groups")
    groups = sum(n for _, n in means)
    mean = sum(mean * n for mean, n in means) / groups if groups else None
    return RewardFigure(mean, *(int(sum(row[column] for row in counts)) for column in range(3)))
