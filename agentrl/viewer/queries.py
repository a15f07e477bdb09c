"""The answers of the viewer's API, each read from a run directory or an evaluation's when it is asked for, and JSON values.

Shown ─► run, metrics, rewards, audit          what a run is, and its curves
     ├─► episodes                              which episodes fit: indexed, or looked through for a while
     └─► group, episode                        the conversation of an episode, and every token of it
"""

from __future__ import annotations

import json
import shlex
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, quantiles
from typing import TYPE_CHECKING, Any

from agentrl.errors import AgentRLError, StoreError
from agentrl.evaluation.directory import is_evaluation
from agentrl.record.end_reason import EndReason
from agentrl.run.audit import audit
from agentrl.run.open_run import Run
from agentrl.store.episodes import ListedEpisode
from agentrl.store.read_episode import RunEpisode
from agentrl.system.failure_text import masked
from agentrl.viewer.filters import Wanted

if TYPE_CHECKING:
    from agentrl.viewer.messages import MessageReader

SCAN_S = 2.0
"""How long episodes are looked through for one answer."""
SCANNED_AT_ONCE = 500
_LISTED = [*ListedEpisode.__dataclass_fields__]


@dataclass
class Shown:
    """A run or an evaluation that is shown, which may not have begun yet."""

    path: Path
    _metrics: tuple[Any, list[dict[str, Any]]] = (None, [])
    _means: tuple[float, list[tuple[int, float]]] = (0, [])
    """When the run started, and the mean rewards of its groups that have ended, which do not change until the next start."""

    @cached_property
    def _run(self) -> Run:
        return Run(self.path)

    @cached_property
    def is_evaluation(self) -> bool:
        """Whether it is an evaluation."""
        return is_evaluation(self.path)

    @cached_property
    def reader(self) -> MessageReader | None:
        """The reader of its conversations; None where the model's chat format cannot be loaded any more. Raises StoreError before the run begins."""
        from agentrl.rollout.open_runner import chat_format_of  # half a second, which a list of runs does without
        from agentrl.viewer.messages import MessageReader

        config = self._run.config  # raises where the run has not begun, so that it is asked again
        with suppress(AgentRLError):
            return MessageReader(chat_format_of(config))
        return None

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of its steps, read again where the file has changed."""
        with suppress(OSError):
            file = (self.path / "metrics.jsonl").stat()
            if (file.st_mtime_ns, file.st_size) != self._metrics[0]:
                self._metrics = (file.st_mtime_ns, file.st_size), self._run.metrics
            return self._metrics[1]
        return []

    @property
    def _eval_before(self) -> dict[str, Any]:
        path = self.path / "eval_before.json"
        return json.loads(path.read_bytes()) if path.is_file() else {}

    def head(self) -> dict[str, Any]:
        """Return what it is and how far it is."""
        begun, steps = (self.path / "config.json").is_file(), 0
        with suppress(OSError, ValueError, KeyError):  # the page of the run says why; the others are shown
            # Not by `Run.config`, which is checked in 20 ms: a page that is open asks for it all the time.
            steps = json.loads((self.path / "config.json").read_bytes())["steps"]
        return {
            "name": self.path.name,
            "path": str(self.path),
            "kind": "evaluation" if begun and self.is_evaluation else "run",
            "status": self._run.status if begun else "running",
            "step": self.metrics[-1]["step"] if self.metrics else 0,
            "steps": steps,
        }

    def figures(self) -> dict[str, str]:
        """Return how far it is and what it has reached, as text.

        Raises:
            StoreError: It cannot be read.
        """
        head, summary, steps = self.head(), self._run.summary or {}, self._run.config.steps
        if head["kind"] == "evaluation":
            low, high = summary.get("mean_reward_95", (None, None))
            mean_reward = "" if low is None else f"{summary['mean_reward']:.3f} [{low:.3f}, {high:.3f}]"
            return {"state": f"evaluation {head['status']}", "step": "", "reward": mean_reward, "held_out": ""}
        rewards = [row["reward_mean"] for row in self.metrics if row.get("reward_mean") is not None]
        held_out = [self._eval_before.get("mean_reward"), summary.get("eval_after")]
        return {
            "state": head["status"],
            "step": f"{head['step']} of {steps}",
            "reward": f"{rewards[-1]:.3f}" if rewards else "",
            "held_out": " → ".join(f"{value:.3f}" for value in held_out if value is not None),
        }

    def whole(self) -> dict[str, Any]:
        """Return all that is known of it but its head, its curves and its episodes."""
        run = self._run
        restarts = self._stored(
            "SELECT restart, started_at, (SELECT COALESCE(MAX(step), 0) FROM checkpoints c WHERE c.restart < r.restart),"
            " (SELECT json_group_object(step, made_at) FROM checkpoints c WHERE c.restart = r.restart) FROM restarts r ORDER BY restart"
        )
        newest = self._stored("SELECT record FROM episodes ORDER BY id DESC LIMIT 100")
        return {
            "config": masked(run.config.model_dump(mode="json")),
            "summary": run.summary,
            "checkpoints": [{"step": kept.step, "best": kept.best} for kept in run.checkpoints],
            "restarts": [
                {"restart": restart, "started_at": started_at, "step": step, "made_at": json.loads(made_at)}
                for restart, started_at, step, made_at in restarts
            ],
            "eval_before": self._eval_before,
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

    def rewards(self, points: int) -> dict[str, Any]:
        """Return the mean reward of the groups in the order in which they started, in so many bins, with the 10th and the 90th percentile.

        As in a run's own mean, the groups before the first that still runs count.
        """
        ((started,),) = self._stored("SELECT MAX(started_at) FROM restarts") or [(0,)]
        known = self._means[1] if self._means[0] == started else []
        rows = known + self._stored(
            "SELECT group_id, AVG(reward) FROM episodes INDEXED BY episodes_by_group WHERE reason = 'finished' AND group_id > ?1 AND group_id"
            " < COALESCE((SELECT MIN(id) FROM groups WHERE state = 'open' AND id > ?1), 9223372036854775807) GROUP BY group_id",
            known[-1][0] if known else -1,
        )
        self._means = started, rows
        size = max(1, -(-len(rows) // points))
        bins = [_bin(rows[start : start + size]) for start in range(0, len(rows), size)]
        names = ("first_group", "last_group", "mean", "low", "high", "groups")
        return {name: [found[index] for found in bins] for index, name in enumerate(names)}

    def audit(self) -> dict[str, Any]:
        """Return the verdict of an audit, which reads all of the store, and what it counted."""
        return asdict(audit(self.path))

    def episodes(self, asked: Wanted) -> dict[str, Any]:
        """Return a page of episodes, and where the next one begins."""
        found, searched_to = self.found(asked)
        threading.Thread(target=lambda: self.reader).start()  # it takes seconds, and one of them will be opened
        cursor = searched_to or (found[-1].id if len(found) == asked.limit else None)
        return {"episodes": [_row(episode) for episode in found], "cursor": cursor, "searched_to": searched_to}

    def found(self, asked: Wanted) -> tuple[list[RunEpisode], int | None]:
        """Return the episodes that fit; and the last one looked at, where time was up before all were."""
        if asked.ids:
            return [self._run.episode(one) for one in asked.ids], None
        if not (asked.role or asked.text or asked.cut):
            return self._run.listed(asked.where, limit=asked.limit, order=asked.sort, after=asked.cursor), None
        until, after, fitting = time.monotonic() + SCAN_S, asked.cursor, list[RunEpisode]()
        while batch := self._run.listed(asked.where, limit=SCANNED_AT_ONCE, order=asked.sort, after=after):
            for episode in batch:
                after = episode.id
                if self._fits(episode, asked):
                    fitting.append(episode)
                if len(fitting) == asked.limit:
                    return fitting, None
                if time.monotonic() > until:
                    return fitting, after
        return fitting, None

    def _fits(self, episode: RunEpisode, asked: Wanted) -> bool:
        turns = episode.record.turns
        if asked.role and not any(turn.role == asked.role for turn in turns):
            return False
        if asked.cut and not any(len(turn.versions) > 1 for turn in turns):
            return False
        if not asked.text:
            return True
        decode, text = self._run.text.decode, asked.text.casefold()
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
        episodes = [
            _row(episode) | {"advantage": fmean(own) if (own := episode.weighed()[1]) else None}
            for episode in self._run.episodes(group=group)
        ]
        return dict(zip(columns, rows[0], strict=True)) | {"episodes": episodes}

    def episode(self, number: int) -> dict[str, Any]:
        """Return an episode with every token."""
        episode = self._run.episode(number)
        ((previous, following),) = self._stored(
            "SELECT (SELECT MAX(id) FROM episodes WHERE id < ?1), (SELECT MIN(id) FROM episodes WHERE id > ?1)", number
        )
        return {
            **self.read(episode),
            "neighbours": {"previous": previous, "next": following},
            "replay": f"agentrl replay {shlex.quote(str(self.path))} {number}",
        }

    def read(self, episode: RunEpisode) -> dict[str, Any]:
        """Return an episode with its turns, as the page and every export show them."""
        from agentrl.viewer.transcript import turns_of  # as above

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
    return {name: getattr(episode, name) for name in _LISTED} | {"staleness": staleness}
