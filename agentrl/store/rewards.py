"""The mean reward of a run: over groups, in the order in which they started.

    group      0     1     2     3     4     5
    state    ended ended runs  ended ended runs
             └── counted ──┘ waits for group 2

A group counts when it and all groups started before it have ended. How long an episode runs then decides when it counts, and
never whether it counts: docs/metrics.md says why this mean has no bias towards short episodes.
"""

from __future__ import annotations

import itertools
import json
import math
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any


@dataclass(frozen=True)
class GroupRewards:
    """The rewards of one group that has ended, whether it is trained on or dropped."""

    id: int
    rewards: Sequence[float]
    """The rewards of its finished episodes."""
    failed: int
    """Episodes whose last attempt failed."""
    dropped: bool = False
    """Whether it is not trained on."""


@dataclass(frozen=True)
class MeanReward:
    """The mean reward of some groups, with how much it rests on."""

    mean: float | None
    """Mean over groups of the mean over a group's finished episodes; None: there is none."""
    groups: int
    """n: groups with a finished episode."""
    episodes: int
    """Their finished episodes."""
    failed: int
    """Failed episodes, those of groups without a finished one included."""
    dropped: int = 0
    """Groups that are not trained on."""

    def to_metrics(self) -> dict[str, Any]:
        """Return it as the metrics of a step keep it."""
        return {f"reward_{name}": value for name, value in vars(self).items()}


def mean_of_groups(groups: Iterable[GroupRewards]) -> MeanReward:
    """Return the mean reward of `groups`: (1/n) Σ_i (1/m_i) Σ_j r_ij, over the n groups that have m_i ≥ 1 finished episodes."""
    groups = list(groups)
    means = [sum(group.rewards) / len(group.rewards) for group in groups if group.rewards]
    return MeanReward(
        mean=sum(means) / len(means) if means else None,
        groups=len(means),
        episodes=sum(len(group.rewards) for group in groups),
        failed=sum(group.failed for group in groups),
        dropped=sum(group.dropped for group in groups),
    )


def rewards_in_order(db: sqlite3.Connection, first: int) -> list[GroupRewards]:
    """Return the groups of a store that count, from the id `first` on, dropped ones and those in batches included."""
    rows = db.execute(
        "SELECT g.id, g.state = 'rejected', e.episode_index, MAX(CASE WHEN e.reason = 'finished' THEN e.reward END) FROM groups g"
        " LEFT JOIN episodes e ON e.group_id = g.id WHERE g.id >= :first"
        " AND g.id < COALESCE((SELECT MIN(id) FROM groups WHERE id >= :first AND state = 'open'), 9223372036854775807)"
        " GROUP BY g.id, e.episode_index ORDER BY g.id, e.episode_index",
        {"first": first},
    ).fetchall()
    found = []
    for (group_id, dropped), own in itertools.groupby(rows, key=itemgetter(0, 1)):
        rewards = [reward for *_, episode_index, reward in own if episode_index is not None]
        finished = [reward for reward in rewards if reward is not None]
        found.append(GroupRewards(group_id, finished, rewards.count(None), bool(dropped)))
    return found


def uniform_groups(db: sqlite3.Connection) -> tuple[list[float], int, float]:
    """Return the reward of each of the newest groups in a row that teach nothing, because all their rewards are equal.

    With them come the newest episode, and the highest reward of the run. A group with less than two finished episodes is passed over: it has nothing to compare.
    """
    groups = db.execute(
        "SELECT MIN(reward), MAX(reward), MAX(has_turn_rewards) FROM groups g JOIN episodes e ON e.group_id = g.id AND e.reason = 'finished'"
        " WHERE g.state != 'open' GROUP BY g.id HAVING COUNT(*) > 1 ORDER BY g.id DESC"
    )
    uniform = itertools.takewhile(lambda row: row[0] == row[1] and not row[2], groups)
    newest, highest = db.execute(
        "SELECT COALESCE(MAX(id), 0), MAX(reward) FILTER (WHERE reason = 'finished') FROM episodes"
    ).fetchone()
    return [lowest for lowest, *_ in uniform], newest, -math.inf if highest is None else highest


_UPDATE_REWARDS = """
WITH spans AS (SELECT step, kept, LAG(step, 1, -1) OVER (ORDER BY step) AS before FROM checkpoints),
own AS (SELECT s.step, g.id, MIN(CASE WHEN g.state = 'open' THEN g.id END) OVER (PARTITION BY s.step) AS running
        FROM spans s JOIN groups g ON s.kept AND g.version > s.before AND g.version <= s.step),
means AS (SELECT own.step, AVG(e.reward) AS mean FROM own JOIN episodes e ON e.group_id = own.id AND e.reason = 'finished'
          WHERE own.id < COALESCE(own.running, own.id + 1) GROUP BY own.step, own.id)
UPDATE checkpoints SET (reward_mean, reward_groups) = (SELECT AVG(mean), COUNT(*) FROM means WHERE means.step = checkpoints.step)
WHERE kept AND step < (SELECT MAX(step) FROM checkpoints)
"""


def update_checkpoint_rewards(db: sqlite3.Connection) -> None:
    """Compute the mean reward of the kept checkpoints anew, but for the newest, whose policy has sampled too little yet.

    The mean reward of a checkpoint is that of the groups that started under the versions after the checkpoint before it, up to
    its own. Of these, only groups before the first that still runs count, so that short episodes have no advantage.
    """
    db.execute(_UPDATE_REWARDS)


def evaluations(db: sqlite3.Connection) -> dict[int, dict[str, Any]]:
    """Return the figures of the evaluations of a run by the step whose policy was evaluated, the first one first."""
    return {step: json.loads(figures) for step, figures in db.execute("SELECT * FROM evaluations ORDER BY step")}


def best_checkpoint(db: sqlite3.Connection) -> dict[str, Any] | None:
    """Return step and reward of the best checkpoint that is kept; None: none has a reward.

    The reward is the one on held-out tasks where more than one was evaluated, and else the mean reward of `groups` groups.
    """
    held_out, kept = evaluations(db), db.execute("SELECT step, reward_mean, reward_groups FROM checkpoints WHERE kept")
    by_groups = {step: {"step": step, "reward": mean, "groups": groups} for step, mean, groups in kept}
    evaluated = [{"step": s, "reward": held_out[s]["mean_reward"], "groups": 0} for s in by_groups if s in held_out]
    judged = [] if len(evaluated) > 1 else [one for one in by_groups.values() if one["reward"] is not None]
    return max(judged or evaluated, key=lambda one: one["reward"], default=None)
