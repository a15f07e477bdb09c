"""The tables of the store that say which batch is in which checkpoint, and what was computed from it."""

from __future__ import annotations

import json
import sqlite3
import time
from dataclasses import dataclass

from agentrl.errors import StoreError, one_line
from agentrl.machine.evidence import stored_json
from agentrl.rollout.manifest import Manifest
from agentrl.rollout.training_history import TrainedStep

SCHEMA = """
CREATE TABLE batches (
    step INTEGER PRIMARY KEY,
    checkpoint INTEGER NOT NULL REFERENCES checkpoints (step),
    restart INTEGER NOT NULL,
    groups TEXT NOT NULL,
    minibatches TEXT NOT NULL,
    optimizer_steps INTEGER NOT NULL,
    digest TEXT NOT NULL,
    chain TEXT NOT NULL
);
CREATE TABLE checkpoints (
    step INTEGER PRIMARY KEY,
    restart INTEGER NOT NULL,
    path TEXT NOT NULL,
    reward_mean REAL,
    reward_groups INTEGER NOT NULL DEFAULT 0,
    made_at REAL NOT NULL,
    kept INTEGER NOT NULL DEFAULT 1,
    chain TEXT NOT NULL,
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


def first_chain(db: sqlite3.Connection) -> str:
    """chain_0 of the run; "" before it has begun to train."""
    row = db.execute("SELECT value FROM run_values WHERE name = 'chain'").fetchone()
    return str(row[0]) if row else ""


def note_first_chain(db: sqlite3.Connection, chain: str) -> None:
    """Note what the run begins with.

    Raises:
        StoreError: It began with something else.
    """
    db.execute("INSERT OR IGNORE INTO run_values VALUES ('chain', ?)", (chain,))
    if first_chain(db) != chain:
        raise StoreError(
            "the model in `model.path` is not the one that the run began with: its weights have another digest. Restore it, or "
            "start a new run."
        )


def batches(db: sqlite3.Connection, after: int = 0) -> list[StoredBatch]:
    """Return the batches of the steps after `after`, in their order.

    Raises:
        StoreError: One is missing or malformed.
    """
    rows = db.execute(
        "SELECT restart, step, groups, minibatches, optimizer_steps, digest, chain FROM batches WHERE step > ? ORDER BY step",
        (after,),
    ).fetchall()
    names = ("step", "groups", "minibatches", "optimizer_steps", "digest", "chain")
    found = []
    for number, (restart, *values) in enumerate(rows, after + 1):
        step, groups, minibatches, *rest = values
        try:
            content = dict(zip(names, (step, stored_json(groups), stored_json(minibatches), *rest), strict=True))
            found.append(StoredBatch(restart, TrainedStep.from_json(content)))
        except ValueError as error:
            raise StoreError(f"the batch of step {step} cannot be read: {one_line(error)}") from error
        if step != number:
            raise StoreError(f"the batch of step {number} is missing")
    return found


def commit(db: sqlite3.Connection, restart: int, path: str, manifest: Manifest, groups: list[list[int]]) -> bool:
    """Record a checkpoint with the batches that its manifest names. One that was damaged is made again with the same batches.

    Args:
        db: The store, in a transaction.
        restart: Which start of the run made it.
        path: The checkpoint's directory.
        manifest: What the checkpoint says of itself.
        groups: Ids of the groups of each of its batches.

    Returns:
        False where it is recorded already.

    Raises:
        StoreError: A group is in another batch, or the chain does not go on.
    """
    known = db.execute("SELECT chain FROM checkpoints WHERE step = ? AND damaged IS NULL", (manifest.step,)).fetchone()
    if known == (manifest.chain,):
        return False  # whoever committed it was cancelled before it could know
    first = manifest.step - len(manifest.history) + 1
    before = db.execute("SELECT chain FROM batches WHERE step = ?", (first - 1,)).fetchone()
    if manifest.since != (before[0] if before else first_chain(db)) or known:
        raise StoreError(f"the checkpoint of step {manifest.step} does not go on from what the store holds")
    db.execute(
        "INSERT INTO checkpoints (step, restart, path, made_at, chain) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT DO UPDATE SET restart = excluded.restart, path = excluded.path, made_at = excluded.made_at, kept = 1,"
        " chain = excluded.chain, damaged = NULL",
        (manifest.step, restart, path, time.time(), manifest.chain),
    )
    for trained, expected in zip(manifest.history, groups, strict=True):
        if sorted(expected) != trained.group_ids:
            raise StoreError(f"step {trained.step} was to train on groups {expected}, not on {trained.group_ids}")
        _commit_batch(db, restart, manifest.step, trained)
    return True


def _commit_batch(db: sqlite3.Connection, restart: int, checkpoint: int, trained: TrainedStep) -> None:
    content = trained.to_json()
    computed = (
        json.dumps(content["groups"]),
        json.dumps(content["minibatches"]),
        trained.optimizer_steps,
        trained.digest,
        trained.chain,
    )
    again = db.execute(
        "UPDATE batches SET restart = ?, groups = ?, minibatches = ?, optimizer_steps = ?, digest = ?, chain = ? WHERE step = ?",
        (restart, *computed, trained.step),
    )
    if again.rowcount:
        rows = db.execute("SELECT id FROM groups WHERE step = ? ORDER BY id", (trained.step,)).fetchall()
        if [group for (group,) in rows] != trained.group_ids:
            raise StoreError(f"step {trained.step} was trained again on other groups than before")
        db.execute("UPDATE checkpoints SET chain = ? WHERE step = ?", (trained.chain, trained.step))
        return
    db.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (trained.step, checkpoint, restart, *computed))
    for group_id in trained.group_ids:
        done = db.execute(
            "UPDATE groups SET step = ? WHERE id = ? AND step IS NULL AND state = 'ready'", (trained.step, group_id)
        )
        if done.rowcount != 1:
            raise StoreError(f"group {group_id} of step {trained.step} was not waiting to be trained on")
