"""The claims of an audit about the tables of a store: queries whose every row is a violation, and what takes more than a query."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import suppress

from agentrl.config import config_of
from agentrl.errors import ConfigError, StoreError
from agentrl.rollout.gate import StalenessGate
from agentrl.store.batches import batches, wrong_minibatches
from agentrl.store.rows import from_column

_IDENTITY = "(SELECT value FROM run_values WHERE name = 'tasks')"
_GROUP_SIZE = "(SELECT json_extract(config, '$.rollout.group_size') FROM restarts ORDER BY restart DESC LIMIT 1)"
_WHOLE_STEP = "(SELECT COALESCE(MAX(step), 0) FROM checkpoints WHERE damaged IS NULL)"

CLAIMS: dict[str, str] = {
    # The text of a violation, with the columns of its row, and the query.
    "group {} was never handed out, a later one was": (
        "SELECT id - 1 FROM groups WHERE id > 0 AND id - 1 NOT IN (SELECT id FROM groups)"
    ),
    "task {} was handed out {} times in epoch {}": (
        "SELECT task, COUNT(*), epoch FROM groups GROUP BY epoch, task HAVING COUNT(*) > 1"
    ),
    # Of tasks that are drawn, an epoch is how often its task was drawn before.
    "task {} was drawn {} times, and {} of them are there": (
        f"SELECT task, MAX(epoch) + 1, COUNT(*) FROM groups WHERE {_IDENTITY} LIKE 'drawn from %' GROUP BY task"
        " HAVING COUNT(*) != MAX(epoch) + 1"
    ),
    # The identity of a list begins with how many tasks it has; that of a stream with no number.
    "epoch {} handed out {} of {} tasks": (
        f"SELECT epoch, COUNT(*), COALESCE(NULLIF(CAST({_IDENTITY} AS INTEGER), 0), MAX(task) + 1) AS expected FROM groups"
        f" WHERE epoch < (SELECT MAX(epoch) FROM groups) AND COALESCE({_IDENTITY}, '') NOT LIKE 'drawn from %'"
        " GROUP BY epoch HAVING COUNT(*) != expected"
    ),
    "group {} was rejected without a reason, or trained on nevertheless": (
        "SELECT id FROM groups WHERE state = 'rejected' AND (rejected IS NULL OR step IS NOT NULL)"
    ),
    "group {} was trained on before it was complete": (
        "SELECT id FROM groups WHERE state = 'open' AND step IS NOT NULL"
    ),
    "episode {} of group {} finished twice": (
        "SELECT episode_index, group_id FROM episodes WHERE reason = 'finished' GROUP BY 1, 2 HAVING COUNT(*) > 1"
    ),
    "episode {} failed without an error": "SELECT id FROM episodes WHERE reason != 'finished' AND error IS NULL",
    "group {} was closed with {} of {} episodes accounted for": (
        f"SELECT g.id, COUNT(DISTINCT e.episode_index), {_GROUP_SIZE} FROM groups g LEFT JOIN episodes e ON e.group_id = g.id"
        f" WHERE g.state != 'open' GROUP BY g.id HAVING COUNT(DISTINCT e.episode_index) != {_GROUP_SIZE}"
    ),
    "calls of episode {} of group {} are kept, which has ended": (
        "SELECT DISTINCT c.episode_index, c.group_id FROM calls c JOIN groups g ON g.id = c.group_id"
        " WHERE c.episode IS NULL AND (g.state != 'open' OR EXISTS (SELECT 1 FROM episodes e WHERE e.group_id = c.group_id"
        " AND e.episode_index = c.episode_index AND e.reason = 'finished'))"
    ),
    "row {} of {} is of something that {} does not have": 'SELECT rowid, "table", parent FROM pragma_foreign_key_check',
    "the newest checkpoint is of step {}, the newest batch of step {}": (
        "SELECT checkpoint, batch FROM (SELECT COALESCE((SELECT MAX(step) FROM checkpoints), 0) AS checkpoint,"
        " COALESCE((SELECT MAX(step) FROM batches), 0) AS batch) WHERE checkpoint != batch"
    ),
    "the batch of step {} holds no group": (
        "SELECT step FROM batches WHERE step NOT IN (SELECT step FROM groups WHERE step IS NOT NULL)"
    ),
    "the batch of step {} is in the checkpoint of step {}, not in the first one after it": (
        "SELECT step, checkpoint FROM batches b"
        " WHERE checkpoint IS NOT (SELECT MIN(c.step) FROM checkpoints c WHERE c.step >= b.step)"
    ),
    "figures of tokens of episode {} are kept, which was not trained on": (
        "SELECT f.episode FROM token_figures f JOIN episodes e ON e.id = f.episode JOIN groups g ON g.id = e.group_id WHERE g.step IS NULL"
    ),
    "the batch of step {} was trained by a start of the run that the store does not know": (
        "SELECT step FROM batches WHERE restart NOT IN (SELECT restart FROM restarts)"
    ),
    "the checkpoint of step {} is damaged ({}); `resume=True` trains its batches again": (
        f"SELECT step, damaged FROM checkpoints WHERE damaged IS NOT NULL AND step > {_WHOLE_STEP}"
    ),
    "the newest checkpoint, of step {}, is not kept": (
        f"SELECT step FROM checkpoints WHERE NOT kept AND step = {_WHOLE_STEP}"
    ),
    "the checkpoint {} is committed, and noted as one that was only begun": (
        "SELECT path FROM begun_checkpoints WHERE path IN (SELECT path FROM checkpoints WHERE kept)"
    ),
}


def violations(db: sqlite3.Connection) -> Iterator[str]:
    """Yield what is wrong by the tables of a store alone."""
    for text, query in CLAIMS.items():
        for row in db.execute(query):
            yield text.format(*row)
    yield from _wrong_steps(db)
    yield from _stale_groups(db)


def _wrong_steps(db: sqlite3.Connection) -> Iterator[str]:
    """Yield what is wrong with the groups and the minibatches of training steps."""
    try:
        trained = batches(db)
    except StoreError as error:
        yield str(error)
        return
    for one in trained:
        rows = db.execute("SELECT id FROM groups WHERE step = ? ORDER BY id", (one.step,)).fetchall()
        if (groups := [group for (group,) in rows]) != one.group_ids:
            yield f"step {one.step} was trained on groups {one.group_ids}, the store has {groups} in its batch"
        if one.optimizer_steps > len(one.minibatches):
            yield f"step {one.step} took {one.optimizer_steps} optimizer steps over {len(one.minibatches)} minibatches"
        yield from wrong_minibatches(one)


def _stale_groups(db: sqlite3.Connection) -> Iterator[str]:
    """Yield the groups with a token that was staler, when it was trained on, than the largest bound that a start of the run printed."""
    try:
        bounds = [_bound(text) for (text,) in db.execute("SELECT config FROM restarts")]
    except (ConfigError, ValueError):
        return  # of another version of agentrl
    if not bounds or None in bounds:
        return  # a greedy order has none
    bound = max(filter(None, bounds), default=0)
    tokens = (
        "SELECT g.id, g.step, c.versions FROM groups g JOIN episodes e ON e.group_id = g.id JOIN calls c ON c.episode = e.id"
        " WHERE g.step IS NOT NULL AND e.reason = 'finished'"
    )
    stalest: dict[int, int] = {}
    for group, step, versions in db.execute(tokens):
        with suppress(ValueError, TypeError):
            stalest[group] = max(stalest.get(group, 0), step - 1 - min(from_column(versions)[::3], default=step))
    for group, staleness in sorted(stalest.items()):
        if staleness > bound:
            yield f"group {group} was trained on with a staleness of {staleness}, and the bound is {bound}"


def _bound(config: str) -> int | None:
    rollout = config_of(dict(json.loads(config))).rollout
    own = {name: getattr(rollout, name) for name in ("groups_per_batch", "max_staleness", "order", "window")}
    return StalenessGate(**own).bound
