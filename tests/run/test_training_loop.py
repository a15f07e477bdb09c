"""A run is evaluated while it trains, and ends when it has reached its goal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

GOAL = """
import json, sys
import anyio
import agentrl

config = agentrl.RunConfig.model_validate(json.loads(sys.argv[1]))
evaluated = 0

async def run(episode):
    global evaluated
    await episode.client.chat.completions.create(
        model=episode.model, messages=[{"role": "user", "content": "1 + 1 ="}], max_tokens=2
    )
    if not episode.task.get("held_out"):
        return float(episode.seed % 3)
    evaluated += 1
    return evaluated / 4

if __name__ == "__main__":
    done = anyio.run(lambda: agentrl.train(config, workflow=run, tasks=[{"n": 1}], resume="resume" in sys.argv))
    print(json.dumps(done.summary))
"""


def test_a_run_ends_with_the_evaluation_that_reaches_its_goal(tmp_path: Path) -> None:
    """Its only held-out task is worth 0.25 in the first evaluation, 0.5 in the second, and 0.75, the goal, in the third."""
    (tmp_path / "held_out.jsonl").write_text('{"held_out": true}\n')
    config = {
        "run_dir": str(tmp_path / "run"),
        "steps": 50,
        "model": "nano",
        "rollout": {"batch_size": 4, "group_size": 2, "drop_uniform_groups": False, "max_tokens": 2},
        "trainer": {"checkpoint": {"every": 50}},
        "eval": {"tasks": str(tmp_path / "held_out.jsonl"), "every": 2, "stop_at": 0.75},
    }
    (tmp_path / "goal.py").write_text(GOAL)

    def ended(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(tmp_path / "goal.py"), json.dumps(config), *words]
        own = {**os.environ, "AGENTRL_TEST_RUN": str(tmp_path)}
        return subprocess.run(command, capture_output=True, text=True, timeout=300, env=own, cwd=tmp_path)

    done = ended()
    assert done.returncode == 0, done.stderr
    assert "`eval.stop_at` = 0.75 is reached: the run ends with step 4\n" in done.stdout
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["steps"], summary["eval_before"], summary["eval_after"]) == (4, 0.25, 0.75)
    assert summary["best_checkpoint"] == {"step": 4, "reward": 0.75, "groups": 0}
    again = ended("resume")
    assert again.returncode == 0, again.stderr
    assert "ended with step 4 of 50, where it reached `eval.stop_at` = 0.75" in again.stdout
    assert json.loads(again.stdout.splitlines()[-1])["steps"] == 4
