"""The tables of the store that say which batch is in which checkpoint, and what was computed from it."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.errors import StoreError, one_line
from agentrl.rollout.training_history import TrainedStep

SCHEMA = """
CREATE TABLE batches (
    step INTEGER PRIMARY KEY,
    checkpoint INTEGER NOT NULL REFERENCES checkpoints (step),
    restart INTEGER NOT NULL,
    groups TEXT NOT NULL,
    minibatches TEXT NOT NULL,
    optimizer_steps INTEGER NOT NULL
);
CREATE TABLE checkpoints (
    step INTEGER PRIMARY KEY,
    restart INTEGER NOT NULL,
    path TEXT NOT NULL,
    reward_mean REAL,
    reward_groups INTEGER NOT NULL DEFAULT 0,
    made_at REAL NOT NULL,
    kept INTEGER NOT NULL DEFAULT 1,
    damaged TEXT
);
"""
"""A batch's `restart` is the one that trained it; `groups` and `minibatches` are those of its TrainedStep, as JSON. `damaged`: why a
checkpoint cannot be loaded, until it is made again."""


@dataclass(frozen=True)
class StoredBatch:
    """A batch that a checkpoint contains, or contained before it was damaged."""

    restart: int
    trained: TrainedStep


def batches(db: sqlite3.Connection, after: int = 0) -> list[StoredBatch]:
    """Return the batches of the steps after `after`, in their order.

    Raises:
        StoreError: One is missing or malformed.
    """
    rows = db.execute(
        "SELECT restart, step, groups, minibatches, optimizer_steps FROM batches WHERE step > ? ORDER BY step",
        (after,),
    ).fetchall()
    names = ("step", "groups", "minibatches", "optimizer_steps")
    found = []
    for number, (restart, *values) in enumerate(rows, after + 1):
        step, groups, minibatches, *rest = values
        try:
            content = dict(zip(names, (step, json.loads(groups), json.loads(minibatches), *rest), strict=True))
            found.append(StoredBatch(restart, TrainedStep.from_json(content)))
        except ValueError as error:
            raise StoreError(f"the batch of step {step} cannot be read: {one_line(error)}") from error
        if step != number:
            raise StoreError(f"the batch of step {number} is missing")
    return found


def commit(db: sqlite3.Connection, restart: int, path: str, step: int, trained: Sequence[TrainedStep]) -> None:
    """Record a checkpoint with the batches that it contains. One that was damaged is made again with the same batches.

    Args:
        db: The store, in a transaction.
        restart: Which start of the run made it.
        path: The checkpoint's directory.
        step: The checkpoint's.
        trained: The steps since the checkpoint before, in their order.

    Raises:
        StoreError: A group is in another batch, or the steps do not go on from what is recorded.
    """
    if db.execute("SELECT 1 FROM checkpoints WHERE step = ? AND damaged IS NULL", (step,)).fetchone():
        return  # whoever committed it was cancelled before it could know
    first = step - len(trained) + 1
    (recorded,) = db.execute("SELECT COALESCE(MAX(step), 0) FROM batches").fetchone()
    if [one.step for one in trained] != list(range(first, step + 1)) or first > recorded + 1:
        raise StoreError(f"the checkpoint of step {step} does not go on from step {recorded}, which the store holds")
    db.execute(
        "INSERT INTO checkpoints (step, restart, path, made_at) VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
        " restart = excluded.restart, path = excluded.path, made_at = excluded.made_at, kept = 1, damaged = NULL",
        (step, restart, path, time.time()),
    )
    for one in trained:
        _commit_batch(db, restart, step, one)


def _commit_batch(db: sqlite3.Connection, restart: int, checkpoint: int, trained: TrainedStep) -> None:
    content = trained.to_json()
    computed = (json.dumps(content["groups"]), json.dumps(content["minibatches"]), trained.optimizer_steps)
    again = db.execute(
        "UPDATE batches SET restart = ?, groups = ?, minibatches = ?, optimizer_steps = ? WHERE step = ?",
        (restart, *computed, trained.step),
    )
    if again.rowcount:
        rows = db.execute("SELECT id FROM groups WHERE step = ? ORDER BY id", (trained.step,)).fetchall()
        if [group for (group,) in rows] != trained.group_ids:
            raise StoreError(f"step {trained.step} was trained again on other groups than before")
        return
    db.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?)", (trained.step, checkpoint, restart, *computed))
    for group_id in trained.group_ids:
        done = db.execute(
            "UPDATE groups SET step = ? WHERE id = ? AND step IS NULL AND state = 'ready'", (trained.step, group_id)
        )
        if done.rowcount != 1:
            raise StoreError(f"group {group_id} of step {trained.step} was not waiting to be trained on")
