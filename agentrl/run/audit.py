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

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.config.load import config_of
from agentrl.errors import CheckpointError, CheckpointUrlError, ConfigError, StoreError, one_line
from agentrl.evaluation.directory import check_no_evaluation
from agentrl.rollout.gate import gate_of
from agentrl.run.checkpoint_url import checkpoint_url
from agentrl.run.open_run import open_run
from agentrl.run.run_directory import read_config, unknown_checkpoints, whole_checkpoints
from agentrl.store.batches import batches, wrong_minibatches
from agentrl.store.database import check_pages, reporting
from agentrl.store.episodes import Totals, count_totals
from agentrl.store.manifest import check_files, read_manifest, unlisted_files
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
    "the checkpoint of step {} is damaged ({}); --resume trains its batches again": (
        f"SELECT step, damaged FROM checkpoints WHERE damaged IS NOT NULL AND step > {_WHOLE_STEP}"
    ),
    "the newest checkpoint, of step {}, is not kept": (
        f"SELECT step FROM checkpoints WHERE NOT kept AND step = {_WHOLE_STEP}"
    ),
    "the checkpoint {} is committed, and noted as one that was only begun": (
        "SELECT path FROM begun_checkpoints WHERE path IN (SELECT path FROM checkpoints WHERE kept)"
    ),
}

COUNTS = {
    "restarts": "COUNT(*) FROM restarts",
    "last_checkpoint": "MAX(step) FROM checkpoints",
    "tasks": "COUNT(*) FROM groups",
    "trained": "COUNT(*) FROM groups WHERE step IS NOT NULL",
    "waiting": "COUNT(*) FROM groups WHERE state = 'ready' AND step IS NULL",
    "unfinished": "COUNT(*) FROM groups WHERE state = 'open'",
    "batches": "COUNT(*) FROM batches",
    "logged_calls": "COUNT(*) FROM calls WHERE episode IS NULL",
}
"""Fields of an `Audit`, with how the store has them."""


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
    check_no_evaluation(run_dir)
    with open_run(run_dir).open_store() as store, reporting(run_dir / "store.sqlite"):
        return store.read(lambda db: _audit(db, run_dir))


def _audit(db: sqlite3.Connection, run_dir: Path) -> Audit:
    present = whole_checkpoints(run_dir)  # before, so that a run that goes on has told its store of each
    db.execute("BEGIN")  # one state of everything, also of a run that goes on
    check_pages(db, run_dir / "store.sqlite")
    found = _count(db, [*_violations(db), *unknown_checkpoints(db, present)])
    by_step = [*_wrong_checkpoints(db, run_dir), *_wrong_at_url(db, run_dir)]
    db.execute("COMMIT")
    kept = {step for (step,) in db.execute("SELECT step FROM checkpoints WHERE kept")}
    # A run that goes on may have deleted a checkpoint while it was read.
    found.violations.extend(text for step, text in by_step if step is None or step in kept)
    return found


def _count(db: sqlite3.Connection, found: list[str]) -> Audit:
    """Count everything that the store holds."""
    dropped: Counter[str] = Counter()
    for reason, count in db.execute("SELECT rejected, COUNT(*) FROM groups WHERE state = 'rejected' GROUP BY 1"):
        dropped[re.sub(r"-?\d[\d.e+-]*", "N", reason or "no reason")] += count
    counts = {name: db.execute(f"SELECT {query}").fetchone()[0] for name, query in COUNTS.items()}
    return Audit(**counts, dropped=dict(dropped), totals=count_totals(db), violations=found)


def _violations(db: sqlite3.Connection) -> Iterator[str]:
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
        bounds = [
            gate_of(config_of(dict(json.loads(text))).rollout).bound
            for (text,) in db.execute("SELECT config FROM restarts")
        ]
    except (ConfigError, ValueError):
        return  # of another version of agentrl
    bound = max(bounds, default=0)
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


def _wrong_checkpoints(db: sqlite3.Connection, run_dir: Path) -> Iterator[tuple[int, str]]:
    """Yield (step, what is wrong) of the checkpoints that are kept, by their files."""
    taken = "(SELECT SUM(optimizer_steps) FROM batches b WHERE b.step <= c.step)"
    for step, path, steps in db.execute(f"SELECT step, path, {taken} FROM checkpoints c WHERE kept ORDER BY step"):
        for text in _wrong_files(run_dir / path, step, steps):
            yield step, f"the checkpoint {path} {text}"


def _wrong_files(directory: Path, step: int, optimizer_steps: int) -> Iterator[str]:
    if not directory.is_dir():
        yield "is gone; --resume goes on without it: from an older one, or from the model, through the recorded batches"
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
