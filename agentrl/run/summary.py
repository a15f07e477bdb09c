"""The metrics of a whole run, over all its starts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrl.run.run_directory import read_metrics
from agentrl.store.episodes import count_totals
from agentrl.store.rewards import MeanReward, best_checkpoint
from agentrl.store.store import Store

SUMMED_UP_STEPS = 5
"""Steps at either end of a run whose rewards its summary shows."""


def run_summary(
    run_dir: Path,
    store: Store,
    *,
    step: int,
    eval_after: float | None,
    alarms: Mapping[str, int],
    staleness_bound: int | None,
) -> dict[str, Any]:
    """Return the metrics of a run, from its store and its steps; `summary.json` holds them.

    Args:
        run_dir: The run directory.
        store: Its store.
        step: The last training step.
        eval_after: Mean reward after training.
        alarms: How often each alarm has begun.
        staleness_bound: The bound that the order of consumption gives; None: there is none.
    """
    steps, before = read_metrics(run_dir), run_dir / "eval_before.json"
    totals = store.read(count_totals)
    aged = metric_values(steps, "staleness_mean", "staleness_max", "trained_tokens")
    tokens = sum(trained for _, _, trained in aged) or 1
    compared = metric_values(steps, "logprob_mismatch_mean_abs", "logprob_mismatch_max_abs", "logprob_mismatch_tokens")
    compared_tokens = sum(count for _, _, count in compared)
    return {
        "eval_before": json.loads(before.read_bytes())["mean_reward"] if before.exists() else None,
        "eval_after": eval_after,
        "steps": step,
        "wall_s": steps[-1]["wall_s"] if steps else 0.0,
        "reward_first_steps": pooled_reward(steps[:SUMMED_UP_STEPS]).to_metrics(),
        "reward_last_steps": pooled_reward(steps[-SUMMED_UP_STEPS:]).to_metrics(),
        "best_checkpoint": store.read(best_checkpoint),
        "alarms": dict(alarms),
        "staleness_mean": sum(mean * trained for mean, _, trained in aged) / tokens,
        "staleness_max": max((most for _, most, _ in aged), default=0.0),
        "staleness_bound": staleness_bound,
        "tokens_total": totals.tokens,
        "tokens_in_interrupted_replies": totals.interrupted_tokens,
        "tokens_replayed": totals.replayed_tokens,
        "logprob_mismatch_mean": (
            sum(mean * count for mean, _, count in compared) / compared_tokens if compared_tokens else None
        ),
        "logprob_mismatch_max": max((most for _, most, _ in compared), default=None),
        "pause_s_total": sum(pause_s for (pause_s,) in metric_values(steps, "pause_s")),
        "reasons": store.read(lambda db: dict(db.execute("SELECT reason, COUNT(*) FROM episodes GROUP BY reason"))),
        "episodes_finished": totals.finished,
        "attempts_failed": totals.failed,
    }


def metric_values(rows: Iterable[Mapping[str, Any]], *names: str) -> list[tuple[float, ...]]:
    """Return the named metrics of the steps that have all of them as finite numbers."""
    found: Iterator[tuple[Any, ...]] = (tuple(row.get(name) for name in names) for row in rows)
    return [
        values for values in found if all(type(value) in (int, float) and abs(value) < math.inf for value in values)
    ]


def pooled_reward(rows: Iterable[Mapping[str, Any]]) -> MeanReward:
    """Return the mean reward of several steps together, from their metrics: every group of every step weighs the same."""
    rows = list(rows)
    counts = metric_values(rows, "reward_groups", "reward_episodes", "reward_failed")
    means = metric_values(rows, "reward_mean", "reward_groups")
    groups = sum(n for _, n in means)
    mean = sum(mean * n for mean, n in means) / groups if groups else None
    return MeanReward(mean, *(int(sum(row[column] for row in counts)) for column in range(3)))
