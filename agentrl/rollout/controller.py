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

from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync as in_thread

from agentrl.config import RolloutConfig
from agentrl.episode import Task
from agentrl.errors import TooManyFailuresError
from agentrl.rollout.gate import StalenessGate
from agentrl.rollout.run_episode import EpisodeRunner, Outcome
from agentrl.rollout.store import Store
from agentrl.rollout.tasks import Tasks, episode_seed, group_seed

MIN_EPISODES_TO_JUDGE = 20
"""Episodes that must have ended before the failed share can stop the run."""

MAX_REJECTED_BATCHES = 20
"""After so many batches' worth of rejected groups in a row, a uniform group is let through: a task that is solved, or
hopeless, must not stall the run."""


@dataclass
class Progress:
    """What the view shows; counts of this life."""

    running: int = 0
    finished: int = 0
    failed: int = 0
    """Episodes that failed for good, retries included."""
    rejected_groups: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class Batch:
    """G groups for one training step."""

    group_ids: list[int]
    rewards: list[float]
    """Of all their finished episodes."""


@dataclass
class Controller:
    """Runs groups of episodes over the tasks, forever, until its task is cancelled."""

    tasks: Tasks
    config: RolloutConfig
    seed: int
    runner: EpisodeRunner
    store: Store
    gate: StalenessGate
    progress: Progress = field(default_factory=Progress)
    last_error: str = ""
    _running_groups: int = 0
    _tasks_ended: bool = False
    _recent_rewards: list[float] = field(default_factory=list)
    _rewards: dict[int, list[float]] = field(default_factory=dict)
    _rejected_in_a_row: int = 0
    _changed: anyio.Event = field(default_factory=anyio.Event)

    def __post_init__(self) -> None:
        self._slots = anyio.Semaphore(self.config.max_concurrent)

    async def run(self) -> None:
        """Start groups whenever the gate allows. Raises TooManyFailuresError when too large a share failed."""
        async with anyio.create_task_group() as groups:
            for group_id, state, episodes in await in_thread(self.store.unused_groups):
                if state == "ready":
                    self.gate.start(group_id)
                    self._rewards[group_id] = [reward for _, reward in episodes]
                    self.gate.finish(group_id)
                else:
                    await self._start_group(groups, group_id, episodes)
            self._wake()
            next_group = await in_thread(self.store.next_group_id)
            while True:
                # A group starts when its first episode can: started earlier, it would only age.
                while not self.gate.can_start() or self.progress.running >= self.config.max_concurrent:
                    await self._changed.wait()
                if not await self._start_group(groups, next_group, []):
                    break
                next_group += 1
            self._tasks_ended = True
            self._wake()

    async def _start_group(self, groups: TaskGroup, group_id: int, done: list[tuple[int, float]]) -> bool:
        """Start a group, or go on with it; False when there is no task left for it."""
        found = await in_thread(self.tasks.of_group, group_id)
        if found is None:
            return False
        if not done:
            await in_thread(self.store.open_group, group_id, found[0])
        self.gate.start(group_id)
        self.progress.running += self.config.group_size - len(done)
        self._running_groups += 1
        groups.start_soon(self._run_group, group_id, found[1], done)
        return True

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

    def advance(self) -> None:
        """Note that the engine serves the next version: the gate opens for one more batch."""
        self.gate.advance()
        self._wake()

    def take_recent_rewards(self) -> list[float]:
        """The rewards of all episodes that finished since the last call, those of dropped groups included."""
        recent, self._recent_rewards = self._recent_rewards, []
        return recent

    async def _run_group(self, group_id: int, task: Task, done: list[tuple[int, float]]) -> None:
        missing = sorted(set(range(self.config.group_size)) - {sample for sample, _ in done})
        rewards = [reward for _, reward in done]
        credited = False

        async def one(sample: int) -> None:
            nonlocal credited
            outcome = await self._run_episode(group_id, sample, task)
            if outcome.status == "finished":
                rewards.append(outcome.reward)
                credited |= outcome.credited

        async with anyio.create_task_group() as episodes:
            for sample in missing:
                episodes.start_soon(one, sample)

        comparable = len(rewards) >= min(2, self.config.group_size)
        uniform = self.config.drop_uniform_groups and not credited and len(rewards) > 1 and len(set(rewards)) == 1
        stalled = self._rejected_in_a_row >= MAX_REJECTED_BATCHES * self.config.groups_per_batch
        keep = comparable and (stalled or not uniform)
        if not keep:
            self._rejected_in_a_row += 1
        elif not uniform:
            self._rejected_in_a_row = 0
        await in_thread(self.store.close_group, group_id, "ready" if keep else "rejected")
        if keep:
            self._rewards[group_id] = rewards
            self.gate.finish(group_id)
        else:
            self.gate.reject(group_id)
            self.progress.rejected_groups += 1
        self._running_groups -= 1
        self._wake()

    async def _run_episode(self, group_id: int, sample: int, task: Task) -> Outcome:
        seed = episode_seed(self.seed, group_id, sample)
        try:
            async with self._slots:
                for _attempt in range(1 + self.config.retries):
                    outcome = await self.runner.run(task, seed, group_seed(self.seed, group_id))
                    # Shielded: what is finished is kept, also when the run is being stopped.
                    with anyio.CancelScope(shield=True):
                        await in_thread(self.store.add, group_id, sample, seed, outcome)
                    self.progress.tokens += sum(len(turn.output_ids) for turn in outcome.record.turns)
                    if outcome.status == "finished":
                        self.progress.finished += 1
                        self._recent_rewards.append(outcome.reward)
                        return outcome
                    self.last_error = outcome.error or ""
            self.progress.failed += 1
            self._check_failures()
            return outcome
        finally:
            self.progress.running -= 1
            self._wake()

    def _check_failures(self) -> None:
        ended = self.progress.finished + self.progress.failed
        if ended >= MIN_EPISODES_TO_JUDGE and self.progress.failed > self.config.max_failed_share * ended:
            raise TooManyFailuresError(
                f"{self.progress.failed} of {ended} episodes failed, more than rollout.max_failed_share = "
                f"{self.config.max_failed_share:g} allows. The last failure:\n{self.last_error}"
            )

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
