"""Show a run while it goes on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.config import RunConfig
from agentrl.evaluation.progress import print_line
from agentrl.record.end_reason import reasons_text
from agentrl.rollout.alarms import shares_text
from agentrl.rollout.controller import Controller

BEFORE = "starting"
"""The phase of a run that has not begun to write."""


@dataclass
class RunView:
    """A view of a run, for an observer to show. It is updated in place; the run calls `on_step` and `say`."""

    config: RunConfig
    phase: str = BEFORE
    step: int = 0
    first_step: int = 0
    controller: Controller | None = None
    steps: list[dict[str, Any]] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)
    training_started: float | None = None
    says_steps: bool = False
    """Whether each step is said in a line."""

    def on_step(self, metrics: dict[str, Any]) -> None:
        """Note that a training step ended."""
        self.steps.append(metrics)
        if self.says_steps:
            self.say(step_line(metrics, self.tokens_per_s()))

    def say(self, text: str) -> None:
        """Something a user should read."""

    def metrics(self) -> dict[str, Any]:
        """Return the metrics of the newest step, with the episodes that run now."""
        running = {} if self.controller is None else {"episodes_running": self.controller.progress.running}
        return {**(self.steps[-1] if self.steps else {}), **running}

    def tokens_per_s(self) -> float:
        """Return the generated tokens a second since training started."""
        if self.controller is None or self.training_started is None:
            return 0.0
        return self.controller.progress.tokens / max(1e-9, time.perf_counter() - self.training_started)

    def seconds_to_go(self) -> float | None:
        """Return the time to the last step at the pace so far."""
        taken = self.step - self.first_step
        if not taken or self.training_started is None:
            return None
        return (time.perf_counter() - self.training_started) / taken * (self.config.steps - self.step)


@dataclass
class PrintedView(RunView):
    """A view that prints lines: one a step, and what a user should read."""

    says_steps: bool = True

    def say(self, text: str) -> None:
        """Print a line, where there is somebody to read it."""
        print_line(text)


def step_line(metrics: Mapping[str, Any], tokens_per_s: float) -> str:
    """Return the line that is shown of a step, without what was not measured in it."""
    ends = reasons_text({name[7:]: count for name, count in metrics.items() if name.startswith("reason_")})
    staleness = "staleness {staleness_mean:.2f} (max {staleness_max:.0f})" if "staleness_mean" in metrics else ""
    parts = [
        f"step {metrics['step']:4d}  reward {reward_text(metrics)}",
        staleness.format_map(metrics),
        f"train {metrics['train_s']:.1f} s  wait {metrics['wait_s']:.1f} s  pause {metrics['pause_s'] * 1000:.0f} ms",
        f"{tokens_per_s:,.0f} tokens/s" if tokens_per_s else "",
        f"failed {metrics['episodes_failed']}{ends}",
        shares_text(metrics),
    ]
    return "  ".join(part for part in parts if part)


def reward_text(metrics: Mapping[str, Any]) -> str:
    """Return the mean reward of a step, with how much it rests on."""
    episodes, failed = metrics["reward_episodes"], metrics["reward_failed"]
    if metrics["reward_mean"] is None:
        return "– (no group has ended since)"
    groups = f"n = {metrics['reward_groups']} groups, {metrics['reward_dropped']} dropped"
    shown = f"{metrics['reward_mean']:.3f} ({groups}, {episodes} episodes"
    return shown + (f", {failed / (episodes + failed):.0%} failed)" if failed else ")")
