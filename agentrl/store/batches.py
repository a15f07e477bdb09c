"""Training steps as the store has them, and the file of episodes that one is trained on.

    store.sqlite ──rows of some groups──► episodes.sqlite ─► every machine that has a rank of the trainer
         ▲                                                              │ over which sequences of which groups, in which minibatches
         └── with the checkpoint that contains it ──── TrainedStep ◄────┘

The file is a store itself (`agentrl.store.store`) that is read as one. 512 episodes of 4,096 tokens are 29 MB, and take 0.07 s to
write, of which 0.04 s are this process's: rows go from file to file within SQLite, and nothing of them becomes Python.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import msgspec

from agentrl.errors import DiskError, StoreError, one_line, unwritten
from agentrl.store.database import check_version, reading_uri, reporting
from agentrl.store.schema import SCHEMA, SCHEMA_VERSION
from agentrl.store.token_figures import Columns
from agentrl.system.files import private

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
GroupSizes = tuple[tuple[int, Count], ...]
"""(group id, number of its training sequences), by group id."""
Minibatch = tuple[tuple[int, tuple[Count, ...]], ...]
"""(group id, numbers of its sequences in the minibatch), by group id."""


@dataclass(frozen=True)
class TrainedStep:
    """One training step that a policy has taken. Made by `trained_step`."""

    step: int
    groups: GroupSizes
    minibatches: tuple[Minibatch, ...]
    """Which sequences each was made of. Every sequence of the batch is in one, also one that has nothing to teach."""
    optimizer_steps: Count
    """Steps that the optimizer took; it takes none for a gradient that is not finite."""
    figures: dict[int, Columns] = field(default_factory=dict, compare=False)
    """Figures of its tokens, by the id of the episode: those that a commit is to keep."""

    @property
    def group_ids(self) -> list[int]:
        """The groups of its batch."""
        return [group for group, _ in self.groups]

    def to_json(self) -> dict[str, Any]:
        """Return the step as JSON, without the figures of its tokens."""
        return vars(self) | {"groups": list(self.groups), "minibatches": list(self.minibatches), "figures": {}}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> TrainedStep:
        """Return the step that `to_json` gave.

        Raises:
            ValueError: It gave nothing like this.
        """
        return msgspec.convert(value, cls)


def trained_step(
    step: int, groups: GroupSizes, minibatches: Iterable[Iterable[tuple[int, int]]], optimizer_steps: int
) -> TrainedStep:
    """Return a step.

    Args:
        step: Its number.
        groups: The ids of its groups, and how many sequences each had.
        minibatches: [minibatch][sequence] (group id, number of the sequence in the group).
        optimizer_steps: How many it took.
    """
    return TrainedStep(step, groups, tuple(_by_group(part) for part in minibatches), optimizer_steps)


def _by_group(part: Iterable[tuple[int, int]]) -> Minibatch:
    groups = groupby(sorted(part), key=lambda pair: pair[0])
    return tuple((group, tuple(number for _, number in pairs)) for group, pairs in groups)


def wrong_minibatches(trained: TrainedStep) -> Iterator[str]:
    """Yield what is wrong with how the sequences of a step were dealt to minibatches: each may be in one, and in one only."""
    sizes = dict(trained.groups)
    dealt = Counter((group, number) for part in trained.minibatches for group, numbers in part for number in numbers)
    for (group, number), times in dealt.items():
        if number >= sizes.get(group, 0):
            yield f"group {group} of step {trained.step} has no sequence {number}, a minibatch has"
        if times > 1:
            yield f"sequence {number} of group {group} was trained on {times} times in step {trained.step}"


def batches(db: sqlite3.Connection, after: int = 0) -> list[TrainedStep]:
    """Return the steps after `after` that a checkpoint contains, or contained before it was damaged, in their order.

    Raises:
        StoreError: One is missing or malformed.
    """
    rows = db.execute(
        "SELECT step, groups, minibatches, optimizer_steps FROM batches WHERE step > ? ORDER BY step",
        (after,),
    ).fetchall()
    found = []
    for number, (step, groups, minibatches, taken) in enumerate(rows, after + 1):
        content = f'{{"step": {step}, "groups": {groups}, "minibatches": {minibatches}, "optimizer_steps": {taken}}}'
        try:
            found.append(msgspec.json.decode(content, type=TrainedStep))
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
        return  # its caller was cancelled before it could know
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
    groups, minibatches = json.dumps(trained.groups), json.dumps(trained.minibatches)
    figures = ((episode, *columns) for episode, columns in trained.figures.items())
    db.executemany("INSERT OR REPLACE INTO token_figures VALUES (?, ?, ?, ?)", figures)
    before = db.execute("SELECT id FROM groups WHERE step = ? ORDER BY id", (trained.step,)).fetchall()
    db.execute(
        "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET restart = excluded.restart, groups = excluded.groups,"
        " minibatches = excluded.minibatches, optimizer_steps = excluded.optimizer_steps",
        (trained.step, checkpoint, restart, groups, minibatches, trained.optimizer_steps),
    )
    if before and [group for (group,) in before] != trained.group_ids:
        raise StoreError(f"step {trained.step} was trained again on other groups than before")
    for group_id in [] if before else trained.group_ids:
        done = db.execute(
            "UPDATE groups SET step = ? WHERE id = ? AND step IS NULL AND state = 'ready'", (trained.step, group_id)
        )
        if done.rowcount != 1:
            raise StoreError(f"group {group_id} of step {trained.step} was not waiting to be trained on")


BATCH_FILE = "episodes.sqlite"

_COPY = """
INSERT INTO main.restarts SELECT restart, started_at, '{{}}' FROM run.restarts ORDER BY restart DESC LIMIT 1;
INSERT INTO main.groups SELECT * FROM run.groups WHERE id IN ({ids});
INSERT INTO main.episodes SELECT * FROM run.episodes WHERE reason = 'finished' AND group_id IN ({ids});
INSERT INTO main.calls SELECT * FROM run.calls WHERE episode IN (SELECT id FROM main.episodes);
"""


def write_batch(store: Path, group_ids: Sequence[int], directory: Path) -> Path:
    """Write what a training step reads of the store of a run.

    It waits for no disk, because a batch that a power cut takes can be written again; and it does not wait for the
    run's own connection.

    Args:
        store: The file of the run's store.
        group_ids: The groups of the batch.
        directory: Where the file goes, in place of one that is there; made where it is missing.

    Returns:
        The file, to be opened `read_only`.

    Raises:
        StoreError: The run's store is missing, damaged or of another version, or does not have all these groups.
        DiskError: A file cannot be read or written.
    """
    if not store.is_file():
        raise StoreError(f"{store} is missing, and with it the episodes of groups {list(group_ids)}")
    path = directory / BATCH_FILE
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.close(private(str(path), os.O_RDWR | os.O_CREAT))
    except OSError as error:
        raise DiskError(unwritten(str(path), error, directory)) from error
    with reporting(path), closing(sqlite3.connect(path.resolve().as_uri(), uri=True, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        db.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
        _copy(db, store, group_ids)
    return path


def _copy(db: sqlite3.Connection, store: Path, group_ids: Sequence[int]) -> None:
    """Copy the rows of some groups from a run's store into an empty one.

    Raises:
        StoreError: The run's store is damaged or of another version, or does not have all these groups.
    """
    with reporting(store):
        db.execute("ATTACH ? AS run", (reading_uri(store),))
        check_version(db, store, "run")
        db.executescript(f"BEGIN; {_COPY.format(ids=', '.join(str(int(group)) for group in group_ids))} COMMIT;")
        (found,) = db.execute("SELECT COUNT(*) FROM main.groups").fetchone()
    if found != len(set(group_ids)):
        raise StoreError(f"{store} holds {found} of the groups {list(group_ids)}, which a step is to be trained on")
