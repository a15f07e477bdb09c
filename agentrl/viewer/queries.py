"""The answers of the viewer's API, each read from a run directory or an evaluation's, and JSON values.

ShownRun ─► about, metrics, rewards, speedup, audit     what a run is, and its curves
         ├─► episodes, neighbours                       which episodes fit: indexed, or looked through for a while
         └─► group, episode                             the conversation of an episode, and every token of it
"""

from __future__ import annotations

import json
import shlex
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, quantiles
from typing import TYPE_CHECKING, Any, TypeVar

from agentrl.config import RunConfig
from agentrl.errors import AgentRLError, StoreError, one_line
from agentrl.evaluation.directory import untrained_kind
from agentrl.evaluation.figures import Interval
from agentrl.record.end_reason import EndReason
from agentrl.rollout.gate import gate_of
from agentrl.run.audit import audit
from agentrl.run.open_run import Run
from agentrl.run.speedup import speedup_of
from agentrl.store.episodes import ListedEpisode, Order
from agentrl.store.read_episode import RunEpisode, weighed_group
from agentrl.system.failure_text import masked
from agentrl.viewer.filters import EpisodeQuery

if TYPE_CHECKING:
    from agentrl.viewer.messages import MessageReader

T = TypeVar("T")
SCAN_S = 2.0
"""How long episodes are looked through for one answer."""
SCANNED_AT_ONCE = 500
_BESIDE: dict[Order, tuple[Order, Order]] = {"best": ("worst", "best"), "worst": ("best", "worst")}
"""The orders in which the episodes before and after one come next, where it is not that in which they ended."""


@dataclass
class ShownRun:
    """A run or an evaluation that is shown, which may not have begun yet."""

    path: Path
    _files: dict[str, tuple[tuple[int, int] | None, Any]] = field(default_factory=dict)
    """What was read of a file, after the state of the file then."""

    @cached_property
    def _run(self) -> Run:
        return Run(self.path)

    @cached_property
    def kind(self) -> str:
        """Its kind: "run", "evaluation" or "service"."""
        return untrained_kind(self.path) or "run"

    @cached_property
    def reader(self) -> MessageReader | None:
        """The reader of its conversations; None where the model is an endpoint's, or is not there any more. Raises StoreError before the run begins."""
        from agentrl.rollout.open_runner import chat_format_of  # half a second, which a list of runs does without
        from agentrl.viewer.messages import MessageReader

        config = self._config  # raises where the run has not begun, so that it is asked again
        if not Path(config.model.path).is_dir():  # the name of a model at an endpoint, which is looked for nowhere
            return None
        with suppress(AgentRLError):
            return MessageReader(chat_format_of(config))
        return None

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of its steps."""
        return self._read("metrics.jsonl", lambda: self._run.metrics)

    @property
    def _config(self) -> RunConfig:
        return self._read("config.json", lambda: self._run.config)  # checked in 20 ms

    def _read(self, name: str, read: Callable[[], T]) -> T:
        """Return what `read` makes of a file; it is called again where the file has changed."""
        state = None
        with suppress(OSError):
            file = (self.path / name).stat()
            state = file.st_mtime_ns, file.st_size
        if name not in self._files or self._files[name][0] != state:
            self._files[name] = state, read()
        return self._files[name][1]  # type: ignore[no-any-return]

    @property
    def _open_sessions(self) -> int:
        """How many sessions of a service are open: an episode is one that has ended."""
        ((count,),) = self._stored("SELECT COUNT(*) FROM groups WHERE state = 'open'")
        return int(count) if self._run.status == "running" else 0

    @property
    def _evaluations(self) -> list[dict[str, Any]]:
        found = self._stored("SELECT step, figures FROM evaluations ORDER BY step")
        return [{"step": step, **json.loads(figures)} for step, figures in found]

    def head(self) -> dict[str, Any]:
        """Return what it is and how far it is."""
        begun, steps = (self.path / "config.json").is_file(), 0
        kind = self.kind if begun else "run"
        with suppress(AgentRLError):  # the page of the run says why; the others are shown
            steps = self._config.steps
        return {
            "name": self.path.name,
            "path": str(self.path),
            "kind": kind,
            "status": self._run.status if begun else "running",
            "open_sessions": self._open_sessions if kind == "service" else 0,
            "step": self.metrics[-1]["step"] if self.metrics else 0,
            "steps": steps,
        }

    def figures(self) -> dict[str, str]:
        """Return how far it is and what it has reached, as text.

        Raises:
            StoreError: It cannot be read.
        """
        head, summary, steps = self.head(), self._run.summary or {}, self._config.steps
        if head["kind"] != "run":
            mean = f"{Interval(summary['mean_reward'], *summary['mean_reward_95'])}" if summary else ""
            sessions = f"{head['open_sessions']} sessions open" if head["open_sessions"] else ""
            return {"state": f"{head['kind']} {head['status']}", "step": sessions, "reward": mean, "held_out": ""}
        rewards = [row["reward_mean"] for row in self.metrics if row.get("reward_mean") is not None]
        found = self._evaluations
        held_out = [f"{Interval(of['mean_reward'], *of['mean_reward_95'])}" for of in (*found[:1], *found[1:][-1:])]
        return {
            "state": f"failed: {one_line(self._run.failure, 60)}" if head["status"] == "failed" else head["status"],
            "step": f"{head['step']} of {steps}",
            "reward": f"{rewards[-1]:.3f}" if rewards else "",
            "held_out": " → ".join(held_out) + (f"  n = {found[0]['tasks']} tasks" if found else ""),
        }

    def about(self) -> dict[str, Any]:
        """Return all that is known of it but its head, its curves and its episodes."""
        run = self._run
        restarts = self._stored(
            "SELECT restart, started_at, (SELECT COALESCE(MAX(step), 0) FROM checkpoints c WHERE c.restart < r.restart),"
            " (SELECT json_group_object(step, made_at) FROM checkpoints c WHERE c.restart = r.restart) FROM restarts r ORDER BY restart"
        )
        newest = self._stored("SELECT record FROM episodes ORDER BY id DESC LIMIT 100")
        return {
            "config": masked(self._config.model_dump(mode="json")),
            "staleness_bound": gate_of(self._config.rollout).bound,
            "summary": run.summary,
            "checkpoints": [{"step": kept.step, "best": kept.best} for kept in run.checkpoints],
            "restarts": [
                {"restart": restart, "started_at": started_at, "step": step, "made_at": json.loads(made_at)}
                for restart, started_at, step, made_at in restarts
            ],
            "evaluations": [{name: one[name] for name in ("step", "mean_reward")} for one in self._evaluations],
            "reasons": [*EndReason],
            "roles": sorted({role for (record,) in newest for role in json.loads(record).get("role", []) if role}),
        }

    def _stored(self, query: str, *values: int) -> list[Any]:
        """Return the rows of a query; none where there is no store, as of a supervised run."""
        if not (self.path / "store.sqlite").is_file():
            return []
        with self._run.open_store() as store:
            return store.read(lambda db: db.execute(query, values).fetchall())

    def steps(self, after: int) -> dict[str, Any]:
        """Return the metrics of the steps after one."""
        return {"steps": [row for row in self.metrics if row["step"] > after]}

    def rewards(self, size: int) -> dict[str, Any]:
        """Return the mean reward of so many groups each, in the order in which they started, with the 10th and the 90th percentile.

        As in a run's own mean, the groups before the first that still runs count.
        """
        rows = self._stored(
            "SELECT group_id, AVG(reward) FROM episodes INDEXED BY episodes_by_group WHERE reason = 'finished' AND group_id"
            " < COALESCE((SELECT MIN(id) FROM groups WHERE state = 'open'), 9223372036854775807) GROUP BY group_id"
        )
        bins = [_bin(rows[start : start + size]) for start in range(0, len(rows), size)]
        names = ("first_group", "last_group", "mean", "low", "high", "groups")
        return {name: [part[index] for part in bins] for index, name in enumerate(names)}

    def audit(self) -> dict[str, Any]:
        """Return the verdict of an audit, which reads all of the store, and what it counted."""
        return asdict(audit(self.path))

    def speedup(self) -> dict[str, Any] | None:
        """Return the gain of asynchrony, estimated from its trace; None: no checkpoint contains a step that it can be made of."""
        rows, slots = self.metrics, self._config.rollout.max_concurrent
        with self._run.open_store() as store:
            speedup = store.read(lambda db: speedup_of(db, rows, slots))
        return asdict(speedup) if speedup else None

    def episodes(self, query: EpisodeQuery) -> dict[str, Any]:
        """Return a page of episodes, and where the next one begins."""
        episodes, searched_to = self.fitting(query)
        if "reader" not in vars(self):
            threading.Thread(target=lambda: self.reader).start()  # it takes seconds, and one of them will be opened
        cursor = searched_to or (episodes[-1].id if len(episodes) == query.limit else None)
        return {"episodes": [_row(episode) for episode in episodes], "cursor": cursor, "searched_to": searched_to}

    def fitting(self, query: EpisodeQuery) -> tuple[list[RunEpisode], int | None]:
        """Return the episodes that fit; and the last one looked at, where time was up before all were."""
        if not (query.role or query.text or query.cut):
            return self._run.listed(query.where, limit=query.limit, order=query.sort, after=query.cursor), None
        until, after, fitting = time.monotonic() + SCAN_S, query.cursor, list[RunEpisode]()
        while batch := self._run.listed(query.where, limit=SCANNED_AT_ONCE, order=query.sort, after=after):
            for episode in batch:
                after = episode.id
                if self._fits(episode, query):
                    fitting.append(episode)
                if len(fitting) == query.limit:
                    return fitting, None
                if time.monotonic() > until:
                    return fitting, after
        return fitting, None

    def _fits(self, episode: RunEpisode, query: EpisodeQuery) -> bool:
        turns = episode.record.turns
        if query.role and not any(turn.role == query.role for turn in turns):
            return False
        if query.cut and not any(len(turn.versions) > 1 for turn in turns):
            return False
        if not query.text:
            return True
        decode, text = self._run.text.decode, query.text.casefold()
        said = (decode(ids) for turn in turns for ids in (turn.prompt_ids, turn.output_ids))
        return text in (episode.error or "").casefold() or any(text in part.casefold() for part in said)

    def group(self, group: int) -> dict[str, Any]:
        """Return a group with its episodes side by side.

        Raises:
            StoreError: There is none of this id.
        """
        rows = self._stored("SELECT id, task, epoch, state, rejected, step, version FROM groups WHERE id = ?", group)
        if not rows:
            raise StoreError(f"{self.path} holds no group {group}")
        columns = ("group", "task", "epoch", "state", "rejected", "step", "version")
        weighed = weighed_group(self._run, group)
        means = {episode: fmean(advantages) for episode, (_, advantages) in weighed.items() if advantages}
        episodes = [_row(episode) | {"advantage": means.get(episode.id)} for episode in self._run.episodes(group=group)]
        return dict(zip(columns, rows[0], strict=True)) | {"episodes": episodes}

    def episode(self, number: int) -> dict[str, Any]:
        """Return an episode with every token."""
        replay = None if self.kind != "run" else f"agentrl replay {shlex.quote(str(self.path))} {number}"
        return {**self.read(self._run.episode(number)), "replay": replay}

    def neighbours(self, number: int, query: EpisodeQuery) -> dict[str, int | None]:
        """Return the episodes before and after one, of those that fit: in the order of their rewards if sorted by these, else in which they ended."""
        orders = _BESIDE.get(query.sort, ("newest", "oldest"))
        either = (query.model_copy(update={"sort": order, "cursor": number, "limit": 1}) for order in orders)
        beside = [next(iter(self.fitting(one)[0]), None) for one in either]
        return dict(zip(("previous", "next"), (one.id if one else None for one in beside), strict=True))

    def read(self, episode: RunEpisode) -> dict[str, Any]:
        """Return an episode with its turns, as the page and every export show them."""
        from agentrl.viewer.transcript import turns_of  # slow to import, like the reader

        return {
            "episode": _row(episode),
            "turns": turns_of(episode, self.reader),
            "details": episode.details or None,
        }


def _bin(groups: list[tuple[int, float]]) -> tuple[float, ...]:
    values = [reward for _, reward in groups]
    tenths = quantiles(values, n=10, method="inclusive") if len(values) > 1 else values
    return groups[0][0], groups[-1][0], fmean(values), tenths[0], tenths[-1], len(values)


def _row(episode: RunEpisode) -> dict[str, Any]:
    staleness = None if episode.step is None else episode.step - 1 - episode.version
    return {name: getattr(episode, name) for name in ListedEpisode.__dataclass_fields__} | {"staleness": staleness}
