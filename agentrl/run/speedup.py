"""The gain of asynchrony, estimated from a run's own trace: how much longer the same steps would have taken one after the other.

    episodes of a step ─► list schedule on the C slots ─► synchronous rollout ─┐
    metrics of a step ─► training T, pause p ──────────────────────────────────┴─► S = Σ (rollout + T + p) / Σ step, S_max, ε = S / S_max

With mean episode time μ, B episodes a step, R = Bμ/C, ρ = T/R, w = p/R and κ = (synchronous rollout time)/R, the ideal gain on separate
resources is S_max = (κ + ρ + w) / max(1, ρ + w): an episode that sits through a pause takes so much longer, so R has the pauses in it.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

NEWEST_STEPS = 100
"""Steps that an estimate looks at."""
_EPISODES = """
SELECT b.step, e.duration_s, e.restart = b.restart FROM groups g CROSS JOIN batches b ON b.step = COALESCE(g.step, g.version + 1)
CROSS JOIN episodes e ON e.group_id = g.id
WHERE (g.step IS NOT NULL OR g.state = 'rejected') AND b.step > (SELECT MAX(step) FROM batches) - ? ORDER BY b.step, e.started_at
"""
"""A synchronous run would have run dropped groups in the step whose weights they began under."""


@dataclass(frozen=True)
class Speedup:
    """An estimate of the gain of asynchrony."""

    gain: float
    """S: the time of the same steps one after the other, over the time that they took. Too high where episodes at once slow each other."""
    bound: float
    """S_max: S if nothing had waited but for the slower of episodes and trainer."""
    efficiency: float
    """ε = S / S_max."""
    steps: int
    """Those that it rests on: the newest that a checkpoint contains, without those that a restart took again."""


def ideal_gain(rollout_s: float, sync_rollout_s: float, train_s: float, pause_s: float) -> float:
    """Return S_max = (κ + ρ + w) / max(1, ρ + w), from R, κR, T = ρR and p = wR in seconds."""
    return (sync_rollout_s + train_s + pause_s) / max(rollout_s, train_s + pause_s)


def list_schedule_s(durations_s: Iterable[float], slots: int) -> float:
    """Return when the last of some episodes ends, of which each takes the first of the slots that is free."""
    free = [0.0] * slots
    for duration_s in durations_s:
        heapq.heapreplace(free, free[0] + duration_s)
    return max(free)


def estimate_speedup(
    episodes: Iterable[tuple[int, float, bool]], rows: Iterable[Mapping[str, Any]], slots: int
) -> Speedup | None:
    """Return the estimate of some steps; None: it can be made of none.

    Args:
        episodes: (step, duration in s, whether it ran in the start of the run that trained on it), by step and start.
        rows: The metrics of the steps.
        slots: `rollout.max_concurrent`.
    """
    measured = {row["step"]: row for row in rows if row.keys() >= {"step_s", "wait_s", "pause_s"}}
    rollout_s, sync_rollout_s, train_s, pause_s, took_s, steps = 0.0, 0.0, 0.0, 0.0, 0.0, 0
    for step, batch in groupby(episodes, lambda episode: episode[0]):
        _, durations_s, in_one_start = zip(*batch, strict=True)
        if step not in measured or not all(in_one_start):
            continue
        row = measured[step]
        rollout_s += sum(durations_s) / slots
        sync_rollout_s += list_schedule_s(durations_s, slots)
        train_s += row["step_s"] - row["wait_s"] - row["pause_s"]
        pause_s += row["pause_s"]
        took_s += row["step_s"]
        steps += 1
    if not (took_s and rollout_s):
        return None
    gain = (sync_rollout_s + train_s + pause_s) / took_s
    bound = ideal_gain(rollout_s, sync_rollout_s, train_s, pause_s)
    return Speedup(gain, bound, gain / bound, steps)


def speedup_of(db: sqlite3.Connection, rows: Iterable[Mapping[str, Any]], slots: int) -> Speedup | None:
    """Return the estimate of the newest steps of a run, from its store and its metrics; None: no checkpoint contains a step yet."""
    return estimate_speedup(db.execute(_EPISODES, (NEWEST_STEPS,)), rows, slots)
