"""The end of a run: what is shown of it, and its metrics over all its starts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.rollout.alarms import ALARMS, RECENT_EPISODES
from agentrl.run.open_run import Run
from agentrl.run.run_directory import SUMMARY, read_metrics
from agentrl.run.training_loop import TrainingRun
from agentrl.store.episodes import count_totals
from agentrl.store.read_episode import sample_replies
from agentrl.store.rewards import best_checkpoint, evaluations
from agentrl.system.files import write_whole
from agentrl.system.tasks import in_thread


async def conclude(run: TrainingRun) -> None:
    """Show a good and a bad reply, tell where everything is, and write the summary of a run that has ended with its last step."""
    store, view, shown = run.store, run.view, Path(run.config.run_dir)
    await in_thread(store.check_in_place)
    last = partial(Run(store.directory).episodes, reason="finished", limit=RECENT_EPISODES, newest_first=True)
    for line in await in_thread(lambda: list(sample_replies(last()))):
        view.say(line)
    kept = await in_thread(store.kept_checkpoints)
    view.say(
        f"the run is in {shown}"
        + (f", its newest checkpoint in {shown / 'checkpoints' / kept[-1][1].name}" if kept else "")
        + f"; agentrl view {shown} shows it, agentrl audit {shown} tells what became of every task"
    )
    summary = await in_thread(_summary, run)
    await in_thread(write_whole, store.directory / SUMMARY, json.dumps(summary, indent=2) + "\n")


def _summary(run: TrainingRun) -> dict[str, Any]:
    """Return the metrics of a run, from its store and its steps; `summary.json` holds them."""
    store, steps = run.store, read_metrics(run.store.directory)
    held_out = store.read(evaluations)
    before, after = held_out.get(0, {}), held_out.get(run.trainer.weights.version, {})
    totals = store.read(count_totals)
    begun = {
        name: int(run.counted_before.get(f"alarm_{name}", 0)) + run.alarm_watch.begun.get(name, 0) for name in ALARMS
    }
    aged = metric_values(steps, "staleness_mean", "staleness_max", "trained_tokens")
    tokens = sum(trained for _, _, trained in aged) or 1
    compared = metric_values(steps, "logprob_mismatch_mean_abs", "logprob_mismatch_max_abs", "logprob_mismatch_tokens")
    compared_tokens = sum(count for _, _, count in compared)
    return {
        "eval_before": before.get("mean_reward"),
        "eval_before_95": before.get("mean_reward_95"),
        "eval_after": after.get("mean_reward"),
        "eval_after_95": after.get("mean_reward_95"),
        "steps": run.trainer.weights.version,
        "wall_s": steps[-1]["wall_s"] if steps else 0.0,
        "best_checkpoint": store.read(best_checkpoint),
        "alarms": {name: count for name, count in begun.items() if count},
        "staleness_mean": sum(mean * trained for mean, _, trained in aged) / tokens,
        "staleness_max": max((most for _, most, _ in aged), default=0.0),
        "staleness_bound": run.controller.gate.bound,
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
