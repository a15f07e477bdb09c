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
from typing import Annotated, Any

from pydantic import BaseModel, Field

from agentrl.errors import CheckpointError, CheckpointUrlError, ConfigError, StoreError, one_line
from agentrl.evaluation.directory import check_no_evaluation
from agentrl.run.audit_training import some, stale_groups, wrong_batches, wrong_checkpoints
from agentrl.run.checkpoint_url import checkpoint_url
from agentrl.run.run_directory import read_config, whole_checkpoints
from agentrl.store.database import check_pages, open_database
from agentrl.store.manifest import read_manifest
from agentrl.store.schema import SCHEMA_VERSION


class _Rollout(BaseModel, strict=True):
    group_size: Annotated[int, Field(ge=1, lt=2**31)]


class _Config(BaseModel):
    """The part of config.json that the audit needs."""

    rollout: _Rollout


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
    finished_episodes: int
    failed_episodes: int
    logged_calls: int
    replayed_tokens: int
    tokens: int
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
        raise StoreError(f"{run_dir} holds no run")
    db = open_database(path, SCHEMA_VERSION, read_only=True)
    try:
        present = whole_checkpoints(run_dir)  # before, so that a run that goes on has told its store of each
        db.execute("BEGIN")  # one state of everything, also of a run that goes on
        check_pages(db, path)
        check_no_evaluation(db, run_dir)
        found = _count(db, _violations(db, run_dir, present))
        checkpoints = [*wrong_checkpoints(db, run_dir), *_wrong_at_url(db, run_dir)]
        db.execute("COMMIT")
        found.violations.extend(text for step, text in checkpoints if _still_kept(db, step))
        return found
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    finally:
        db.close()


def _count(db: sqlite3.Connection, violations: list[str]) -> Audit:
    """Count everything that the store holds."""

    def one(query: str) -> Any:
        return db.execute(query).fetchone()[0]

    dropped: dict[str, int] = {}
    for reason, count in db.execute("SELECT reason, COUNT(*) FROM groups WHERE state = 'rejected' GROUP BY 1"):
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
        finished_episodes=one("SELECT COUNT(*) FROM episodes WHERE reason = 'finished'"),
        failed_episodes=one("SELECT COUNT(*) FROM episodes WHERE reason != 'finished'"),
        logged_calls=one("SELECT COUNT(*) FROM calls WHERE episode IS NULL"),
        replayed_tokens=one("SELECT COALESCE(SUM(replayed_tokens), 0) FROM episodes"),
        tokens=one("SELECT COALESCE(SUM(tokens), 0) FROM episodes"),
        violations=violations,
    )


def _violations(db: sqlite3.Connection, run_dir: Path, present: list[Path]) -> list[str]:
    """Return what is wrong by the tables, and by the files beside them but for the checkpoints."""
    return [
        *_wrong_tasks(db),
        *_wrong_episodes(db, run_dir),
        *wrong_batches(db),
        *stale_groups(db),
        *_wrong_references(db),
        *_unknown_checkpoints(db, present),
    ]


def _wrong_tasks(db: sqlite3.Connection) -> Iterator[str]:
    ids = [group for (group,) in db.execute("SELECT id FROM groups ORDER BY id")]
    missing = sorted(set(range(len(ids))) - set(ids))
    if missing:
        yield f"groups {some(missing)} were never handed out, later ones were"
    for epoch, task, count in db.execute("SELECT epoch, task, COUNT(*) FROM groups GROUP BY 1, 2 HAVING COUNT(*) > 1"):
        yield f"task {task} was handed out {count} times in epoch {epoch}"
    identity = next(iter(db.execute("SELECT value FROM run_values WHERE name = 'tasks'")), ("",))[0]
    if identity.startswith("drawn from "):  # an epoch is then how often its task was drawn before
        for task, count, last in db.execute("SELECT task, COUNT(*), MAX(epoch) FROM groups GROUP BY task"):
            if count != last + 1:
                yield f"task {task} was drawn {last + 1} times, and {count} of them are there"
        whole = []
    else:
        whole = db.execute(
            "SELECT epoch, COUNT(*), MAX(task) FROM groups WHERE epoch < (SELECT MAX(epoch) FROM groups) GROUP BY epoch"
        ).fetchall()
    tasks = re.match(r"(\d{1,9}) tasks", identity)
    for epoch, count, largest in whole:
        expected = int(tasks[1]) if tasks else largest + 1
        if count != expected:
            yield f"epoch {epoch} handed out {count} of {expected} tasks"
    for (group,) in db.execute(
        "SELECT id FROM groups WHERE state = 'rejected' AND (reason IS NULL OR step IS NOT NULL)"
    ):
        yield f"group {group} was rejected without a reason, or trained on nevertheless"
    for (group,) in db.execute("SELECT id FROM groups WHERE state = 'open' AND step IS NOT NULL"):
        yield f"group {group} was trained on before it was complete"


def _wrong_episodes(db: sqlite3.Connection, run_dir: Path) -> Iterator[str]:
    twice = "SELECT group_id, episode_index FROM episodes WHERE reason = 'finished' GROUP BY 1, 2 HAVING COUNT(*) > 1"
    for group, episode_index in db.execute(twice):
        yield f"episode {episode_index} of group {group} finished twice"
    for (episode,) in db.execute("SELECT id FROM episodes WHERE reason != 'finished' AND error IS NULL"):
        yield f"episode {episode} failed without an error"
    try:
        size = _Config.model_validate_json((run_dir / "config.json").read_bytes()).rollout.group_size
    except (OSError, ValueError) as error:
        yield f"config.json cannot be read ({type(error).__name__}: {one_line(error)}); `resume=True` restores it from the store"
    else:
        ended = (
            "SELECT g.id, COUNT(DISTINCT e.episode_index) FROM groups g LEFT JOIN episodes e ON e.group_id = g.id"
            " WHERE g.state != 'open' GROUP BY g.id HAVING COUNT(DISTINCT e.episode_index) != ?"
        )
        for group, samples in db.execute(ended, (size,)):
            yield f"group {group} was closed with {samples} of {size} episodes accounted for"
    orphans = (
        "SELECT DISTINCT c.group_id, c.episode_index FROM calls c JOIN groups g ON g.id = c.group_id"
        " WHERE c.episode IS NULL AND (g.state != 'open' OR EXISTS (SELECT 1 FROM episodes e WHERE e.group_id = c.group_id"
        " AND e.episode_index = c.episode_index AND e.reason = 'finished'))"
    )
    for group, episode_index in db.execute(orphans):
        yield f"calls of episode {episode_index} of group {group} are kept, which has ended"


def _wrong_references(db: sqlite3.Connection) -> Iterator[str]:
    for table, row, other, _ in db.execute("PRAGMA foreign_key_check"):
        yield f"row {row} of {table} is of something that {other} does not have"


def _unknown_checkpoints(db: sqlite3.Connection, present: list[Path]) -> Iterator[str]:
    known = db.execute("SELECT path FROM checkpoints UNION SELECT path FROM begun_checkpoints").fetchall()
    names = {Path(path).name for (path,) in known}
    for (path,) in db.execute(
        "SELECT path FROM begun_checkpoints WHERE path IN (SELECT path FROM checkpoints WHERE kept)"
    ):
        yield f"the checkpoint {path} is committed, and noted as one that was only begun"
    for path in present:
        if path.name not in names:
            yield f"the store knows nothing of {path}: it is older than its checkpoints, or of another run"


def _wrong_at_url(db: sqlite3.Connection, run_dir: Path) -> Iterator[tuple[int, str]]:
    """Yield (step, what is wrong) of the checkpoints that are kept, where the run's URL should have them too."""
    try:
        if (url := checkpoint_url(read_config(run_dir))) is None:
            return
        there = url.files()
    except (ConfigError, CheckpointUrlError) as error:
        yield 0, f"the checkpoints at the run's URL cannot be read: {one_line(error, 300)}"
        return
    except StoreError:
        return  # which is said otherwise
    for step, path in db.execute("SELECT step, path FROM checkpoints WHERE kept ORDER BY step").fetchall():
        with suppress(CheckpointError):  # which is said of the files here
            found = there.get(Path(path).name, {})
            for name, file in read_manifest(run_dir / path).files.items():
                if found.get(name) != file.size:
                    yield step, f"the checkpoint {path} has no {name} of {file.size} bytes at {url.shown}"


def _still_kept(db: sqlite3.Connection, step: int) -> bool:
    """Whether the files of a checkpoint should be there even now: a run that goes on may have deleted them meanwhile."""
    row = db.execute(
        "SELECT kept OR damaged IS NOT NULL OR step = (SELECT MAX(step) FROM checkpoints) FROM checkpoints WHERE step = ?",
        (step,),
    ).fetchone()
    return row is None or bool(row[0])
