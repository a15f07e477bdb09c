"""Audit the store's ledger: what it says happened must be what the tables and the files hold."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.machine.evidence import stored_json
from agentrl.rollout import ledger
from agentrl.rollout.calls import episode_digest, wrong_calls
from agentrl.run.run_directory import whole_lines

GROWING = {"metrics.jsonl"}
"""Files of which the ledger knows the beginning; of others it knows the whole."""
NOTED_FIRST = ("eval_before.json", "summary.json")
"""Files that are in the ledger before they are there."""


@dataclass
class _File:
    """What a file of the run may hold, as (size, digest)."""

    may_hold: list[tuple[int, str]] = field(default_factory=list)
    written: bool = False
    """Whether it was ever written to its end: then it is there."""


@dataclass
class _Story:
    """What the ledger says happened."""

    tasks: str = ""
    restarts: dict[int, list[Any]] = field(default_factory=dict)
    groups: dict[int, list[Any]] = field(default_factory=dict)
    checkpoints: dict[int, list[Any]] = field(default_factory=dict)
    files: dict[str, _File] = field(default_factory=dict)
    finished: bool = False
    """Whether the newest start went on to its end: nothing is written after that."""

    def add(self, kind: str, values: tuple[Any, ...]) -> None:
        """Take in an entry. Raises KeyError for one that does not fit those before it."""
        if kind == "restart":
            restart, started_at, config, self.tasks = values
            self.restarts[restart] = [started_at, config]
            self.finished = False
        elif kind == "open":
            group, epoch, task, version, digest = values
            self.groups[group] = [epoch, task, "open", None, None, version, digest]
        elif kind == "close":
            group, state, reason = values
            self.groups[group][2:4] = [state, reason]
        elif kind == "set aside":
            self.groups[values[2]][2:4] = ["open", None]
        elif kind == "checkpoint":
            step, restart, path, reward_mean, made_at, batches = values
            known = self.checkpoints.get(step)
            self.checkpoints[step] = [restart, path, reward_mean, made_at, 1, None, known[6] if known else 0]
            for batch_step, groups in batches:
                for group in groups:
                    self.groups[group][4] = batch_step
        elif kind == "reward":
            step, reward_mean, groups = values
            self.checkpoints[step][2], self.checkpoints[step][6] = reward_mean, groups
        elif kind == "forget":
            for step in values[0]:
                self.checkpoints[step][4] = 0
        elif kind == "damaged":
            step, reason = values
            self.checkpoints[step][4:6] = [0, reason]
        elif kind == "writing":
            name, *holds = values
            self.files.setdefault(name, _File()).may_hold.append((holds[0], holds[1]))
        elif kind == "file":
            name, size, digest = values
            self.files[name] = _File([(size, digest)], written=True)
            self.finished = self.finished or name == "summary.json"


def wrong_ledger(db: sqlite3.Connection, run_dir: Path) -> Iterator[str]:
    """Yield where the tables, or the files that the ledger names, are not what it says."""
    violations: list[str] = []
    story = _Story()
    changed = {values[0]: values[1] for kind, values in ledger.entries(db, []) if kind == "set aside"}
    rows = db.execute("SELECT * FROM episodes ORDER BY id")
    row = rows.fetchone()
    for kind, values in ledger.entries(db, violations):
        try:
            if kind == "episode":
                number, digest = values
                while row is not None and row[0] < number:
                    violations.append(f"episode {row[0]} is not in the ledger")
                    row = rows.fetchone()
                if row is None or row[0] != number:
                    violations.append(f"episode {number} is in the ledger, and gone from the store")
                    continue
                if episode_digest(db, row) != changed.get(number, digest):
                    violations.append(f"episode {number} is not what was stored: its digest is another")
                row = rows.fetchone()
            else:
                story.add(kind, values)
        except KeyError:
            violations.append(f"the ledger's entry {kind} {values} does not fit those before it")
    if row is not None:
        violations.append(f"episode {row[0]} is not in the ledger")
    yield from violations
    yield from _differences(db, "restart", "SELECT restart, started_at, config FROM restarts", story.restarts)
    groups = "SELECT id, epoch, task, state, reason, step, version, task_digest FROM groups"
    yield from _differences(db, "group", groups, story.groups)
    made = "SELECT step, restart, path, reward_mean, made_at, kept, damaged, reward_groups FROM checkpoints"
    yield from _differences(db, "the checkpoint of step", made, story.checkpoints)
    tasks = db.execute("SELECT value FROM run_values WHERE name = 'tasks'").fetchone()
    if story.restarts and tasks != (story.tasks,):
        yield f"the run's tasks are {tasks and tasks[0]!r}, by its ledger {story.tasks!r}"
    yield from wrong_calls(db)
    yield from _wrong_files(run_dir, story)
    yield from _wrong_metrics(run_dir, {0, *story.checkpoints}, len(story.restarts))


def _differences(db: sqlite3.Connection, what: str, query: str, expected: dict[int, list[Any]]) -> Iterator[str]:
    missing = set(expected)
    for key, *row in db.execute(query):
        missing.discard(key)
        if row != expected.get(key):
            yield f"{what} {key} is {row} in the store, {expected.get(key, 'nothing')} by its ledger"
    for key in sorted(missing):
        yield f"{what} {key} is in the ledger, and gone from the store"


def _wrong_files(run_dir: Path, story: _Story) -> Iterator[str]:
    for name in NOTED_FIRST:
        if story.restarts and name not in story.files and (run_dir / name).exists():
            yield f"{name} is not in the ledger"
    for name, noted in story.files.items():
        path = run_dir / name
        if not path.is_file():
            if noted.written:  # else a crash may have come first
                yield f"{name} is gone"
        elif name in GROWING and not story.finished:
            size, digest = noted.may_hold[-1]
            if ledger.file_digest(path, size) != (size, digest):
                yield f"the first {size} bytes of {name} are not what was written"
        elif ledger.file_digest(path) not in noted.may_hold:
            yield f"{name} is not what the run wrote"


def _wrong_metrics(run_dir: Path, starts: set[int], restarts: int) -> Iterator[str]:
    """Check that steps follow each other in metrics.jsonl, and a restart goes on from a checkpoint."""
    path = run_dir / "metrics.jsonl"
    last, jumps = 0, 0
    for line in whole_lines(path.read_bytes()) if path.is_file() else []:
        row = stored_json(line)
        step = row.get("step") if isinstance(row, dict) else None
        if type(step) is not int:
            yield f"metrics.jsonl has a line without a step after that of step {last}"
            continue
        if step != last + 1:
            jumps += 1
            if step - 1 not in starts:
                yield f"metrics.jsonl goes on with step {step} after step {last}, where no checkpoint is"
        last = step
    if jumps >= max(1, restarts):
        yield f"metrics.jsonl goes on anew {jumps} times; the run was started {restarts} times"
