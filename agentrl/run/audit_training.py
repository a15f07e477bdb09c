"""Audit training: batches and their staleness, and the checkpoints on disk."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from agentrl.config import config_of
from agentrl.errors import CheckpointError, ConfigError, StoreError
from agentrl.rollout.gate import StalenessGate
from agentrl.store.batches import TrainedStep, batches, wrong_minibatches
from agentrl.store.manifest import check_files, unlisted_files
from agentrl.store.rows import from_column


def wrong_batches(db: sqlite3.Connection) -> Iterator[str]:
    """Yield what is wrong with the batches, by the store alone."""
    steps = [step for (step,) in db.execute("SELECT step FROM batches ORDER BY step")]
    last = db.execute("SELECT COALESCE(MAX(step), 0) FROM checkpoints").fetchone()[0]
    if steps != list(range(1, last + 1)):
        wrong = sorted(set(steps) ^ set(range(1, last + 1)))
        yield f"the newest checkpoint is of step {last}, but steps {some(wrong)} have no batch, or one that is in no checkpoint"
    empty = "SELECT step FROM batches WHERE NOT EXISTS (SELECT 1 FROM groups WHERE groups.step = batches.step)"
    for (step,) in db.execute(empty):
        yield f"the batch of step {step} holds no group"
    for (group,) in db.execute(
        "SELECT id FROM groups WHERE step IS NOT NULL AND step NOT IN (SELECT step FROM batches)"
    ):
        yield f"group {group} is in a batch that does not exist"
    wrong_checkpoint = (
        "SELECT b.step, b.checkpoint FROM batches b WHERE b.checkpoint IS NOT"
        " (SELECT MIN(c.step) FROM checkpoints c WHERE c.step >= b.step)"
    )
    for step, checkpoint in db.execute(wrong_checkpoint):
        yield f"the batch of step {step} is in the checkpoint of step {checkpoint}, not in the first one after it"
    for (step,) in db.execute("SELECT step FROM batches WHERE restart NOT IN (SELECT restart FROM restarts)"):
        yield f"the batch of step {step} was trained by a start of the run that the store does not know"
    try:
        for batch in batches(db):
            yield from _wrong_step(db, batch.trained)
    except StoreError as error:
        yield str(error)


def _wrong_step(db: sqlite3.Connection, one: TrainedStep) -> Iterator[str]:
    rows = db.execute("SELECT id FROM groups WHERE step = ? ORDER BY id", (one.step,)).fetchall()
    if [group for (group,) in rows] != one.group_ids:
        yield f"step {one.step} was trained on groups {some(one.group_ids)}, the store has others in its batch"
    if one.optimizer_steps > len(one.minibatches):
        yield f"step {one.step} took {one.optimizer_steps} optimizer steps over {len(one.minibatches)} minibatches"
    yield from wrong_minibatches(one)


def stale_groups(db: sqlite3.Connection) -> Iterator[str]:
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


def wrong_checkpoints(db: sqlite3.Connection, run_dir: Path) -> Iterator[tuple[int, str]]:
    """Yield (step, what is wrong) of the checkpoints that are kept, by their files, and of those that should be."""
    last = db.execute("SELECT MAX(step) FROM checkpoints WHERE damaged IS NULL").fetchone()[0] or 0
    for step, path, kept, damaged in db.execute(
        "SELECT step, path, kept, damaged FROM checkpoints ORDER BY step"
    ).fetchall():
        if damaged is not None:
            if step > last:
                yield (
                    step,
                    f"the checkpoint of step {step} is damaged ({damaged}); `resume=True` trains its batches again",
                )
        elif step == last and not kept:
            yield step, f"the newest checkpoint, of step {step}, is not kept"
        elif kept:
            (taken,) = db.execute("SELECT SUM(optimizer_steps) FROM batches WHERE step <= ?", (step,)).fetchone()
            for text in _wrong_files(run_dir / path, step, taken):
                yield step, f"the checkpoint {path} {text}"


def _wrong_files(directory: Path, step: int, optimizer_steps: int) -> Iterator[str]:
    if not directory.is_dir():
        yield "is gone; `resume=True` goes on without it: from an older one, or from the model, through the recorded batches"
        return
    try:
        manifest = check_files(directory)
        unlisted = unlisted_files(directory, manifest)
    except CheckpointError as error:
        yield f"is damaged: {error}"
        return
    if unlisted:
        yield f"holds {unlisted[0]}, which is not in its manifest"
    if manifest.step != step:
        yield f"is of step {manifest.step}, not {step}"
    elif manifest.optimizer_steps != optimizer_steps:
        yield f"has {manifest.optimizer_steps} optimizer steps in it, the batches up to it had {optimizer_steps}"


def some(numbers: list[int]) -> str:
    """Return the first few of some numbers."""
    shown = ", ".join(map(str, numbers[:5]))
    return shown if len(numbers) <= 5 else f"{shown} and {len(numbers) - 5} more"
