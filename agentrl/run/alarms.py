"""Lines that warn when a run does not learn, beside those of its episodes (`agentrl.rollout.alarms`), and what a run waits for."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentrl.config import RunConfig
from agentrl.engine.client.sglang import SGLangEngine
from agentrl.rollout.alarms import Alarm
from agentrl.rollout.controller import Controller
from agentrl.rollout.health import Health

UNIFORM_GROUPS = 16
"""Groups in a row with equal rewards that raise an alarm; two batches at least."""


def training_alarms(health: Health, config: RunConfig) -> Iterator[Alarm]:
    """Yield what says that a run does not learn.

    Args:
        health: What the run has done lately.
        config: The run's, which has the bounds.
    """
    rollout, trainer = config.rollout, config.trainer
    teacherless = rollout.group_size > 1 and not trainer.teacher
    if teacherless and health.uniform_groups >= max(UNIFORM_GROUPS, 2 * rollout.groups_per_batch):
        reward = next(iter(health.uniform_rewards)) if len(health.uniform_rewards) == 1 else None
        yield Alarm(
            "rewards_equal",
            f"the last {health.uniform_groups} groups had equal rewards within each group"
            + (f", all of them {reward:g}" if reward is not None else "")
            + ": nothing can be learned from them. "
            + (
                "No episode of this run was worth more: if the tasks are solved, end the run here, or give it harder ones."
                if reward is not None and 0 < reward == health.highest_reward
                else "Are the tasks too hard or too easy for this model, or does the reward not see the answer?"
            )
            + f" Look at an episode with agentrl replay {config.run_dir} {health.episode}",
        )
    said = health.counts()
    if said["altered"] and trainer.turns.altered_sampling == "mask":
        yield Alarm(
            "altered_sampling",
            f"{said['altered'] / said['replies']:.0%} of the last {said['replies']} replies are not trained on, because their requests asked for "
            f"{'; '.join(sorted(set(health.altered_by)))}, and so they come from another distribution than the policy's: have the agent "
            'leave that out, or set trainer.turns.altered_sampling to "train" or "refuse"',
        )
    mismatch = health.step.get("logprob_mismatch_mean_abs", 0.0)
    if mismatch > trainer.alarm_mismatch:
        yield Alarm(
            "mismatch",
            f"engine and trainer differ by {mismatch:.2g} in mean |Δlogprob|, more than `trainer.alarm_mismatch` = "
            f"{trainer.alarm_mismatch:g}: are model, number format and chat format the same on both sides?",
        )


def alarms_before(run_dir: Path, steps: Sequence[Mapping[str, Any]], version: int) -> dict[str, int]:
    """Return how often each alarm had begun before this start, by the step `version` that it goes on from, or the summary of that."""
    last = next((row for row in steps if row["step"] == version), {})
    begun = Counter({name[6:]: count for name, count in last.items() if name.startswith("alarm_")})
    with suppress(OSError, ValueError, KeyError, TypeError):
        summary = json.loads((run_dir / "summary.json").read_bytes())
        begun |= Counter(summary["alarms"] if summary["steps"] == version else {})
    return begun


def waiting_for(controller: Controller, engine: SGLangEngine) -> str:
    """Return what a run is waiting for, in words."""
    health = controller.health
    if health.doing:
        return f"{health.doing}, for {time.monotonic() - health.doing_since:.0f} s now"
    if not engine.serving:
        return "an inference server: none is in service (engine.log)"
    if engine.in_flight:
        return f"the engine, which is making {engine.in_flight} replies (engine.log)"
    if running := controller.progress.running:
        return (
            f"{running} episodes, none of which is waiting for the model: their workflow, environments or sandboxes do not "
            "come back (`rollout.episode_timeout_s` bounds them)"
        )
    return "groups to start"
