"""`agentrl audit RUN`: what became of every task, every episode and every batch of a run, from its store alone.

The store's own transactions should make each of these claims true, whatever died and whenever. This checks them:

    tasks      the numbers handed out have no gap; no task came twice in an epoch, and none is missing from a whole one;
               each is trained on, dropped with a reason, waiting to be trained on, or unfinished
    episodes   none finished twice; of a group that was trained on, every one finished or failed with an error
    batches    one for every step up to the newest checkpoint, none of them empty, each in one checkpoint; every sequence is in
               one minibatch at most; no token was staler than the bound (docs/staleness.md)
    checkpoints every one that is kept is whole by its checksums, and counts as many optimizer steps as the batches up to it
    calls      each is a turn of an episode, or belongs to one that has not ended
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.errors import CheckpointError, CheckpointUrlError, ConfigError, StoreError, one_line
from agentrl.evaluation.directory import check_no_evaluation
from agentrl.run.audit_claims import violations
from agentrl.run.checkpoint_url import checkpoint_url
from agentrl.run.run_directory import read_config, unknown_checkpoints, whole_checkpoints
from agentrl.store.database import check_pages, open_database
from agentrl.store.episodes import Totals, count_totals
from agentrl.store.manifest import check_files, read_manifest, unlisted_files


@dataclass(frozen=True)
class Audit:
    """The findings of an audit. `violations` is empty for a run that lost nothing and doubled nothing."""

    restarts: int
    last_checkpoint: int | None
    tasks: int
    """Handed out; every one of them is in one of the next four."""
    trained: int
    dropped: dict[str, int]
    """Tasks by the reason why they were not trained on."""
    waiting: int
    unfinished: int
    batches: int
    logged_calls: int
    totals: Totals
    violations: list[str] = field(default_factory=list)


def audit(run_dir: Path) -> Audit:
    """Examine a run, which may be going on. Nothing is left in its directory.

    Args:
        run_dir: The run's directory.

    Returns:
        What became of everything.

    Raises:
        StoreError: There is no run in the directory, or an evaluation is.
    """
    path = run_dir / "store.sqlite"
    if not path.is_file():
        raise StoreError(f"{run_dir} holds no run: it has no store.sqlite, nor has a supervised run one")
    check_no_evaluation(run_dir)
    db = open_database(path, read_only=True)
    try:
        present = whole_checkpoints(run_dir)  # before, so that a run that goes on has told its store of each
        db.execute("BEGIN")  # one state of everything, also of a run that goes on
        check_pages(db, path)
        found = _count(db, [*violations(db), *unknown_checkpoints(db, present)])
        by_step = [*_wrong_checkpoints(db, run_dir), *_wrong_at_url(db, run_dir)]
        db.execute("COMMIT")
        kept = {step for (step,) in db.execute("SELECT step FROM checkpoints WHERE kept")}
        # A run that goes on may have deleted a checkpoint while it was read.
        found.violations.extend(text for step, text in by_step if step is None or step in kept)
        return found
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    finally:
        db.close()


def _count(db: sqlite3.Connection, found: list[str]) -> Audit:
    """Count everything that the store holds."""

    def one(query: str) -> Any:
        return db.execute(query).fetchone()[0]

    dropped: dict[str, int] = {}
    for reason, count in db.execute("SELECT rejected, COUNT(*) FROM groups WHERE state = 'rejected' GROUP BY 1"):
        kind = re.sub(r"-?\d[\d.e+-]*", "N", reason or "no reason")
        dropped[kind] = dropped.get(kind, 0) + count
    return Audit(
        restarts=one("SELECT COUNT(*) FROM restarts"),
        last_checkpoint=one("SELECT MAX(step) FROM checkpoints"),
        tasks=one("SELECT COUNT(*) FROM groups"),
        trained=one("SELECT COUNT(*) FROM groups WHERE step IS NOT NULL"),
        dropped=dropped,
        waiting=one("SELECT COUNT(*) FROM groups WHERE state = 'ready' AND step IS NULL"),
        unfinished=one("SELECT COUNT(*) FROM groups WHERE state = 'open'"),
        batches=one("SELECT COUNT(*) FROM batches"),
        logged_calls=one("SELECT COUNT(*) FROM calls WHERE episode IS NULL"),
        totals=count_totals(db),
        violations=found,
    )


def _wrong_checkpoints(db: sqlite3.Connection, run_dir: Path) -> Iterator[tuple[int, str]]:
    """Yield (step, what is wrong) of the checkpoints that are kept, by their files."""
    taken = "(SELECT SUM(optimizer_steps) FROM batches b WHERE b.step <= c.step)"
    for step, path, steps in db.execute(f"SELECT step, path, {taken} FROM checkpoints c WHERE kept ORDER BY step"):
        for text in _wrong_files(run_dir / path, step, steps):
            yield step, f"the checkpoint {path} {text}"


def _wrong_files(directory: Path, step: int, optimizer_steps: int) -> Iterator[str]:
    if not directory.is_dir():
        yield "is gone; `resume=True` goes on without it: from an older one, or from the model, through the recorded batches"
        return
    try:
        manifest = check_files(directory)
    except CheckpointError as error:
        yield f"is damaged: {error}"
        return
    if unlisted := unlisted_files(directory, manifest):
        yield f"holds {unlisted[0]}, which is not in its manifest"
    if manifest.step != step:
        yield f"is of step {manifest.step}, not {step}"
    elif manifest.optimizer_steps != optimizer_steps:
        yield f"has {manifest.optimizer_steps} optimizer steps in it, the batches up to it had {optimizer_steps}"


def _wrong_at_url(db: sqlite3.Connection, run_dir: Path) -> Iterator[tuple[int | None, str]]:
    """Yield (step, what is wrong) of the checkpoints that are kept, where the run's URL should have them too."""
    try:
        if (url := checkpoint_url(read_config(run_dir))) is None:
            return
        there = url.files()
    except (ConfigError, CheckpointUrlError) as error:
        yield None, f"the checkpoints at the run's URL cannot be read: {one_line(error, 300)}"
        return
    except StoreError:
        return  # there is no configuration that could name one
    for step, path in db.execute("SELECT step, path FROM checkpoints WHERE kept ORDER BY step").fetchall():
        with suppress(CheckpointError):  # which is said of the files here
            found = there.get(Path(path).name, {})
            for name, file in read_manifest(run_dir / path).files.items():
                if found.get(name) != file.size:
                    yield step, f"the checkpoint {path} has no {name} of {file.size} bytes at {url.shown}"
