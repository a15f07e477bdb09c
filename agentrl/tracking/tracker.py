"""Trackers show a run elsewhere: what they are given, and how, so that none of them can harm or delay the run.

    run, evaluation ─► Tracking ─► for each tracker a bounded queue ─► a thread of its own ─► Tracker
                                   what does not fit is dropped

A tracker that raises misses what it raised on. Both are said once for each tracker. Its package is imported in its thread.
"""

from __future__ import annotations

import hashlib
import queue
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import anyio

from agentrl.config import RunConfig
from agentrl.errors import AgentRLError, ConfigError, one_line
from agentrl.store.read_episode import RunEpisode
from agentrl.store.store import Store
from agentrl.system.failure_text import masked
from agentrl.system.imports import check_extra, load_object
from agentrl.system.tasks import in_thread

_CLASSES = {"tensorboard": "TensorBoard", "wandb": "WandB", "mlflow": "MLflow", "trackio": "Trackio"}
BUILT_IN = {name: f"agentrl.tracking.trackers:{kind}" for name, kind in _CLASSES.items()}
"""The trackers that ship with agentrl, by the names that they have in `tracking.trackers` and as extras."""
QUEUED = 1000
"""Entries that wait for a tracker, at most."""
FLUSH_TIMEOUT_S = 30.0
"""How long trackers may take at the end of a run, all of them together."""


class Sample(NamedTuple):
    """A finished episode, as a row of a tracker's table."""

    step: int
    task: int
    reward: float
    transcript: str


@dataclass(frozen=True)
class TrackedRun:
    """A start of a run, or an evaluation, as a tracker is given it."""

    id: str
    """The same at each start of the run, and another for every other run."""
    name: str
    config: dict[str, Any]
    directory: Path
    step: int
    """The step that this start goes on after: later ones that the tracker knows were undone by a crash. -1: an evaluation."""


class Tracker(Protocol):
    """A tracker, made with a `TrackedRun`. All calls come from one thread, in their order; they may block, and raise."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a step. A step may have several such calls."""

    def show(self, step: int, samples: Sequence[Sample]) -> None:
        """Take the best episode of a step, the worst, and one at random."""

    def alarm(self, step: int, text: str) -> None:
        """Take a line that warns."""

    def close(self) -> None:
        """Write everything out."""


MakeTracker = Callable[[TrackedRun], Tracker]


def load_trackers(names: Sequence[str]) -> dict[str, MakeTracker]:
    """Return what makes each tracker of `tracking.trackers`.

    Raises:
        ConfigError: There is no such tracker, or its package is not installed.
    """
    found = {}
    for name in names:
        if name in BUILT_IN:
            check_extra(name, f"`tracking.trackers` = {name}")
        try:
            found[name] = load_object(BUILT_IN.get(name, name))
        except (AgentRLError, ImportError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"`tracking.trackers` = {name!r} cannot be loaded: {one_line(error)}; use {', '.join(BUILT_IN)}, or "
                "FILE_OR_MODULE:NAME of a class of your own"
            ) from error
    return found


def samples_of(step: int, episodes: Sequence[RunEpisode]) -> list[Sample]:
    """Return the best of the finished episodes, the worst, and another at random, as far as there are so many."""
    ranked = sorted((one for one in episodes if one.reason == "finished"), key=lambda one: -one.reward)
    between = ranked[1:-1]
    chosen = [*ranked[:1], *ranked[1:][-1:], *random.Random(step).sample(between, min(1, len(between)))]  # noqa: S311
    return [Sample(step, one.task, one.reward, one.transcript()) for one in chosen]


class _Feed:
    """One tracker, its queue and its thread."""

    def __init__(self, name: str, make: Callable[[], Tracker], say: Callable[[str], None]) -> None:
        self._name, self._make, self._say = name, make, say
        self._entries: queue.Queue[Callable[[Tracker], None] | None] = queue.Queue(QUEUED)
        self.put(lambda tracker: None)  # so that it begins at once
        self._thread = threading.Thread(target=self._run, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def put(self, entry: Callable[[Tracker], None]) -> None:
        """Have the tracker do something, when it comes to it."""
        try:
            self._entries.put_nowait(entry)
        except queue.Full:
            self._misses(f"it is {QUEUED} entries behind, so later ones are dropped")

    def _run(self) -> None:
        tracker: Tracker | None = None
        for entry in iter(self._entries.get, None):
            try:
                tracker = tracker or self._make()
                entry(tracker)
            except (Exception, SystemExit) as error:
                self._misses(f"it raised {type(error).__name__}: {one_line(error)}")

    def _misses(self, why: str) -> None:
        """Say that the tracker misses something, the first time."""
        say, self._say = self._say, lambda line: None
        say(f"tracker {self._name}: {why}. The run goes on, and this is said once")

    def close(self, deadline: float) -> None:
        """Have the tracker write everything out. `deadline`: the time, by time.monotonic(), at which it is left behind."""
        with suppress(queue.Full):
            for entry in (lambda tracker: tracker.close(), None):
                self._entries.put(entry, timeout=max(0.0, deadline - time.monotonic()))
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._misses(f"it did not write everything out within {FLUSH_TIMEOUT_S:g} s of the end")


class Tracking:
    """The trackers of a run. Every method returns at once."""

    def __init__(self, feeds: Sequence[_Feed], step: int, say: Callable[[str], None]) -> None:
        self._feeds, self._step, self._say = feeds, step, say

    def log(self, step: int, record: Mapping[str, Any]) -> None:
        """Give the numbers of a step's record to the trackers, under their names."""
        self._step = step
        metrics = {name: value for name, value in record.items() if isinstance(value, int | float)}
        self._put(lambda tracker: tracker.log(step, metrics))

    def show(self, step: int, episodes: Callable[[], Sequence[RunEpisode]]) -> None:
        """Show a few of the episodes of a step, which are read in the trackers' threads."""
        samples = cache(lambda: samples_of(step, episodes()))
        self._put(lambda tracker: tracker.show(step, samples()))

    def alarm(self, text: str) -> None:
        """Say a line that warns, and give it to the trackers."""
        step = self._step
        self._say(text)
        self._put(lambda tracker: tracker.alarm(step, text))

    def _put(self, entry: Callable[[Tracker], None]) -> None:
        for feed in self._feeds:
            feed.put(entry)


@asynccontextmanager
async def open_tracking(
    trackers: Mapping[str, MakeTracker], config: RunConfig, directory: Path, step: int, say: Callable[[str], None]
) -> AsyncIterator[Tracking]:
    """Feed trackers for the length of the context. At its end they have `FLUSH_TIMEOUT_S` to write everything out.

    Args:
        trackers: As `load_trackers` returns them.
        config: The configuration of the run.
        directory: Where its store is.
        step: The step that it goes on after; -1: it is an evaluation.
        say: Is called with lines that a user should read, from any thread.
    """
    feeds = list[_Feed]()
    if trackers:
        run = await in_thread(_tracked, config, directory, step)
        feeds = [_Feed(name, partial(make, run), say) for name, make in trackers.items()]
    try:
        yield Tracking(feeds, max(step, 0), say)
    finally:
        deadline = time.monotonic() + FLUSH_TIMEOUT_S
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for feed in feeds:
                    group.start_soon(in_thread, feed.close, deadline)


def _tracked(config: RunConfig, directory: Path, step: int) -> TrackedRun:
    with Store(directory / "store.sqlite", read_only=True) as store:
        (started,) = store.read(lambda db: db.execute("SELECT MIN(started_at) FROM restarts").fetchone())
    identity = hashlib.sha256(f"{directory.name} {started}".encode()).hexdigest()[:16]
    content = masked(config.model_dump(mode="json", exclude={"run_dir"}))
    return TrackedRun(identity, directory.name, content, directory, step)
