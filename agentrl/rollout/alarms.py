"""Lines that warn when a run or an evaluation goes wrong: each says what is seen, the likely reason, and what to do.

    Controller ── attempts, groups ──► Health ──► metrics of a step
    main loop ──── steps ────────────►   └──► ALARMS, a function of `Seen` each ──► AlarmWatch ──► a line when one begins, rarely while it lasts; `alarm_NAME` in the metrics

A condition that should warn is a function here and a row of `ALARMS`; docs/metrics.md lists them.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import anyio

from agentrl.config import RunConfig
from agentrl.errors import one_line
from agentrl.store.outcome import Outcome
from agentrl.system.failure_text import failure_line
from agentrl.system.tasks import background_tasks

RECENT_EPISODES = 64
"""Attempts that metrics are taken of."""
SHARES = {
    "conversations_mean": ("conversations", "episodes"),
    "rerendered_share": ("rerendered_tokens", "prompt_tokens"),
    "left_out_share": ("left_out_tokens", "sampled_tokens"),
    "truncated_share": ("truncated", "replies"),
    "failed_calls_share": ("failed_calls", "with_tools"),
}
"""Metrics that are one count of the recent attempts over another."""


@dataclass
class Health:
    """The counts of a run that goes on. The defaults are those of a run that has done nothing yet."""

    recent: deque[Counter[str]] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))
    """Of each of the last attempts that called the model: the whole numbers of `RecordFigures`, its `conversations`,
    `rerendered_tokens`, and `altered`, its replies that were not sampled as the policy samples."""
    metrics: deque[Mapping[str, float]] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))
    """The workflow's metrics in each of the last episodes that finished."""
    altered_by: list[str] = field(default_factory=list)
    """The fields of requests that had the last replies sampled otherwise than the policy samples."""
    example: list[int] = field(default_factory=list)
    """The last reply that could call a tool and calls none."""
    failures: int = 0
    """Attempts in a row, up to the last, that failed."""
    first_failure: str = ""
    """The failure that these began with, in a line that names its file."""
    complete: bool = False
    """Whether no attempt comes after these, so that few are judged too."""
    episode: int = 0
    """The attempt that ended last, by its number in the store."""
    highest_reward: float = -math.inf
    """The highest reward of an episode since the process started."""
    uniform_groups: int = 0
    """Groups in a row, up to the last that ended, within each of which all rewards were equal."""
    uniform_rewards: set[float] = field(default_factory=set)
    """Their rewards, two at most."""
    step: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the last training step."""
    last_end: float = field(default_factory=time.monotonic)
    """When an episode or a training step ended, by time.monotonic."""
    doing: str = ""
    """What the main loop waits for, as a line says it; "": for a batch."""
    doing_since: float = 0.0
    """Since when, by time.monotonic."""

    @contextmanager
    def waiting_for(self, what: str) -> Iterator[None]:
        """Say for the length of the context that the main loop waits for `what`, and so does nothing else."""
        self.doing, self.doing_since = what, time.monotonic()
        try:
            yield
        finally:
            self.doing = ""

    def attempt_ended(self, outcome: Outcome, number: int) -> None:
        """Count one attempt at an episode, finished or failed. `number`: what the store calls it."""
        self.last_end = time.monotonic()
        self.episode = number
        counts = outcome.record.figures()
        if counts.replies:
            own = {name: value for name, value in vars(counts).items() if type(value) is int}
            own |= {"conversations": outcome.conversations, "rerendered_tokens": outcome.rerendered_tokens}
            self.recent.append(Counter({**own, "altered": len(counts.altered_by)}))
        self.altered_by = counts.altered_by or self.altered_by
        self.example = counts.example or self.example
        if outcome.finished:
            self.failures = 0
            self.metrics.append(outcome.metrics)
            self.highest_reward = max(self.highest_reward, outcome.reward)
            return
        if not self.failures:
            self.first_failure = failure_line(outcome.error or "")
        self.failures += 1

    def resume(self, rewards: Sequence[float], episode: int, highest_reward: float) -> None:
        """Go on after uniform groups of earlier starts. `rewards`: that of each, one after another."""
        self.episode, self.highest_reward = episode, highest_reward
        for reward in rewards:
            self.group_ended([reward], uniform=True)

    def group_ended(self, rewards: Sequence[float], *, uniform: bool) -> None:
        """Count one group. `uniform`: all its rewards are equal, so it teaches nothing."""
        if not uniform:
            if len(rewards) > 1:
                self.uniform_groups = 0
                self.uniform_rewards.clear()
            return
        self.uniform_groups += 1
        if len(self.uniform_rewards) < 2:
            self.uniform_rewards.add(rewards[0])

    def step_ended(self, metrics: Mapping[str, float]) -> None:
        """Count one training step."""
        self.last_end = time.monotonic()
        self.step = metrics

    def counts(self) -> Counter[str]:
        """Return the sums over the recent attempts."""
        total = Counter[str]()
        for counts in self.recent:
            total.update(counts)
        return total

    def to_metrics(self) -> dict[str, float]:
        """Return what a step's line says of the recent attempts, without what none of them had."""
        counts = self.counts() + Counter(episodes=len(self.recent))
        names = {name for one in self.metrics for name in one}
        return {
            **{name: counts[part] / counts[whole] for name, (part, whole) in SHARES.items() if counts[whole]},
            **{f"metric_{name}": fmean(one[name] for one in self.metrics if name in one) for name in sorted(names)},
        }


def shares_text(metrics: Mapping[str, float]) -> str:
    """Return the shares of replies that `to_metrics` has, as a line shows them."""
    shown = {"cut off": "truncated_share", "failed tool calls": "failed_calls_share"}
    return "  ".join(f"{words} {metrics[name]:.0%}" for words, name in shown.items() if name in metrics)


STALL_S = 600.0
"""A line warns when no episode and no training step has ended for so long."""
MAX_MISMATCH = 0.02
"""A line warns when the mean |Δlogprob| between engine and trainer is above this: they do not compute the same."""
CHECK_EVERY_S = 5.0
"""Time between two looks."""
REPEAT_EVERY_S = 600.0
"""No alarm is said twice within this time."""
JUDGED_REPLIES = 32
"""Replies that it takes to judge them."""
JUDGED_EPISODES = 16
"""Episodes that it takes to judge how their client asks."""
NEW_CONVERSATION_SHARE = 0.7
"""Share of model calls that begin a conversation which raises an alarm, where so many tokens are sent again:"""
RERENDERED_SHARE = 0.4
"""The share of all prompt tokens. Of K calls whose history grows evenly and is all sent again it is (K − 1)/(K + 1)."""
LONG_EPISODE = 3
"""Mean turns of an episode from which on they should be one conversation."""
FAILURES = 8
"""Attempts in a row that fail."""
UNIFORM_GROUPS = 16
"""Groups in a row with equal rewards that raise an alarm; two batches at least."""


@dataclass(frozen=True)
class Seen:
    """The things that alarms look at."""

    health: Health
    """What was done lately."""
    config: RunConfig
    decode: Callable[[list[int]], str]
    """Makes text of the ids of an example."""
    waiting_for: Callable[[], str]
    """Says what is waited for, where nothing ends."""


def _no_tool_call(seen: Seen) -> str | None:
    health, counts = seen.health, seen.health.counts()
    # A model that mostly guesses calls one now and then.
    enough = health.complete or len(health.recent) == RECENT_EPISODES
    if not enough or counts["with_tools"] < JUDGED_REPLIES or counts["tool_calls"]:
        return None
    return (
        f"none of the last {counts['with_tools']} replies that were offered tools calls one. Does `model.renderer` = "
        f"{seen.config.model.renderer!r} fit the model, and does the model know tools (agentrl sft teaches it)? One reply: "
        f"{one_line(seen.decode(health.example))!r}"
    )


def _replies_truncated(seen: Seen) -> str | None:
    counts = seen.health.counts()
    replies, truncated = counts["replies"], counts["truncated"]
    if replies < (1 if seen.health.complete else JUDGED_REPLIES) or 2 * truncated <= replies:
        return None
    return (
        f"{truncated / replies:.0%} of the last {replies} replies are cut off for their length, and they have "
        f"{counts['sampled_tokens'] / replies:.0f} tokens on average: raise `rollout.max_tokens` (or max_tokens in the workflow) if they "
        "need the room, lower it if they ramble, or teach the model to end its replies (agentrl sft)"
    )


def _history_rewritten(seen: Seen) -> str | None:
    counts, episodes = seen.health.counts(), len(seen.health.recent)
    replies, again = counts["replies"], counts["rerendered_tokens"]
    few = episodes < JUDGED_EPISODES or replies < LONG_EPISODE * episodes
    if (
        few
        or counts["conversations"] < NEW_CONVERSATION_SHARE * replies
        or again < RERENDERED_SHARE * counts["prompt_tokens"]
    ):
        return None
    return (
        f"{counts['conversations'] / replies:.0%} of the model calls of the last {episodes} episodes begin a new conversation, and "
        f"{again / counts['prompt_tokens']:.0%} of their prompt tokens were sent before: the client rewrites its "
        'history, so that each call is a trajectory of its own. docs/api.md, "Clients that rewrite their history", says how to mend it'
    )


def _attempts_failed(seen: Seen) -> str | None:
    if seen.health.failures < FAILURES:
        return None
    return (
        f"the last {seen.health.failures} attempts at episodes all failed, the first of them with {seen.health.first_failure}. Mend the "
        "workflow, or what it needs"
    )


def _stalled(seen: Seen) -> str | None:
    quiet_s = time.monotonic() - seen.health.last_end
    if quiet_s < STALL_S:
        return None
    return f"nothing has ended for {quiet_s / 60:.3g} min; what is waited for: {seen.waiting_for()}"


def _rewards_equal(seen: Seen) -> str | None:
    health, rollout = seen.health, seen.config.rollout
    compared = rollout.group_size > 1 and not seen.config.trainer.teacher
    if not compared or health.uniform_groups < max(UNIFORM_GROUPS, 2 * rollout.groups_per_batch):
        return None
    reward = next(iter(health.uniform_rewards)) if len(health.uniform_rewards) == 1 else None
    return (
        f"the last {health.uniform_groups} groups had equal rewards within each group"
        + (f", all of them {reward:g}" if reward is not None else "")
        + ": nothing can be learned from them. "
        + (
            "No episode of this run was worth more: if the tasks are solved, end the run here, or give it harder ones."
            if reward is not None and 0 < reward == health.highest_reward
            else "Are the tasks too hard or too easy for this model, or does the reward not see the answer?"
        )
        + f" Look at an episode with agentrl replay {seen.config.run_dir} {health.episode}"
    )


def _altered_sampling(seen: Seen) -> str | None:
    counts = seen.health.counts()
    if not counts["altered"] or seen.config.trainer.turns.altered_sampling != "mask":
        return None
    return (
        f"{counts['altered'] / counts['replies']:.0%} of the last {counts['replies']} replies are not trained on, because their requests "
        f"asked for {'; '.join(sorted(set(seen.health.altered_by)))}, and so they come from another distribution than the policy's: have "
        'the agent leave that out, or set trainer.turns.altered_sampling to "train"'
    )


def _mismatch(seen: Seen) -> str | None:
    mismatch, bound = seen.health.step.get("logprob_mismatch_mean_abs", 0.0), MAX_MISMATCH
    if mismatch <= bound:
        return None
    return (
        f"engine and trainer differ by {mismatch:.2g} in mean |Δlogprob|, more than "
        f"{bound:g}: are model, number format and chat format the same on both sides?"
    )


ALARMS: dict[str, Callable[[Seen], str | None]] = {
    "no_tool_call": _no_tool_call,
    "replies_truncated": _replies_truncated,
    "history_rewritten": _history_rewritten,
    "attempts_failed": _attempts_failed,
    "stalled": _stalled,
    "rewards_equal": _rewards_equal,
    "altered_sampling": _altered_sampling,
    "mismatch": _mismatch,
}
"""All alarms by name: each returns its line while it holds."""
OF_TRAINING = ("rewards_equal", "altered_sampling", "mismatch")
"""The alarms that only a run that trains has."""


def alarms(seen: Seen, *, training: bool) -> dict[str, str]:
    """Return the lines of the alarms that hold now, by name. `training`: also those of a run that trains."""
    lines = {name: look(seen) for name, look in ALARMS.items() if training or name not in OF_TRAINING}
    return {name: line for name, line in lines.items() if line is not None}


@dataclass
class AlarmWatch:
    """Looks for alarms, and says each when it begins and again every `repeat_s` while it lasts."""

    alarms: Callable[[], Mapping[str, str]]
    """Returns the lines of what is wrong now, by name."""
    say: Callable[[str], None]
    when: Callable[[], str]
    """The moment, as a line says it."""
    begun: dict[str, int] = field(default_factory=dict)
    """How often each alarm has begun, since this start of the run."""
    texts: dict[str, str] = field(default_factory=dict)
    """The line of each that has begun since the metrics of the last step."""
    repeat_s: float = REPEAT_EVERY_S
    _holding: Mapping[str, str] = field(default_factory=dict)
    _said: dict[str, float] = field(default_factory=dict)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Look for the length of the context, and once more at its end."""
        async with background_tasks() as group:
            group.start_soon(self.watch)
            yield
        self.check()

    async def watch(self) -> None:
        """Look now and then, until cancelled."""
        while True:
            await anyio.sleep(CHECK_EVERY_S)
            self.check()

    def check(self, now: float | None = None) -> None:
        """Say what is wrong now, unless it was said lately. `now`: time.monotonic()."""
        now = time.monotonic() if now is None else now
        before, self._holding = self._holding, self.alarms()
        for name, text in self._holding.items():
            if name not in before:
                self.begun[name] = self.begun.get(name, 0) + 1
                self.texts[name] = text
            if now - self._said.get(name, -self.repeat_s) >= self.repeat_s:
                self._said[name] = now
                self.say(f"ALARM, {self.when()}: {text}")

    def take_metrics(self) -> dict[str, Any]:
        """Return how often each alarm has begun, as the metrics of a step have it, and the lines of those that began in it."""
        texts, self.texts = self.texts, {}
        return {f"alarm_{name}": count for name, count in self.begun.items()} | ({"alarms": texts} if texts else {})
