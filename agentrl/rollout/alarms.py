"""Lines that warn when episodes go wrong, in a run or an evaluation, with the likely reason and what to do.

What was done lately is a `Health`, and alarms are a function of it. An `AlarmWatch` says each when it begins, repeats it rarely while it
lasts, and counts.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from agentrl.concurrency.background import background_tasks
from agentrl.config import RunConfig
from agentrl.errors import one_line
from agentrl.rollout.health import RECENT_EPISODES, Health

CHECK_EVERY_S = 5.0
"""Time between two looks."""
REPEAT_EVERY_S = 600.0
"""No alarm is said twice within this time."""
JUDGED_REPLIES = 32
"""Replies that it takes to judge them."""
JUDGED_EPISODES = 16
"""Episodes that it takes to judge how their client asks."""
NEW_ROOT_SHARE = 0.7
"""Share of model calls that begin a conversation which raises an alarm, where so many tokens are sent again:"""
RERENDERED_SHARE = 0.4
"""The share of all prompt tokens. Of K calls whose history grows evenly and is all sent again it is (K − 1)/(K + 1)."""
LONG_EPISODE = 3
"""Mean turns of an episode from which on they should be one conversation."""
FAILURES = 8
"""Attempts in a row that fail."""


@dataclass(frozen=True)
class Alarm:
    """One thing that is wrong. `name` is its key in the metrics."""

    name: str
    text: str


def episode_alarms(
    health: Health, config: RunConfig, decode: Callable[[list[int]], str], waiting_for: Callable[[], str]
) -> Iterator[Alarm]:
    """Yield what says that episodes do not go as they should.

    Args:
        health: What was done lately.
        config: The configuration.
        decode: Makes text of the ids of an example.
        waiting_for: Says what is waited for, where nothing ends.
    """
    said, episodes = health.counts(), len(health.recent)
    replies = said["replies"]
    enough = health.complete or episodes == RECENT_EPISODES  # a model that mostly guesses calls one now and then
    if enough and said["with_tools"] >= JUDGED_REPLIES and not said["tool_calls"]:
        yield Alarm(
            "no_tool_call",
            f"none of the last {said['with_tools']} replies that were offered tools calls one. Does `model.renderer` = "
            f"{config.model.renderer!r} fit the model, and does the model know tools (agentrl sft teaches it)? One reply: "
            f"{one_line(decode(health.example))!r}",
        )
    if replies >= (1 if health.complete else JUDGED_REPLIES) and 2 * said["truncated"] > replies:
        yield Alarm(
            "replies_truncated",
            f"{said['truncated'] / replies:.0%} of the last {replies} replies are cut off for their length, and they have "
            f"{said['sampled_tokens'] / replies:.0f} tokens on average: raise `rollout.max_tokens` (or max_tokens in the workflow) if they "
            "need the room, lower it if they ramble, or teach the model to end its replies (agentrl sft)",
        )
    if (
        episodes >= JUDGED_EPISODES
        and replies >= LONG_EPISODE * episodes
        and said["roots"] >= NEW_ROOT_SHARE * replies
        and said["rerendered_tokens"] >= RERENDERED_SHARE * said["prompt_tokens"]
    ):
        yield Alarm(
            "history_rewritten",
            f"{said['roots'] / replies:.0%} of the model calls of the last {episodes} episodes begin a new conversation, and "
            f"{said['rerendered_tokens'] / said['prompt_tokens']:.0%} of their prompt tokens were sent before: the client rewrites its "
            'history, so that each call is a trajectory of its own. docs/clients.md, "A client that rewrites its history", says how to mend it',
        )
    if health.failures >= FAILURES:
        yield Alarm(
            "attempts_failed",
            f"the last {health.failures} attempts at episodes all failed, the first of them with {health.first_failure}. Mend the workflow, "
            "or what it needs",
        )
    quiet_s = time.monotonic() - health.last_end
    if quiet_s >= config.rollout.alarm_stall_s:
        yield Alarm(
            "stalled",
            f"nothing has ended for {quiet_s / 60:.3g} min (`rollout.alarm_stall_s` = {config.rollout.alarm_stall_s:g}); what is waited for: "
            f"{waiting_for()}",
        )


@dataclass
class AlarmWatch:
    """Looks for alarms, and says each when it begins and again every `repeat_s` while it lasts."""

    alarms: Callable[[], Iterable[Alarm]]
    """What is wrong now."""
    say: Callable[[str], None]
    when: Callable[[], str]
    """The moment, as a line says it."""
    begun: dict[str, int] = field(default_factory=dict)
    """How often each alarm has begun, since the run began."""
    repeat_s: float = REPEAT_EVERY_S
    _holding: set[str] = field(default_factory=set)
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
        before, self._holding = self._holding, set()
        for alarm in self.alarms():
            self._holding.add(alarm.name)
            if alarm.name not in before:
                self.begun[alarm.name] = self.begun.get(alarm.name, 0) + 1
            if now - self._said.get(alarm.name, -self.repeat_s) >= self.repeat_s:
                self._said[alarm.name] = now
                self.say(f"ALARM, {self.when()}: {alarm.text}")

    def to_metrics(self) -> dict[str, int]:
        """Return how often each alarm has begun, as the metrics of a step have it."""
        return {f"alarm_{name}": count for name, count in self.begun.items()}
