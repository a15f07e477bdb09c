"""Count what a run has done lately, for `agentrl.run.alarms` to look at.

Controller ── attempts, groups ──► HealthCounts ── snapshot ──► Health ──► alarms
main loop ──── steps, rewards ──►
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from agentrl.errors import error_line, one_line
from agentrl.rollout.outcome import Outcome
from agentrl.rollout.rewards import EndedGroup

RECENT_REPLIES = 256
"""Replies that shares are taken of."""
RECENT_EPISODES = 64
"""Attempts that the figures of conversations are taken of."""
REWARD_BLOCK = 64
"""Groups whose mean rewards are compared with those of other blocks."""


@dataclass(frozen=True)
class RewardBlock:
    """The mean rewards of REWARD_BLOCK groups in a row."""

    mean: float
    variance: float
    """The variance of the group means around `mean`."""


@dataclass(frozen=True)
class Conversations:
    """What the conversations of some episodes are: sums over them."""

    episodes: int = 0
    """How many."""
    turns: int = 0
    roots: int = 0
    side_calls: int = 0
    sub_agents: int = 0
    compacted: int = 0
    prompt_tokens: int = 0
    rerendered_tokens: int = 0
    sampled_tokens: int = 0
    left_out_tokens: int = 0
    """Sampled tokens of conversations that are not trained on."""

    @classmethod
    def of(cls, outcome: Outcome) -> Conversations:
        """Return those of one episode."""
        figures, roots = outcome.record.figures(), outcome.roots
        return cls(
            1,
            len(figures.replies),
            sum(roots.values()),
            roots.get("side_call", 0),
            roots.get("sub_agent", 0),
            roots.get("compacted", 0),
            figures.prompt_tokens,
            outcome.rerendered_tokens,
            figures.sampled_tokens,
            figures.left_out_tokens,
        )

    @classmethod
    def total(cls, parts: Iterable[Conversations]) -> Conversations:
        """Return the sums of several."""
        return cls(*(sum(values) for values in zip(*(vars(part).values() for part in parts), strict=True)))

    @property
    def rerendered_share(self) -> float:
        """The share of the prompt tokens that an earlier turn of their episode already held."""
        return self.rerendered_tokens / max(1, self.prompt_tokens)

    def to_metrics(self) -> dict[str, float]:
        """Return what a step's line says of them."""
        episodes = max(1, self.episodes)
        return {
            "roots_mean": self.roots / episodes,
            "side_calls_mean": self.side_calls / episodes,
            "sub_agents_mean": self.sub_agents / episodes,
            "compacted_mean": self.compacted / episodes,
            "rerendered_share": self.rerendered_share,
            "left_out_share": self.left_out_tokens / max(1, self.sampled_tokens),
        }


@dataclass(frozen=True, kw_only=True)
class Health:
    """Counts of what a run has done lately. The defaults are those of a run that has done nothing yet."""

    step: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the last training step."""
    zero_gradients: int = 0
    """Steps in a row, up to the last, whose gradient was 0."""
    uniform_groups: int = 0
    """Groups in a row, up to the last that ended, within each of which all rewards were equal."""
    uniform_reward: float | None = None
    """The reward of all of them, where it is one."""
    highest_reward: float = -math.inf
    """The highest reward of an episode since the process started."""
    episode: int = 0
    """The attempt that ended last, by its number in the store."""
    failures: int = 0
    """Attempts in a row, up to the last, that failed with the same error."""
    failure: str = ""
    """That error, in a line."""
    replies: int = 0
    """Recent replies."""
    truncated: int = 0
    """Recent replies that were cut off for their length."""
    altered: int = 0
    """Recent replies, of roles that are trained on, that were not sampled as the policy samples."""
    altered_by: Sequence[str] = ()
    """The fields of their requests that had them sampled otherwise."""
    with_tools: int = 0
    """Recent replies to requests that offered tools."""
    tool_calls: int = 0
    """Replies of `with_tools` that call a tool."""
    example: str = ""
    """One of the replies, where none calls a tool."""
    conversations: Conversations = Conversations()
    """The conversations of recent attempts that called the model."""
    best_rewards: RewardBlock | None = None
    """The best block of rewards before the last one."""
    last_rewards: RewardBlock | None = None
    quiet_s: float = 0.0
    """Time in which no episode and no training step has ended."""
    waiting_for: str = ""
    """What the run waits for meanwhile."""


@dataclass
class HealthCounts:
    """The counts of a running run."""

    step: Mapping[str, float] = field(default_factory=dict)
    last_end: float = field(default_factory=time.monotonic)
    """When an episode or a training step ended, by time.monotonic."""
    doing: str = ""
    """What the main loop waits for, as a line says it; "": for a batch."""
    doing_since: float = 0.0
    """Since when, by time.monotonic."""
    _zero_gradients: int = 0
    _uniform: int = 0
    _uniform_rewards: set[float] = field(default_factory=set)
    _highest_reward: float = -math.inf
    _episode: int = 0
    _failures: int = 0
    _failure: str = ""
    _replies: deque[tuple[bool, bool, bool]] = field(default_factory=lambda: deque(maxlen=RECENT_REPLIES))
    """(truncated, tools were offered, a tool was called)"""
    _alterations: deque[Collection[str]] = field(default_factory=lambda: deque(maxlen=RECENT_REPLIES))
    """[reply] the fields with which it was sampled otherwise than the policy samples."""
    _example: list[int] = field(default_factory=list)
    _conversations: deque[Conversations] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))
    _block: list[float] = field(default_factory=list)
    _best: RewardBlock | None = None
    _last: RewardBlock | None = None

    @contextmanager
    def waiting_for(self, what: str) -> Iterator[None]:
        """Say for the length of the context that the main loop waits for `what`, which can be nothing else meanwhile."""
        self.doing, self.doing_since = what, time.monotonic()
        try:
            yield
        finally:
            self.doing = ""

    def attempt_ended(self, outcome: Outcome, number: int) -> None:
        """Count one attempt at an episode, finished or failed. `number`: what the store calls it."""
        self.last_end = time.monotonic()
        self._episode = number
        figures = outcome.record.figures()
        for truncated, tools, called, altered in figures.replies:
            self._replies.append((truncated, tools, called))
            self._alterations.append(altered)
        self._example = figures.example or self._example
        if figures.replies:
            self._conversations.append(Conversations.of(outcome))
        if outcome.status == "finished":
            self._failures = 0
            self._highest_reward = max(self._highest_reward, outcome.reward)
            return
        failure = error_line(outcome.error or "")
        self._failures = self._failures + 1 if failure == self._failure else 1
        self._failure = failure

    def conversations(self) -> Conversations:
        """Return what the conversations of recent attempts are."""
        return Conversations.total(self._conversations)

    def group_ended(self, rewards: Sequence[float], *, uniform: bool) -> None:
        """Count one group. `uniform`: all its rewards are equal, so it teaches nothing."""
        if not uniform:
            if len(rewards) > 1:
                self._uniform = 0
                self._uniform_rewards.clear()
            return
        self._uniform += 1
        if len(self._uniform_rewards) < 2:
            self._uniform_rewards.add(rewards[0])

    def rewards_counted(self, groups: Iterable[EndedGroup]) -> None:
        """Count groups in the order of their start."""
        for group in groups:
            if group.rewards:
                self._block.append(sum(group.rewards) / len(group.rewards))
            if len(self._block) == REWARD_BLOCK:
                mean = sum(self._block) / REWARD_BLOCK
                block = RewardBlock(mean, sum((reward - mean) ** 2 for reward in self._block) / (REWARD_BLOCK - 1))
                if self._last is not None and (self._best is None or self._last.mean > self._best.mean):
                    self._best = self._last
                self._last = block
                self._block.clear()

    def step_ended(self, metrics: Mapping[str, float]) -> None:
        """Count one training step."""
        self.last_end = time.monotonic()
        self.step = metrics
        self._zero_gradients = self._zero_gradients + 1 if metrics.get("grad_norm") == 0 else 0

    def snapshot(self, decode: Callable[[list[int]], str], waiting_for: str) -> Health:
        """Return the counts as they are now. `decode` turns the ids of an example into text."""
        with_tools = sum(tools for _, tools, _ in self._replies)
        tool_calls = sum(tools and called for _, tools, called in self._replies)
        return Health(
            step=self.step,
            zero_gradients=self._zero_gradients,
            uniform_groups=self._uniform,
            uniform_reward=next(iter(self._uniform_rewards)) if len(self._uniform_rewards) == 1 else None,
            highest_reward=self._highest_reward,
            episode=self._episode,
            failures=self._failures,
            failure=self._failure,
            replies=len(self._replies),
            truncated=sum(truncated for truncated, _, _ in self._replies),
            altered=sum(map(bool, self._alterations)),
            altered_by=sorted({name for names in self._alterations for name in names}),
            with_tools=with_tools,
            tool_calls=tool_calls,
            example=one_line(decode(self._example)) if with_tools and not tool_calls else "",
            conversations=self.conversations(),
            best_rewards=self._best,
            last_rewards=self._last,
            quiet_s=time.monotonic() - self.last_end,
            waiting_for=waiting_for,
        )
