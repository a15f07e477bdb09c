"""The figures of a whole run, over all its starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.run.run_directory import read_mean_reward, read_metrics
from agentrl.run.step_figures import figures, pooled_figure
from agentrl.store.rewards import best_checkpoint
from agentrl.store.store import Store

SUMMED_UP_STEPS = 5
"""Steps at either end of a run whose rewards its summary shows."""


def run_summary(
    run_dir: Path,
    store: Store,
    *,
    step: int,
    wall_s: float,
    eval_after: float | None,
    alarms: Mapping[str, int],
    staleness_bound: int | None,
) -> dict[str, Any]:
    """Return the figures of a run, from its store and its metrics; `summary.json` holds them.

    Args:
        run_dir: The run directory.
        store: Its store.
        step: The last training step.
        wall_s: Seconds that this start took.
        eval_after: Mean reward after training.
        alarms: How often each alarm has begun.
        staleness_bound: The bound that the order of consumption gives; None: there is none.
    """
    steps = read_metrics(run_dir)
    totals = store.totals()
    aged = figures(steps, "staleness_mean", "staleness_max", "trained_tokens")
    tokens = sum(trained for _, _, trained in aged) or 1
    compared = figures(steps, "logprob_mismatch_mean_abs", "logprob_mismatch_max_abs", "logprob_mismatch_tokens")
    compared_tokens = sum(count for _, _, count in compared)
    return {
        "eval_before": read_mean_reward(run_dir / "eval_before.json"),
        "eval_after": eval_after,
        "steps": step,
        "wall_s": wall_s,
        "reward_first_steps": pooled_figure(steps[:SUMMED_UP_STEPS]).to_metrics(),
        "reward_last_steps": pooled_figure(steps[-SUMMED_UP_STEPS:]).to_metrics(),
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
        "pause_s_total": sum(pause_s for (pause_s,) in figures(steps, "pause_s")),
        "ends": store.read(lambda db: dict(db.execute("SELECT status, COUNT(*) FROM episodes GROUP BY status"))),
        "episodes_finished": totals.finished,
        "episodes_failed": totals.failed,
    }
