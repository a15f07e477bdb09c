"""The tasks of a run, and the order of those whose number is known: in epochs, from several sources, or by what came of the groups before.

                draw                           OpenGroup
    order ──────────────────► task of a group ────────────► store: groups ──► restore: the groups keep their tasks, the order goes on
      ▲                                                          ▲
      └──── ended: mean reward of the group ◄── CloseGroup ──────┘

A task is drawn when its group starts, by the seed, the group's number and what had ended until then.
"""

from __future__ import annotations

import random
import sqlite3
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import numpy as np

from agentrl.config import RunConfig, TaskSource
from agentrl.config.data import TaskOrder
from agentrl.episode import Task
from agentrl.errors import ConfigError
from agentrl.tasks.task_type import TaskType
from agentrl.tasks.tasks import GroupTask, PythonTasks, TaskStream, fingerprint, list_tasks, open_tasks, split_tasks

POOLS = {"tasks_pool_0": 1.0, "tasks_pool_1": 4.0, "tasks_pool_2": 1.0, "tasks_unseen": 4.0}
"""Pools of tasks by the mean reward of their last group, and the weight of a task in each: too hard, sometimes solved, solved, not tried yet.

    mean       … < 0.25 ≤ … < 0.75 ≤ …    none yet
    pool          0         1         2      unseen

A group draws a source by its weight, and in it a task by the weight of its pool.
"""
FLOOR = 0.1
"""Share of the groups whose task is drawn from all tasks alike: with N tasks, each has at least FLOOR / N."""


@dataclass(frozen=True)
class StoredGroupTask:
    """The task of one group, as the store has it."""

    index: int
    mean: float | None
    """Mean reward of the group's finished episodes; None: it is not closed, or none finished."""


def mean_reward(rewards: Sequence[float]) -> float | None:
    """Return the mean of a group's rewards; summed in the order of its episodes, so that it is the same to the bit."""
    return sum(rewards) / len(rewards) if rewards else None


def task_history(db: sqlite3.Connection, order: TaskOrder = "difficulty") -> list[StoredGroupTask]:
    """Return the tasks of the groups 0, 1, ... of a run, and what came of each where the order of tasks needs it.

    Raises:
        sqlite3.Error: The store cannot be read.
    """
    if order != "difficulty":
        return [StoredGroupTask(index, None) for (index,) in db.execute("SELECT task FROM groups ORDER BY id")]
    rows = db.execute(
        "SELECT g.id, g.task, e.reward FROM groups g LEFT JOIN episodes e"
        " ON e.group_id = g.id AND e.reason = 'finished' AND g.state != 'open' ORDER BY g.id, e.episode_index"
    )
    return [
        StoredGroupTask(index, mean_reward([reward for *_, reward in episodes if reward is not None]))
        for (_, index), episodes in groupby(rows, key=lambda row: row[:2])
    ]


class TaskList:
    """Tasks of one source or several, in an order that is drawn: its state is a fold over the groups that got a task and that ended.

    Args:
        sources: The tasks of each source.
        weights: How often a group takes its task from each.
        order: By difficulty, or each source in epochs of its own, shuffled or in order.
        seed: That of the run.
        epochs: How often every task of a source comes in these; None: for ever.
    """

    def __init__(
        self,
        sources: Sequence[Sequence[Task]],
        weights: Sequence[float] = (1.0,),
        order: TaskOrder = "shuffled",
        seed: int = 0,
        epochs: int | None = None,
    ) -> None:
        self.tasks = [task for tasks in sources for task in tasks]
        self._weights, self.order, self._seed, self._epochs = weights, order, seed, epochs
        self._sizes = [len(tasks) for tasks in sources]
        self._source = np.repeat(np.arange(len(sources)), self._sizes)  # [task]
        self._pool = np.full(len(self.tasks), len(POOLS) - 1)  # [task]
        self._drawn: list[tuple[int, int]] = []
        """(epoch, index) of each group; the epoch is how often the task was drawn before."""
        self._visits: Counter[int] = Counter()
        """Groups that got each task."""
        self._taken: Counter[int] = Counter()
        """Groups that got a task of each source."""
        self._counted = 0
        """Groups that the metrics have counted."""
        # Tasks are drawn in a thread, and groups end in the event loop.
        self._lock = threading.Lock()

    @property
    def identity(self) -> str:
        """Their number and content, and how they are drawn. The claims of `agentrl audit` read its first two words."""
        in_epochs = len(self._sizes) == 1 and self.order != "difficulty"
        order = f"order {self.order}, sources {self._sizes} by {list(self._weights)}"
        return f"{'' if in_epochs else 'drawn from '}{len(self.tasks)} tasks {fingerprint(self.tasks)}, {order}, seed {self._seed}"

    def task_of_group(self, group_id: int) -> GroupTask | None:
        """Return the task that a group was given, or draw that of the next group; None: the epochs are over."""
        with self._lock:
            while len(self._drawn) <= group_id:
                index = self._draw(random.Random(f"{self._seed}/task/{len(self._drawn)}"))  # noqa: S311
                if index is None:
                    return None
                self._note(index)
            epoch, index = self._drawn[group_id]
        return GroupTask(epoch, index, self.tasks[index])

    def group_ended(self, group_id: int, mean: float | None) -> None:
        """Note the mean reward of a group; None: none of its episodes finished."""
        if mean is not None and self.order == "difficulty":
            with self._lock:
                self._pool[self._drawn[group_id][1]] = bisect_right((0.25, 0.75), mean)

    def restore(self, groups: Iterable[StoredGroupTask]) -> None:
        """Go on after the groups that a run has, which keep the tasks that they were given."""
        for group_id, group in enumerate(groups):
            self._note(group.index)
            self.group_ended(group_id, group.mean)
        self._counted = len(self._drawn)

    def take_metrics(self) -> dict[str, float]:
        """Return the share of tasks in each pool, and how many groups drew a task since this was called last, by source."""
        with self._lock:
            pools = np.bincount(self._pool, minlength=len(POOLS)) / len(self._pool)
            recent = [index for _, index in self._drawn[self._counted :]]
            self._counted = len(self._drawn)
        metrics = {"drawn_groups": float(len(recent))}
        if self.order == "difficulty":
            metrics |= dict(zip(POOLS, pools.tolist(), strict=True))
        if len(self._sizes) > 1 and recent:
            shares = np.bincount(self._source[recent], minlength=len(self._sizes)) / len(recent)
            metrics |= {f"drawn_source_{source}": share for source, share in enumerate(shares.tolist())}
        return metrics

    def _draw(self, rng: random.Random) -> int | None:
        if self.order == "difficulty":
            worth = np.array(list(POOLS.values()))[self._pool]  # [task]
            worth *= (self._weights / np.bincount(self._source, worth))[self._source]
            ends = np.cumsum((1 - FLOOR) * worth / worth.sum() + FLOOR / len(worth))
            return int(np.searchsorted(ends[:-1], rng.random() * ends[-1], side="right"))
        (source,) = rng.choices(range(len(self._sizes)), self._weights)
        epoch, position = divmod(self._taken[source], self._sizes[source])
        if epoch == self._epochs:
            return None
        if self.order == "shuffled":
            position = _shuffled(self._sizes[source], f"{self._seed}/source {source}/{epoch}")[position]
        return sum(self._sizes[:source]) + position

    def _note(self, index: int) -> None:
        self._drawn.append((self._visits[index], index))
        self._visits[index] += 1
        self._taken[int(self._source[index])] += 1


@lru_cache(maxsize=8)
def _shuffled(task_count: int, seed: str) -> list[int]:
    return random.Random(seed).sample(range(task_count), task_count)  # noqa: S311


Tasks = TaskList | TaskStream
"""The tasks of a run, from which each group gets one."""


def open_run_tasks(
    config: RunConfig, given: PythonTasks | None, task_type: TaskType | None = None
) -> tuple[Tasks, list[Task]]:
    """Return where groups get their tasks, and the held-out ones.

    Args:
        config: The configuration, which names both.
        given: Tasks from Python in place of those that it names for groups.
        task_type: What every task must be; None: any dict.

    Raises:
        TaskFileError: They cannot be read, or there are too few to hold some out.
        ConfigError: A share of a stream is to be held out, or a stream is to be drawn from.
    """
    data = config.data
    held_out: list[Task] = []
    if config.eval.tasks:
        held_out = list_tasks(config.eval.tasks, config.eval.limit, task_type, data)
    sources = data.sources or [TaskSource(tasks=config.tasks or "the tasks from Python")]
    lists: list[list[Task]] = []
    for source in sources:
        tasks = open_tasks(source.tasks if given is None else given, task_type, data, source.tasks)
        if isinstance(tasks, TaskStream):
            share = data.eval_share and not held_out
            needs_list = {
                "data.sources": data.sources,
                "data.order": data.order == "difficulty",
                "data.eval_share": share,
            }
            if named := [name for name, is_set in needs_list.items() if is_set]:
                raise ConfigError(
                    f"`{named[0]}` needs tasks whose number is known, and {source.tasks} is a stream; give a list"
                )
            tasks.epochs = data.epochs
            return tasks, held_out
        lists.append(tasks)
    if data.eval_share and not held_out:
        parts = [split_tasks(tasks, data.eval_share, config.seed) for tasks in lists]
        lists, held_out = [kept for kept, _ in parts], [task for _, out in parts for task in out]
    held_out = held_out[: config.eval.limit]
    return TaskList(lists, [source.weight for source in sources], data.order, config.seed, data.epochs), held_out
