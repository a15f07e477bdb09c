"""The command line as a user types it. `test_doors.py` gives it bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.cli.main import _config, _parser, _split_overrides
from agentrl.envs.calculator import distinct_tasks

ROOT = Path(__file__).parents[2]


def agentrl(*words: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentrl", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, cwd=ROOT)


def test_eval_serves_the_model_and_prints_the_mean_reward(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(task) + "\n" for task in distinct_tasks(16, seed=5)))
    out = tmp_path / "episodes.jsonl"
    words = ["eval", "workflows/calculator.py", "--tasks", str(tasks), "--model", "nano", "--out", str(out)]
    result = agentrl(*words, "--eval.samples", "2", "--json")
    assert result.returncode == 0, result.stderr
    shown = json.loads(result.stdout)
    assert (shown["tasks"], shown["episodes"], shown["failed"]) == (16, 32, 0)
    assert 0 < shown["mean_reward"] <= 1
    assert shown["mean_reward_95"][0] < shown["mean_reward"] < shown["mean_reward_95"][1]
    _, *episodes = [json.loads(line) for line in out.read_text().splitlines()]
    rewards = [episode["reward"] for episode in episodes]
    assert len(rewards) == 32
    assert shown["mean_reward"] == pytest.approx(sum(rewards) / 32)
    assert shown["pass_at"]["1"]["mean"] == pytest.approx(sum(reward >= 1 for reward in rewards) / 32)
    assert shown["pass_at"]["1"]["mean"] <= shown["pass_at"]["2"]["mean"]
    assert len(shown["per_task"]) == 16

    out.write_text("".join(out.read_text().splitlines(keepends=True)[:-7]) + '{"torn')
    again = agentrl(*words, "--eval.samples", "2")
    assert "going on after 25 episodes" in again.stderr
    assert len(out.read_text().splitlines()) == 1 + 32
    assert "pass@2" in again.stdout
    assert "tasks, the hardest first" in again.stdout
    other = agentrl(*words, "--seed", "3")
    assert other.returncode == 2
    assert "holds something else than this evaluation" in other.stderr


def test_init_writes_a_project_that_passes_its_tests_and_evaluates(tmp_path: Path) -> None:
    made = agentrl("init", str(tmp_path / "sums"))
    assert made.returncode == 0, made.stderr
    assert sorted(path.name for path in (tmp_path / "sums").iterdir()) == [
        "environment.py",
        "environment_test.py",
        "run.toml",
        "tasks.py",
        "workflow.py",
    ]
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=tmp_path / "sums", capture_output=True, text=True, timeout=60
    )
    assert tests.returncode == 0, tests.stdout
    evaluated = subprocess.run(
        [
            sys.executable,
            "-m",
            "agentrl",
            "eval",
            "workflow.py",
            "--config",
            "run.toml",
            "--eval.limit",
            "8",
            "--json",
        ],
        cwd=tmp_path / "sums",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert evaluated.returncode == 0, evaluated.stderr
    assert json.loads(evaluated.stdout)["failed"] == 0
    again = agentrl("init", str(tmp_path / "sums"))
    assert again.returncode == 2
    assert "exists already; choose another name" in again.stderr


def test_help_names_every_configuration_key() -> None:
    shown = "".join(agentrl("train", "--help").stdout.split())
    assert "rollout.max_staleness" in shown
    assert "trainer.importance_weight_max" in shown


def test_engine_is_short_for_its_kind_and_files_add_up(tmp_path: Path) -> None:
    file = tmp_path / "more.toml"
    file.write_text("[engine]\nservers = 3\n")
    words = ["train", "w.py", "--engine", "sglang", "--config", str(file), "--engine.flags.tp-size", "2"]
    parser = _parser()
    rest, overrides = _split_overrides(words, parser)
    config = _config(parser.parse_args(rest), overrides)
    assert (config.engine.kind, config.engine.servers, config.engine.flags) == ("sglang", 3, {"tp-size": 2})
