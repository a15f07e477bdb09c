"""Lines that warn when the figures of a training step say that the run is not healthy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agentrl.config import RunConfig


def alarms(metrics: Mapping[str, float], config: RunConfig, staleness_bound: int | None) -> Iterator[str]:
    """What in the metrics of a step says that the run is not healthy, in words."""
    trainer = config.trainer
    mismatch = metrics.get("logprob_mismatch_mean_abs", 0.0)
    if mismatch > trainer.alarm_mismatch:
        yield (
            f"engine and trainer differ by {mismatch:.2g} in mean |Δlogprob|, more than trainer.alarm_mismatch = "
            f"{trainer.alarm_mismatch:g}: are model, number format and chat format the same on both sides?"
        )
    low, high = metrics.get("weight_p01", 1.0), metrics.get("weight_p99", 1.0)
    if high > trainer.alarm_weight or low < 1 / trainer.alarm_weight:
        yield (
            f"p/b is {low:.2f} to {high:.2f} for 98 % of the tokens, beyond trainer.alarm_weight = {trainer.alarm_weight:g}: "
            "lower rollout.max_staleness or trainer.lr"
        )
    if staleness_bound is not None and metrics.get("staleness_max", 0.0) > staleness_bound:
        yield f"a token is {metrics['staleness_max']:.0f} versions old, and the bound is {staleness_bound}"
