"""A run whose tasks are drawn by what came of the ones before: killed and gone on with, it draws what it would have drawn."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agentrl.models import NANO
from agentrl.run.audit import audit
from agentrl.run.run_directory import read_metrics
from agentrl.store.store import Store
from agentrl.tasks.curriculum import task_history
from tests import run_program
from tests.run_program import ends_well, kill_at_step

pytestmark = pytest.mark.soak

STEPS = 6
PROGRAM = """
import json, sys
import anyio
from agentrl.config import RunConfig
from agentrl.run.train import train
from agentrl.run.view import RunView

async def run(episode):
    messages = [{"role": "user", "content": f"{episode.task['n']} + 1 ="}]
    await episode.client.chat.completions.create(model=episode.model, messages=messages, max_tokens=3)
    return float((episode.seed + episode.task["n"]) % 3) / 2

if __name__ == "__main__":
    config = RunConfig.model_validate(json.loads(sys.argv[1]))
    anyio.run(lambda: train(config, workflow=run, resume="resume" in sys.argv, view=RunView(config)))
"""


def settings_of(directory: Path, name: str, **rollout: Any) -> dict[str, Any]:
    for source, first in (("low", 0), ("high", 100)):
        path = directory / f"{source}.jsonl"
        path.write_text("".join(json.dumps({"n": first + n}) + "\n" for n in range(5)))
    return {
        "run_dir": str(directory / name),
        "steps": STEPS,
        "model": {"path": str(NANO)},
        "data": {
            "order": "difficulty",
            "sources": [
                {"tasks": str(directory / "low.jsonl"), "weight": 2},
                {"tasks": str(directory / "high.jsonl")},
            ],
        },
        "rollout": {"batch_size": 4, "group_size": 4, "max_staleness": 0, "drop_uniform_groups": False, **rollout},
        "trainer": {"optimizer": {"lr": 1e-4}, "checkpoint": {"every": 2}},
    }


def start(directory: Path, settings: dict[str, Any], *words: str) -> subprocess.Popen[str]:
    return run_program.start(directory, PROGRAM, json.dumps(settings), *words)


@pytest.mark.timeout(1200)
def test_a_killed_run_draws_the_tasks_that_it_would_have_drawn(tmp_path: Path) -> None:
    """One group at a time, so that groups of both runs end in the same order; its rewards do not depend on what is sampled."""
    ends_well(start(tmp_path, settings_of(tmp_path, "whole")))
    settings = settings_of(tmp_path, "killed")
    kill_at_step(start(tmp_path, settings), tmp_path / "killed", 3)
    ends_well(start(tmp_path, settings, "resume"))
    events = {}
    for name in ("whole", "killed"):
        assert audit(tmp_path / name).violations == []
        with Store(tmp_path / name / "store.sqlite", read_only=True) as store:
            events[name] = store.read(task_history)[:STEPS]
    assert events["killed"] == events["whole"]
    means = {one.mean for one in events["whole"]}
    assert len(means) > 1, "what is drawn had something to go by"
    rows = read_metrics(tmp_path / "whole")
    assert sum(row["drawn_groups"] for row in rows) >= STEPS
    assert all(
        abs(sum(row[name] for name in ("tasks_pool_0", "tasks_pool_1", "tasks_pool_2", "tasks_unseen")) - 1) < 1e-9
        for row in rows
    )
