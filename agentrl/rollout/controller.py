"""The controller: keeps episodes running, as many and as fresh as the gate allows, and hands out batches.

             can_start and a free slot                 all its episodes ended
task ──────────────────────────────► group of n episodes ────────────────────► finished ──► next_batch
                                       │ each: run, commit to the store         or rejected (too few, or uniform)
                                       └ failed: tried again `retries` times

who waits                    for what                          what wakes it
the starter                  the gate, a free episode slot     a batch trained, a group rejected, an episode ended
an episode of a group        a free episode slot               an episode ended
next_batch                   G groups that the order allows    a group finished or rejected
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup

from agentrl.config import RolloutConfig
from agentrl.episode import Task
from agentrl.errors import TooManyFailuresError
from agentrl.record.end_reason import EndReason
from agentrl.rollout.alarms import Health
from agentrl.rollout.gate import StalenessGate
from agentrl.rollout.open_runner import Runner
from agentrl.store.call_log import StoreWriter, open_call_log
from agentrl.store.changes import CloseGroup, InsertEpisode, OpenGroup
from agentrl.store.episodes import GroupProgress, resumed_groups
from agentrl.store.outcome import Outcome
from agentrl.store.rewards import MeanReward, mean_of_groups, rewards_in_order, uniform_groups
from agentrl.store.store import Store
from agentrl.system.failure_text import failure_line
from agentrl.system.tasks import Condition, in_thread, in_users_thread
from agentrl.tasks.curriculum import TaskList, Tasks, mean_reward, task_history
from agentrl.tasks.tasks import episode_seed, group_seed

log = logging.getLogger(__name__)

MIN_EPISODES_TO_JUDGE = 20
"""Episodes that must have ended before the failed share can stop the run."""

MAX_DROPPED_BATCHES = 20
"""After so many batches' worth of uniform groups in a row, those of earlier starts included, one is let through: a task that is solved, or
hopeless, must not stall the run."""


@dataclass
class Progress:
    """Counts for the view, since this process started."""

    running: int = 0
    finished: int = 0
    failed: int = 0
    """Episodes that failed for good, retries included."""
    reasons: Counter[str] = field(default_factory=Counter)
    """How often an attempt ended for each `EndReason`."""
    rejected_groups: int = 0
    skipped_tasks: int = 0
    """Tasks that could not be used: their episodes failed before they began."""
    tokens: int = 0


@dataclass(frozen=True)
class Batch:
    """G groups for one training step."""

    group_ids: list[int]
    rewards: list[float]
    """The rewards of all their finished episodes."""


@dataclass
class Controller:
    """Runs groups of episodes over the tasks, forever, until its task is cancelled."""

    tasks: Tasks
    config: RolloutConfig
    seed: int
    runner: Runner
    store: Store
    gate: StalenessGate
    progress: Progress = field(default_factory=Progress)
    health: Health = field(default_factory=Health)
    counted: int = 0
    """Groups that `take_rewards` has returned, those of earlier starts included."""
    undone: Mapping[int, int] = field(default_factory=dict)
    """The groups that had been counted by each step that a crash undid: it counts so many when it is taken again."""
    last_error: str = ""
    last_failed: int = 0
    """The episode that failed last; 0: none yet."""
    _waiting: int = 0
    """Episodes of groups that have started, without a slot yet."""
    _running_groups: int = 0
    _tasks_ended: bool = False
    _rewards: dict[int, list[float]] = field(default_factory=dict)
    _writer: StoreWriter = field(init=False)
    _changed: Condition = field(default_factory=Condition)

    def __post_init__(self) -> None:
        self._slots = anyio.Semaphore(self.config.max_concurrent, fast_acquire=True)

    async def run(self) -> None:
        """Start groups whenever the gate allows.

        Raises:
            TooManyFailuresError: Too large a share of the episodes failed.
        """
        async with open_call_log(self.store) as self._writer, anyio.create_task_group() as groups:
            self.health.resume(*await in_thread(self.store.read, uniform_groups))
            if isinstance(tasks := self.tasks, TaskList):
                tasks.restore(await in_thread(self.store.read, lambda db: task_history(db, tasks.order)))
            # Groups of an earlier start of the run, the oldest first, by the rule for new ones: what they have yet to generate is then
            # as fresh as docs/staleness.md promises.
            for unused in await in_thread(self.store.read, resumed_groups):
                await self._changed.wait_for(self.gate.can_start)
                if unused.state == "taken":
                    self.gate.start_taken(unused.id)
                elif unused.state == "ready":
                    self.gate.start(unused.id)
                    self._rewards[unused.id] = list(unused.rewards.values())
                    self.gate.finish(unused.id)
                    self._changed.notify_all()
                else:
                    await self._start_group(groups, unused, resumed=True)
            next_group = await in_thread(self.store.next_group_id)
            while True:
                # A group starts when its first episode can: started earlier, it would only age.
                await self._changed.wait_for(self._has_room)
                if not await self._start_group(groups, GroupProgress(next_group, "open")):
                    break
                next_group += 1
            self._tasks_ended = True
            self._changed.notify_all()

    def _has_room(self) -> bool:
        return self.gate.can_start() and self._waiting + self.progress.running < self.config.max_concurrent

    async def _start_group(self, groups: TaskGroup, group: GroupProgress, *, resumed: bool = False) -> bool:
        """Start a group, or go on with it; False when there is no task left for it."""
        version = self.gate.version
        found = await in_users_thread(self.tasks.task_of_group, group.id)
        if found is None:
            return False
        if not resumed:
            await self._writer.commit(OpenGroup(group.id, found.epoch, found.index, version, found.digest))
        ended = {*group.rewards, *(s for s, failed in group.failures.items() if failed > self.config.retries)}
        missing = [episode_index for episode_index in range(self.config.group_size) if episode_index not in ended]
        if found.task is None:
            await self._skip(group, missing, found.fault)
            return True
        self.gate.start(group.id)
        self._waiting += len(missing)
        self._running_groups += 1
        groups.start_soon(self._run_group, group, found.task, missing, resumed)
        return True

    async def _skip(self, group: GroupProgress, missing: list[int], fault: str) -> None:
        """Account for a group whose task cannot be used: its episodes have failed."""
        log.warning("skipping a task: %s", fault)
        for episode_index in missing:
            seed = episode_seed(self.seed, group.id, episode_index)
            ended = Outcome(reason=EndReason.BAD_TASK, error=fault)
            await self._writer.commit(InsertEpisode(group.id, episode_index, seed, ended))
        await self._writer.commit(CloseGroup(group.id, fault))
        self.last_error, self.last_failed = fault, 0
        self.progress.failed += len(missing)
        self.progress.reasons[EndReason.BAD_TASK] += len(missing)
        self.progress.skipped_tasks += 1
        self.progress.rejected_groups += 1
        self._changed.notify_all()
        self._check_failures()

    async def next_batch(self) -> Batch | None:
        """Wait for the next batch in the order of consumption. The last one may be smaller; None: there is none left."""
        while (taken := self.gate.take()) is None:
            if self._tasks_ended and not self._running_groups:
                taken = self.gate.take_rest()
                break
            await self._changed.wait()
        if not taken:
            return None
        return Batch(taken, [reward for group_id in taken for reward in self._rewards.pop(group_id)])

    async def take_rewards(self) -> MeanReward:
        """Return the mean reward of the groups that count now, in the order of their start, and have not been returned before."""
        end = self.undone.get(self.gate.version, math.inf)
        found = await in_thread(self.store.read, lambda db: rewards_in_order(db, self.counted))
        groups = [group for group in found if group.id < end]
        self.counted += len(groups)
        return mean_of_groups(groups)

    def advance(self) -> None:
        """Note that the engine serves the next version: the gate opens for one more batch."""
        self.gate.advance()
        self._changed.notify_all()

    async def _run_group(self, group: GroupProgress, task: Task, missing: list[int], resumed: bool) -> None:
        async def one(episode_index: int) -> None:
            outcome = await self._run_episode(group, episode_index, task, resumed)
            if outcome.finished:
                group.rewards[episode_index] = outcome.reward
                group.has_turn_rewards |= outcome.has_turn_rewards

        async with anyio.create_task_group() as episodes:
            for episode_index in missing:
                episodes.start_soon(one, episode_index)

        rewards = [reward for _, reward in sorted(group.rewards.items())]
        comparable = len(rewards) >= min(2, self.config.group_size)
        equal = not group.has_turn_rewards and len(rewards) > 1 and len(set(rewards)) == 1
        self.health.group_ended(rewards, uniform=equal)
        dropped, most = self.config.drop_uniform_groups and equal, MAX_DROPPED_BATCHES * self.config.groups_per_batch
        keep = comparable and (not dropped or self.health.uniform_groups > most)
        if dropped and self.health.uniform_groups == most:
            text = "%d groups in a row were dropped (`rollout.drop_uniform_groups`): until rewards differ, equal ones are trained on"
            log.warning(text, most)
        reason = "all rewards are equal" if comparable else "too few of its episodes finished"
        await self._writer.commit(CloseGroup(group.id, None if keep else reason))
        if isinstance(self.tasks, TaskList):
            self.tasks.group_ended(group.id, mean_reward(rewards))
        if keep:
            self._rewards[group.id] = rewards
            self.gate.finish(group.id)
        else:
            self.gate.reject(group.id)
            self.progress.rejected_groups += 1
        self._running_groups -= 1
        self._changed.notify_all()

    async def _run_episode(self, group: GroupProgress, episode_index: int, task: Task, resumed: bool) -> Outcome:
        seed = episode_seed(self.seed, group.id, episode_index)
        slot = False
        try:
            async with self._slots:
                slot = True
                self._waiting -= 1
                self.progress.running += 1
                for attempt in range(group.failures.get(episode_index, 0), 1 + self.config.retries):
                    # What an earlier start of the run logged belongs to the attempt that it did not end.
                    first = resumed and attempt == group.failures.get(episode_index, 0)
                    kept = await in_thread(self.store.logged_calls, group.id, episode_index) if first else []
                    call_log = self._writer.episode(group.id, episode_index, kept)
                    outcome = await self.runner.run(task, seed, group_seed(self.seed, group.id), call_log)
                    # Shielded: what is finished is kept, also when the run is being stopped.
                    with anyio.CancelScope(shield=True):
                        ended = InsertEpisode(group.id, episode_index, seed, outcome, call_log.close())
                        number = await self._writer.commit(ended)
                    self.health.attempt_ended(outcome, number)
                    self.progress.reasons[outcome.reason] += 1
                    self.progress.tokens += outcome.record.figures().sampled_tokens
                    if outcome.finished:
                        self.progress.finished += 1
                        return outcome
                    if not self.last_error:
                        text = "episode %d failed: %s. agentrl episodes %s %d shows its traceback; the failures after it are only counted"
                        log.warning(text, number, self.health.first_failure, self.store.directory, number)
                    self.last_error, self.last_failed = outcome.error or "", number
            self.progress.failed += 1
            self._check_failures()
            return outcome
        finally:
            if slot:
                self.progress.running -= 1
            else:
                self._waiting -= 1
            self._changed.notify_all()

    def _check_failures(self) -> None:
        ended = self.progress.finished + self.progress.failed
        if ended >= MIN_EPISODES_TO_JUDGE and self.progress.failed > self.config.max_failed_share * ended:
            again = (
                f" (agentrl replay {self.store.directory} {self.last_failed} runs it again)" if self.last_failed else ""
            )
            raise TooManyFailuresError(
                f"{self.progress.failed} of {ended} episodes failed, more than `rollout.max_failed_share` = "
                f"{self.config.max_failed_share:g} allows. The last failure: {failure_line(self.last_error)}{again}"
            )
