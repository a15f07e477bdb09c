"""Lines that warn when a run is not healthy, with the likely reason and what to do.

What a run has done is a `Health`, and `current_alarms` is a function of it. An `AlarmLog` says each alarm when it begins, repeats it
rarely while it lasts, and counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from agentrl.config import RunConfig
from agentrl.rollout.health import REWARD_BLOCK, Health

REPEAT_EVERY_S = 600.0
"""No alarm is said twice within this time."""
UNIFORM_GROUPS = 16
"""Groups in a row with equal rewards that raise an alarm; two batches at least."""
JUDGED_REPLIES = 32
"""Replies that it takes to judge them."""
TRUNCATED_SHARE = 0.9
"""Share of truncated replies that raises an alarm."""
JUDGED_EPISODES = 16
"""Episodes that it takes to judge how their client asks."""
NEW_ROOT_SHARE = 0.7
"""Share of model calls that begin a conversation which raises an alarm, where so many tokens are sent again:"""
RERENDERED_SHARE = 0.4
"""The share of all prompt tokens. Of K calls whose history grows evenly and is all sent again it is (K − 1)/(K + 1)."""
LONG_EPISODE = 3
"""Mean turns of an episode from which on they should be one conversation."""
SAME_FAILURES = 8
"""Attempts in a row that fail with the same error."""
ZERO_GRADIENTS = 3
"""Steps in a row whose gradient is 0."""
NO_ENTROPY = 1e-3
"""Entropy, in nats a token, below which the policy says the same every time."""
FALL_ERRORS = 4.0
"""Standard errors by which the mean reward must have fallen."""


@dataclass(frozen=True)
class Alarm:
    """One thing that is wrong. `name` is its key in the metrics."""

    name: str
    text: str


def current_alarms(health: Health, config: RunConfig, staleness_bound: int | None) -> Iterator[Alarm]:
    """Yield what says that the run is not healthy.

    Args:
        health: What the run has done lately.
        config: The run's, which has the bounds.
        staleness_bound: How stale a batch may be; None: as stale as it gets.
    """
    yield from _of_rollout(health, config)
    yield from _of_training(health, config, staleness_bound)


def _of_rollout(health: Health, config: RunConfig) -> Iterator[Alarm]:
    rollout = config.rollout
    teacherless = rollout.group_size > 1 and not config.trainer.teacher
    if teacherless and health.uniform_groups >= max(UNIFORM_GROUPS, 2 * rollout.groups_per_batch):
        reward = health.uniform_reward
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
    if health.with_tools >= JUDGED_REPLIES and not health.tool_calls:
        yield Alarm(
            "no_tool_call",
            f"none of the last {health.with_tools} replies that were offered tools calls one. Does `model.renderer` = "
            f"{config.model.renderer!r} fit the model, and does the model know tools (agentrl sft teaches it)? One reply: "
            f"{health.example!r}",
        )
    if health.replies >= JUDGED_REPLIES and health.truncated >= TRUNCATED_SHARE * health.replies:
        yield Alarm(
            "replies_truncated",
            f"{health.truncated / health.replies:.0%} of the last {health.replies} replies are cut off for their length: raise "
            "`rollout.max_tokens` (or max_tokens in the workflow), or teach the model to end its replies (agentrl sft)",
        )
    said = health.conversations
    if (
        said.episodes >= JUDGED_EPISODES
        and said.turns >= LONG_EPISODE * said.episodes
        and said.roots >= NEW_ROOT_SHARE * said.turns
        and said.rerendered_share >= RERENDERED_SHARE
    ):
        yield Alarm(
            "history_rewritten",
            f"{said.roots / said.turns:.0%} of the model calls of the last {said.episodes} episodes begin a new conversation, and "
            f"{said.rerendered_share:.0%} of their prompt tokens were sent before: the client rewrites its history, so that each call is a "
            'trajectory of its own. docs/clients.md, "A client that rewrites its history", says how to mend it',
        )
    if health.altered and config.trainer.turns.altered_sampling == "mask":
        yield Alarm(
            "altered_sampling",
            f"{health.altered / health.replies:.0%} of the last {health.replies} replies are not trained on, because their requests asked for "
            f"{', '.join(health.altered_by)}, and so they come from another distribution than the policy's: have the agent leave that out, "
            'or set trainer.turns.altered_sampling to "train" or "refuse"',
        )
    if health.failures >= SAME_FAILURES:
        yield Alarm(
            "same_failure",
            f"the last {health.failures} attempts at episodes all failed with: {health.failure}. Mend the workflow, or what it "
            f"needs; agentrl replay {config.run_dir} {health.episode} runs one again, and shows its traceback",
        )
    if health.quiet_s >= rollout.alarm_stall_s:
        yield Alarm(
            "stalled",
            f"no episode and no training step has ended for {health.quiet_s / 60:.3g} min (`rollout.alarm_stall_s` = "
            f"{rollout.alarm_stall_s:g}); the run waits for {health.waiting_for}",
        )
    best, last = health.best_rewards, health.last_rewards
    if best and last and best.mean - last.mean > _noise(best.variance, last.variance):
        yield Alarm(
            "reward_falls",
            f"the mean reward fell from {best.mean:.3f} to {last.mean:.3f} ({REWARD_BLOCK} groups each): lower `trainer.optimizer.lr` or "
            "`rollout.max_staleness`, or hold the policy near its start with `trainer.kl`; the best checkpoint is kept",
        )


def _noise(*variances: float) -> float:
    return FALL_ERRORS * math.sqrt(sum(variances) / REWARD_BLOCK)


def _of_training(health: Health, config: RunConfig, staleness_bound: int | None) -> Iterator[Alarm]:
    trainer, metrics = config.trainer, health.step
    if health.zero_gradients >= ZERO_GRADIENTS:
        yield Alarm(
            "gradient_zero",
            f"the gradient was 0 in the last {health.zero_gradients} steps, so the policy does not change: every advantage is 0, "
            "or every token is clipped or masked. Look at rewards, `trainer.importance` and the clip bounds",
        )
    if metrics.get("entropy", 1.0) < NO_ENTROPY:
        yield Alarm(
            "entropy_gone",
            f"the entropy is {metrics['entropy']:.2g} nats a token: the policy says the same every time and explores nothing. "
            "Raise `rollout.temperature` or `trainer.entropy_coef`, or go back to an earlier checkpoint",
        )
    mismatch = metrics.get("logprob_mismatch_mean_abs", 0.0)
    if mismatch > trainer.alarm_mismatch:
        yield Alarm(
            "mismatch",
            f"engine and trainer differ by {mismatch:.2g} in mean |Δlogprob|, more than `trainer.alarm_mismatch` = "
            f"{trainer.alarm_mismatch:g}: are model, number format and chat format the same on both sides?",
        )
    low, high = metrics.get("importance_weight_p01", 1.0), metrics.get("importance_weight_p99", 1.0)
    if high > trainer.alarm_weight or low < 1 / trainer.alarm_weight:
        yield Alarm(
            "weights",
            f"p/b is {low:.2f} to {high:.2f} for 98 % of the tokens, beyond `trainer.alarm_weight` = {trainer.alarm_weight:g}: "
            "lower `rollout.max_staleness` or `trainer.optimizer.lr`",
        )
    if staleness_bound is not None and metrics.get("staleness_max", 0.0) > staleness_bound:
        yield Alarm(
            "staleness", f"a token is {metrics['staleness_max']:.0f} versions old, and the bound is {staleness_bound}"
        )


@dataclass
class AlarmLog:
    """Says alarms through `say`, each when it begins and again every `repeat_s` while it lasts."""

    say: Callable[[str], None]
    repeat_s: float = REPEAT_EVERY_S
    begun: dict[str, int] = field(default_factory=dict)
    """How often each has begun since the process started."""
    _holding: set[str] = field(default_factory=set)
    _said: dict[str, float] = field(default_factory=dict)

    def update(self, holding: Iterable[Alarm], when: str, now: float | None = None) -> None:
        """Note which alarms hold. `when`: the moment, as a line says it; `now`: time.monotonic()."""
        now = time.monotonic() if now is None else now
        before, self._holding = self._holding, set()
        for alarm in holding:
            self._holding.add(alarm.name)
            if alarm.name not in before:
                self.begun[alarm.name] = self.begun.get(alarm.name, 0) + 1
            if now - self._said.get(alarm.name, -self.repeat_s) >= self.repeat_s:
                self._said[alarm.name] = now
                self.say(f"ALARM, {when}: {alarm.text}")

    def to_metrics(self) -> dict[str, int]:
        """Return how often each alarm has begun, as the metrics of a step have it."""
        return {f"alarm_{name}": count for name, count in self.begun.items()}
