"""Where the time of a run went, from what it leaves behind: its metrics, and the episodes in its store.

    trainer   waited for a batch │ trained │ paused for a weight update │ the rest of a step │ between steps (checkpoints)
    slots     an episode ran     │ the gate was closed                  │ free though the gate was open

The first and the last steps are left out. In the first the slots fill, and the batches are those episodes that happened to be short;
what was still running at the end is in no store.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class RunTimeline:
    """The steps in the middle of a run, and all its episodes."""

    rows: list[Row]
    """The metrics of the steps that are looked at."""
    episodes: list[tuple[float, float]]
    """(began, ended) in s on one clock."""
    groups_begun: list[float]
    """When each group's first episode began, sorted."""
    ends: dict[int, float]
    """When each step ended, on that clock; 0: when training began."""
    slots: int
    groups_per_batch: int
    max_staleness: int

    @classmethod
    def read(cls, run_dir: Path, skip: int) -> RunTimeline:
        """Read a run that has ended. `skip`: how many steps to leave out at its beginning, and at its end."""
        rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        rollout = json.loads((run_dir / "config.json").read_text())["rollout"]
        db = sqlite3.connect(run_dir / "store.sqlite")
        found = db.execute(
            "SELECT started_at, started_at + duration_s, version, group_id FROM episodes"
            " JOIN groups ON groups.id = group_id ORDER BY started_at"
        ).fetchall()
        db.close()
        walls = {row["step"]: row["wall_s"] for row in rows}
        walls[0] = rows[0]["wall_s"] - rows[0]["step_s"]
        # Metrics count from the start of the process. No episode of version v begins before step v ends, and some do at once.
        offset = min(began - walls[version] for began, _, version, _ in found if version in walls)
        begun: dict[int, float] = {}
        for began, *_, group in found:
            begun.setdefault(group, began)
        return cls(
            rows[skip : len(rows) - skip],
            [(began, ended) for began, ended, _, _ in found],
            sorted(begun.values()),
            {step: wall_s + offset for step, wall_s in walls.items()},
            rollout["max_concurrent"],
            rollout["batch_size"] // rollout["group_size"],
            rollout["max_staleness"],
        )

    @property
    def elapsed_s(self) -> float:
        """From the end of the step before the first of them to that of the last one."""
        return self.ends[self.rows[-1]["step"]] - self.ends[self.rows[0]["step"] - 1]

    @property
    def step_s(self) -> float:
        """Of a step, with what lies between two."""
        return self.elapsed_s / len(self.rows)

    @property
    def rollout_s(self) -> float:
        """R: the time in which the slots, always full, would have done in a step what they did. Pauses that episodes sat through are in it."""
        return self.slot_shares()["running"] * self.step_s

    def mean(self, name: str) -> float:
        """A metric's mean over the steps."""
        return sum(float(row[name]) for row in self.rows) / len(self.rows)

    @property
    def train_s(self) -> float:
        """T: what a step takes beside waiting and the pause, with what lies between two."""
        return self.step_s - self.mean("wait_s") - self.mean("pause_s")

    def trainer_shares(self) -> dict[str, float]:
        """What the trainer did, as shares of the time."""
        parts = {name: self.mean(f"{name}_s") / self.step_s for name in ("wait", "train", "pause")}
        in_steps = self.mean("step_s") / self.step_s
        return parts | {"rest of a step": in_steps - sum(parts.values()), "between steps": 1 - in_steps}

    def slot_shares(self) -> dict[str, float]:
        """What the slots did, as shares of slots x time."""
        begin, end = self.ends[self.rows[0]["step"] - 1], self.ends[self.rows[-1]["step"]]
        changes = sorted(
            [(began, 1) for began, _ in self.episodes]
            + [(ended, -1) for _, ended in self.episodes]
            + [(moment, 0) for moment in (*self.ends.values(), *self.groups_begun)]
        )
        shares = {"running": 0.0, "gate": 0.0, "free": 0.0}
        running = 0
        for (moment, change), (following, _) in itertools.pairwise(changes):
            running += change
            lasted = max(0.0, min(following, end) - max(moment, begin)) / self.elapsed_s
            used = min(1.0, running / self.slots)
            shares["running"] += used * lasted
            shares["gate" if self._gate_closed(moment) else "free"] += (1 - used) * lasted
        return shares

    def _gate_closed(self, moment: float) -> bool:
        version = sum(end <= moment for step, end in self.ends.items() if step)
        begun = sum(began <= moment for began in self.groups_begun)
        return begun >= (version + self.max_staleness + 1) * self.groups_per_batch


def gain(sync: RunTimeline, overlapped: RunTimeline) -> tuple[float, float]:
    """Return (S, S_max) of two halves whose batches have the same size.

        S = synchronous step / overlapped step        S_max = synchronous step / max(R, T + p)

    R, T and p are those of the overlapped half: on shared cores episodes and trainer slow each other, so that the synchronous half's
    own R is too short, or, where 64 episodes at once slow each other, too long. With κ from the synchronous half and ρ, w from the
    overlapped one that is (κ + ρ + w) / max(1, ρ + w). S/S_max is then what a step would take if nothing had waited but for
    the slower side, as a share of what it took.
    """
    ideal_s = max(overlapped.rollout_s, overlapped.train_s + overlapped.mean("pause_s"))
    return sync.step_s / overlapped.step_s, sync.step_s / ideal_s
