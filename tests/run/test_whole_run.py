"""Whole runs, as a user starts them: one that is killed and gone on with, and the first steps of `make quickstart`."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agentrl.envs.calculator_env import distinct_tasks
from agentrl.models import NANO
from agentrl.run.audit import audit
from agentrl.run.open_run import open_run
from agentrl.run.run_directory import read_metrics
from agentrl.store.batches import batches
from agentrl.store.store import Store
from tests.components import missing
from tests.run.test_train import ROOT, environment, left_behind, long_run, wait_for_step

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LARGEST_MISMATCH = 1e-3
"""Between the logprobs of the engine and those of the trainer, of any token."""


def wait_for_checkpoint(run_dir: Path) -> None:
    deadline = time.monotonic() + 240
    while not open_run(run_dir).checkpoints:
        assert time.monotonic() < deadline, "no checkpoint was committed"
        time.sleep(0.05)


def check_nothing_is_left_behind(run_dir: Path) -> None:
    deadline = time.monotonic() + 60
    while left := left_behind(run_dir):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def check_steps(run_dir: Path, steps: int, bound: int) -> dict[str, Any]:
    """Every step has its line, and no token is older than it may be; the summary."""
    rows = read_metrics(run_dir)
    assert [row["step"] for row in rows] == list(range(1, steps + 1))
    assert all(0 <= row["staleness_max"] <= bound for row in rows)
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    assert summary["steps"] == steps
    assert summary["staleness_max"] <= summary["staleness_bound"] == bound
    assert summary["logprob_mismatch_max"] < LARGEST_MISMATCH
    return summary


def check_tensorboard(run_dir: Path) -> EventAccumulator:
    """Each curve of TensorBoard has the numbers of the steps that count, and nothing of those that a crash undid."""
    read = EventAccumulator(str(run_dir / "tensorboard"))
    read.Reload()
    rows = {(name, row["step"]): value for row in read_metrics(run_dir) for name, value in row.items()}
    tags = [tag for tag in read.Tags()["scalars"] if not tag.startswith("eval_")]
    shown = [(tag, event.step, event.value) for tag in tags for event in read.Scalars(tag)]
    assert {(tag, step): value for tag, step, value in shown} == pytest.approx(
        {key[:2]: rows[key[:2]] for key in shown}
    )
    assert len(shown) == len({key[:2] for key in shown})
    return read


def check_first_episodes_do_not_wait_for_the_trainer(run: subprocess.Popen[bytes], run_dir: Path) -> None:
    """They end while its process is held, before it has loaded the model."""
    deadline = time.monotonic() + 120
    while not (found := [p for p in psutil.Process(run.pid).children() if "agentrl.trainer" in p.cmdline()]):
        assert time.monotonic() < deadline, "no trainer was started"
        time.sleep(0.02)
    found[0].suspend()
    try:
        while not open_run(run_dir).episodes(reason="finished", limit=1):
            assert time.monotonic() < deadline, "no episode ended"
            time.sleep(0.1)
    finally:
        found[0].resume()


def test_a_run_that_is_killed_goes_on_and_nothing_is_lost_or_trained_on_twice(tmp_path: Path) -> None:
    run_dir, tasks = tmp_path / "run", tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(task) + "\n" for task in distinct_tasks(24, seed=1)))
    settings = {
        "tasks": tasks,
        "run_dir": run_dir,
        "model.path": NANO,
        "rollout.batch_size": 8,
        "rollout.group_size": 4,
        "rollout.max_concurrent": 8,
        "rollout.max_tokens": 32,
        "rollout.max_staleness": 2,
        "rollout.window": 1,
        "trainer.checkpoint.every": 2,
        "tracking.trackers": "tensorboard",
    }
    words = [sys.executable, "-m", "agentrl", "train"]
    with long_run([*words, "workflows/calculator.py", *(f"--{k}={v}" for k, v in settings.items())], run_dir) as run:
        check_first_episodes_do_not_wait_for_the_trainer(run, run_dir)
        wait_for_step(run_dir, 3)
        wait_for_checkpoint(run_dir)
        run.kill()
        run.communicate(timeout=300)
    recorded = {one.id: one.reward for one in open_run(run_dir).episodes(reason="finished")}
    assert len(recorded) >= 3 * 8
    steps = read_metrics(run_dir)[-1]["step"] + 2

    again = [*words, f"--resume={run_dir}", f"--steps={steps}"]
    done = subprocess.run(again, cwd=ROOT, capture_output=True, text=True, env=environment(run_dir), timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    found = audit(run_dir)
    assert found.violations == []
    assert (found.trained, found.batches, found.last_checkpoint, found.restarts) == (2 * steps, steps, steps, 2)
    with Store(run_dir / "store.sqlite", read_only=True) as store:
        trained = [group for batch in store.read(batches) for group in batch.group_ids]
    assert len(trained) == len(set(trained)) == 2 * steps, "every step trained on two groups of its own"
    now = {one.id: one.reward for one in open_run(run_dir).episodes(reason="finished")}
    assert recorded.items() <= now.items()
    counts = [json.loads(line)["episodes_finished"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert counts == sorted(counts), "they count over all starts, also the episodes of steps that the crash undid"
    check_steps(run_dir, steps, bound=2)
    assert check_tensorboard(run_dir).Scalars("step")[-1].step == steps
    check_nothing_is_left_behind(run_dir)


def quickstart(run_dir: Path) -> list[list[str]]:
    """The commands of `make quickstart`, in another run directory."""
    words = ["make", "--dry-run", "--old-file=.venv/installed", f"BIN={Path(sys.executable).parent}", "quickstart"]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    try:
        shown = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=100, check=True, env=env).stdout
    except FileNotFoundError:
        missing("make is not installed")
    config = run_dir.with_suffix(".toml")
    config.write_text((ROOT / "workflows/quickstart.toml").read_text().replace("runs/quickstart", str(run_dir)))
    places = {"runs/quickstart": str(run_dir), "workflows/quickstart.toml": str(config)}
    commands = [shlex.split(line) for line in shown.replace("\\\n", " ").splitlines()]
    assert [Path(command[0]).name for command in commands] == ["rm", "python", "agentrl", "echo"]
    assert commands.pop()[-1].endswith("agentrl view runs/quickstart")
    for old, new in places.items():
        commands = [[word.replace(old, new) for word in command] for command in commands]
    return commands


def check_metrics_page(rows: list[dict[str, Any]]) -> None:
    """The page has every name that a line has, and the lines have every name that they all should have."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    always, sometimes = (
        re.findall(r"`(\w+)`(?=[^|]*\|[^|]*\|$)", page.partition(f"## {title}")[2].partition("\n## ")[0], re.M)
        for title in ("In every line", "In some lines")
    )
    known = re.compile("|".join([*always, *(re.sub(r"[A-Z]+", r"\\w+", name) for name in sometimes)]))
    written = {name for row in rows for name in row}
    assert {name for name in written if not known.fullmatch(name)} == set()
    assert set(always) <= written


def test_the_quickstart_trains(tmp_path: Path) -> None:
    """Ten of its steps, with smaller batches, and a part of its evaluations."""
    run_dir = tmp_path / "run"
    *before, train = quickstart(run_dir)
    fewer = ["--steps", "10", "--rollout.batch-size", "16", "--eval.limit", "16", "--rollout.episode-timeout-s", "600"]
    fewer += ["--tracking.trackers", "tensorboard", "--eval.every", "5", "--eval.stop-at", "2"]
    for command in (*before, [*train, *fewer]):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment(run_dir), timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    summary = check_steps(run_dir, 10, bound=3)
    assert summary["attempts_failed"] == 0
    assert summary["episodes_finished"] >= 10 * 16
    assert 0 <= summary["eval_before"] <= 1
    assert 0 <= summary["eval_after"] <= 1
    check_metrics_page(read_metrics(run_dir))
    assert sum(row["trained_tokens"] for row in read_metrics(run_dir)) > 0
    shown = check_tensorboard(run_dir)
    numbers = sum(type(value) in (int, float) for row in read_metrics(run_dir) for value in row.values())
    curves = {tag: shown.Scalars(tag) for tag in shown.Tags()["scalars"]}
    assert sum(len(curve) for tag, curve in curves.items() if not tag.startswith("eval_")) == numbers
    evaluated = [(event.step, event.value) for event in curves["eval_mean_reward"]]
    assert [step for step, _ in evaluated] == [0, 5, 10]
    assert [evaluated[0][1], evaluated[-1][1]] == pytest.approx([summary["eval_before"], summary["eval_after"]])
    assert [event.step for event in shown.Tensors("samples/0")] == [10]
    found = audit(run_dir)
    assert (found.violations, found.trained, found.last_checkpoint) == ([], 10 * 2, 10)
    check_nothing_is_left_behind(run_dir)
