"""A whole run, as a user starts it: every process real, on the nano model."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from safetensors.torch import load_file

from agentrl.config import RunConfig, TrainerConfig
from agentrl.envs.calculator_env import distinct_tasks
from agentrl.models import NANO
from agentrl.run.audit import audit
from agentrl.run.open_run import open_run
from agentrl.run.replay import replay
from agentrl.run.training_loop import COUNTERS
from agentrl.store.batches import batches
from agentrl.store.episodes import count_totals, resumed_groups
from agentrl.store.store import Store
from agentrl.system.locks import OWNER, PREFIX, SHARED_MEMORY
from agentrl.trainer.sequences import training_sequences
from tests.components import missing
from tests.recorded_run import TrainerOfRun

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
SUMMARY = {
    "eval_before",
    "eval_after",
    "steps",
    "wall_s",
    "staleness_mean",
    "staleness_max",
    "tokens_total",
    "tokens_in_interrupted_replies",
    "logprob_mismatch_mean",
    "episodes_finished",
    "attempts_failed",
}


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    for name, seed in (("train", 1), ("eval", 999)):
        tasks = distinct_tasks(24, seed=seed)
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    settings = {
        "tasks": tmp_path / "train.jsonl",
        "eval.tasks": tmp_path / "eval.jsonl",
        "run_dir": tmp_path / "run",
        "model.path": NANO,
        "rollout.batch_size": 16,
        "rollout.group_size": 4,
        "rollout.max_concurrent": 4,
        "rollout.max_tokens": 64,
        "rollout.max_staleness": 3,
        "trainer.optimizer.lr": 1e-4,
        "trainer.checkpoint.every": 2,
    }
    options = [f"--{key}={value}" for key, value in settings.items()]
    return [sys.executable, "-m", "agentrl", "train", "workflows/calculator.py", *options]


def left_behind(run_dir: Path) -> list[str]:
    """Processes and shared memory of the run in `run_dir`: its children inherit the variable that names it."""
    marker = f"AGENTRL_TEST_RUN={run_dir}".encode()
    owners = SHARED_MEMORY.glob(f"{PREFIX}*/{OWNER}")
    found = [str(path.parent) for path in owners if path.read_text() == str(run_dir)]
    for entry in Path("/proc").iterdir():
        try:
            if marker in (entry / "environ").read_bytes().split(b"\0"):
                found.append((entry / "cmdline").read_bytes().decode().replace("\0", " "))
        except OSError:
            continue
    return found


def environment(run_dir: Path) -> dict[str, str]:
    return {**os.environ, "AGENTRL_TEST_RUN": str(run_dir)}


def ended(words: list[str], run_dir: Path, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    """A program that ran to its end, for the run in `run_dir`."""
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=environment(run_dir), timeout=timeout_s)


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for_step(run_dir: Path, step: int, timeout_s: float = 240) -> None:
    deadline = time.monotonic() + timeout_s
    while not any(row["step"] >= step for row in metrics(run_dir)):
        assert time.monotonic() < deadline, "the run did not get that far"
        time.sleep(0.1)


EVERY_OBJECTIVE: list[dict[str, Any]] = [
    {"objective": {"kind": "ppo", "dual_clip": 3.0}},
    {"advantage": "gae", "loss_aggregation": "sequence"},
    {"advantage": "turn_gae"},
    {"advantage": "dr_grpo", "loss_aggregation": {"kind": "constant", "length": 64}},
    {"advantage": "rloo"},
    {"advantage": "reinforce_pp", "kl": {"kind": "reward", "coef": 0.01}},
    {"advantage": "reinforce_pp_baseline", "objective": "reinforce"},
    {"turns": {"truncated": "mask"}, "overlong_tokens": 60},
    {"objective": {"kind": "gspo", "clip_low": 3e-4, "clip_high": 4e-4}, "loss_aggregation": "sequence"},
    {"objective": "cispo", "importance": {"kind": "mask", "min": 0.5}},
    {"objective": "sapo", "importance": "sequence_mask"},
    {"objective": "m2po", "importance": "none"},
    {
        "kl": {"kind": "loss", "coef": 0.01},
        "entropy_coef": 1e-3,
        "objective": {"proximal": "interpolate"},
        "importance": "geometric_mask",
    },
]


@pytest.mark.timeout(900)
def test_a_run_trains_evaluates_and_sums_up(command: list[str], tmp_path: Path) -> None:
    # Two episodes at a time keep the engine the slower side, so that updates find replies in flight.
    result = ended([*command, "--steps=4", "--rollout.max_concurrent=2"], tmp_path / "run")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "evaluation after training" in result.stdout
    assert "evaluation episode failed" not in result.stdout
    run_dir = tmp_path / "run"
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary.keys() >= SUMMARY
    assert summary["steps"] == 4
    assert summary["staleness_max"] <= summary["staleness_bound"] == 4
    assert summary["tokens_in_interrupted_replies"] > 0
    assert summary["logprob_mismatch_mean"] < 1e-4
    assert summary["logprob_mismatch_max"] < 1e-3
    assert summary["attempts_failed"] == 0
    rows = metrics(run_dir)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all(row["episodes"] == 16 for row in rows)
    with Store(run_dir / "store.sqlite") as store:
        assert store.kept_checkpoints()[-1] == (4, run_dir / "checkpoints/step-000004")
        consumed = store._db.execute("SELECT COUNT(*) FROM groups WHERE step IS NOT NULL").fetchone()[0]
        assert consumed == 16
        stored = store.episodes(list(range(8)))
        assert sum(len(s) for s in training_sequences(stored, TrainerConfig(advantage="rloo"))) > 0
    assert (run_dir / "checkpoints/step-000004/tokenizer.json").exists()
    assert left_behind(tmp_path / "run") == []
    written = [run_dir, *run_dir.rglob("*")]
    assert [path for path in written if path.stat().st_mode & 0o077] == [], "others can read what the run wrote"
    assert [path for path in written if path.is_file() and b"sk-agentrl-" in path.read_bytes()] == []

    proof = audit(run_dir)
    assert proof.violations == []
    assert (proof.trained, proof.batches, proof.last_checkpoint) == (16, 4, 4)
    logged = (run_dir / "engine.log").read_bytes()
    resumed = [*command[: command.index("train") + 1], f"--resume={run_dir}"]
    finished = subprocess.run(resumed, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert finished.stdout.startswith(f"nothing is left to train, no key changes: run {run_dir} ended with step 4 of 4")
    assert json.loads(finished.stdout[finished.stdout.index("{") :])["eval_after"] == pytest.approx(
        summary["eval_after"], 1e-5
    )
    assert (run_dir / "engine.log").read_bytes() == logged, "nothing was started for it"
    again_from_record = anyio.run(replay, run_dir, 7)
    assert again_from_record.same
    assert len(again_from_record.conversation) > 0

    config = RunConfig.model_validate_json((run_dir / "config.json").read_text())
    for number, settings in enumerate(EVERY_OBJECTIVE):
        trainer = TrainerConfig.model_validate({**config.trainer.model_dump(), **settings})
        changed = config.model_copy(update={"trainer": trainer})
        (run_dir / "config.json").write_text(changed.model_dump_json())
        assert_learns_from(run_dir, tmp_path / f"weights-{number}", settings)

    again = ended([*command, "--steps=4"], tmp_path / "run")
    assert again.returncode == 2
    assert "holds a run already; go on with --resume" in again.stderr


def assert_learns_from(run_dir: Path, weights: Path, settings: dict[str, Any]) -> None:
    """The trainer, on two groups of the run's own episodes a step and under other settings, takes two steps that say what they did, the second with what the first has changed."""
    process = TrainerOfRun(run_dir, weights)
    first = load_file(Path(process.load(None)["weights"]) / "model.safetensors")
    for step in range(2):
        reply = process.step_on([2 * step, 2 * step + 1])
        metrics = reply["metrics"]
        assert reply["version"] == step + 1
        assert all(math.isfinite(value) for value in metrics.values()), metrics
        assert metrics["skipped_optimizer_steps"] == 0
        assert metrics["grad_norm"] > 0
        assert 0 < metrics["entropy"] < 6
        assert metrics["computed_tokens"] < metrics["sequences"] * 400, "what episodes share is computed once"
        assert ("explained_variance" in metrics) == ("gae" in str(settings.get("advantage")))
        assert ("kl_reference" in metrics) == ("kl" in settings)
    last = load_file(Path(reply["weights"]) / "model.safetensors")
    assert all(bool(tensor.isfinite().all()) for tensor in last.values())
    assert any(not first[name].equal(last[name]) for name in first)


@contextmanager
def long_run(command: list[str], run_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A run of more steps than anyone waits for."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([*command, "--steps=200"], cwd=ROOT, stdout=pipe, stderr=pipe, env=environment(run_dir))
    try:
        yield process
    finally:
        process.kill()


@pytest.mark.timeout(900)
def test_an_interrupted_run_goes_on_where_it_was(command: list[str], tmp_path: Path) -> None:
    """Its trainer was killed before: that alone is not noticed but for a line."""
    run_dir = tmp_path / "run"
    # Many episodes at a time, and packs that share nothing, keep the trainer the slower side: finished groups wait for it.
    slow = [*command, "--rollout.max_concurrent=16", "--trainer.tokens_per_pack=1", "--trainer.minibatches=4"]
    with long_run(slow, tmp_path / "run") as process:
        wait_for_step(run_dir, 3)
        (trainer,) = [p for p in psutil.Process(process.pid).children() if "agentrl.trainer" in p.cmdline()]
        trainer.kill()
        wait_for_step(run_dir, 4)
        second = subprocess.run(
            [sys.executable, "-m", "agentrl", "train", "--resume", str(run_dir)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert second.returncode == 2
        assert f"is in use by process {process.pid}" in second.stderr
        wait_for_ready_groups(run_dir, 5)
        os.kill(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    assert b"agentrl train --resume" in output
    assert b"starting the trainer again; it goes through" in output
    assert open_run(run_dir).status == "stopped"
    assert left_behind(run_dir) == []
    with Store(run_dir / "store.sqlite") as store:
        checkpoint = store.kept_checkpoints()[-1]
    assert checkpoint[0] == metrics(run_dir)[-1]["step"], "Ctrl-C checkpoints the last step"
    assert_goes_on(run_dir, checkpoint[0])


@pytest.mark.timeout(900)
def test_ctrl_c_twice_in_the_middle_of_a_step_pollutes_no_checkpoint(command: list[str], tmp_path: Path) -> None:
    """The second one ends the run at once, in the middle of a step. The weights then are what the record says, bit for bit."""
    run_dir = tmp_path / "run"
    # Packs that share nothing, and optimizer steps in each, make steps long enough to be hit.
    slow = [*command, "--rollout.max_concurrent=16", "--trainer.tokens_per_pack=1", "--trainer.minibatches=4"]
    with long_run(slow, run_dir) as process:
        wait_for_step(run_dir, 3)
        time.sleep(0.5)
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.15)
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=300)
    assert process.returncode in (130, -signal.SIGINT)
    with Store(run_dir / "store.sqlite") as store:
        steps = len(store.read(batches))
    assert audit(run_dir).violations == []
    words = [sys.executable, "-m", "agentrl", "train", "--resume", str(run_dir), f"--steps={steps + 1}"]
    resumed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=environment(run_dir), timeout=300)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert left_behind(run_dir) == []
    assert audit(run_dir).violations == []


def wait_for_ready_groups(run_dir: Path, least: int, timeout_s: float = 240) -> None:
    """Wait until more groups wait for the trainer than a batch takes: then some are left whenever the run is interrupted."""
    deadline = time.monotonic() + timeout_s
    with Store(run_dir / "store.sqlite", read_only=True) as store:
        while sum(group.state == "ready" for group in store.read(resumed_groups)) < least:
            assert time.monotonic() < deadline, "the trainer is not the slower side"
            time.sleep(0.1)


def assert_goes_on(run_dir: Path, step: int) -> None:
    """Resumed, the run trains on what was ready before, and its store proves that nothing was lost."""
    words = [sys.executable, "-m", "agentrl", "train", "--resume", str(run_dir), "--seed=7"]
    refused = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert refused.returncode == 2
    assert "was started with other tasks" in refused.stderr
    before = audit(run_dir)
    assert before.violations == []
    with Store(run_dir / "store.sqlite") as store:
        unused = {group.id for group in store.read(resumed_groups) if group.state == "ready"}
    resumed = [sys.executable, "-m", "agentrl", "train", "--resume", str(run_dir), f"--steps={step + 2}"]
    result = subprocess.run(resumed, cwd=ROOT, capture_output=True, text=True, env=environment(run_dir), timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    run = open_run(run_dir)
    assert (run.status, run.step) == ("finished", step + 2)
    for name in COUNTERS:
        counts = [row.get(name, 0) for row in run.metrics]
        assert counts == sorted(counts), f"{name} counts over all starts"
    after = audit(run_dir)
    assert after.violations == []
    assert after.totals.finished >= before.totals.finished
    with Store(run_dir / "store.sqlite") as store:
        per_step = store._db.execute("SELECT step, COUNT(*) FROM groups WHERE step IS NOT NULL GROUP BY 1").fetchall()
        still_unused = {group.id for group in store.read(resumed_groups) if group.state == "ready"}
    assert per_step == [(number, 4) for number in range(1, step + 3)], "every step trained on its own four groups"
    assert unused - still_unused, "groups that were ready before the interruption were trained on after it"
    assert json.loads((run_dir / "summary.json").read_text())["steps"] == step + 2
    assert left_behind(run_dir) == []


@pytest.mark.timeout(900)
def test_a_full_disk_ends_the_run_and_with_room_it_goes_on(command: list[str], tmp_path: Path) -> None:
    """Room for the store, and not for a checkpoint."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(run_dir)], capture_output=True)
    if mounted.returncode:
        missing("a small disk can be made by root only (mount -t tmpfs)")
    try:
        result = ended([*command, "--steps=50"], run_dir)
        assert result.returncode == 1, result.stdout + result.stderr
        assert "cannot be written" in result.stderr, "the checkpoint, or the store, whichever came first"
        assert f"make room, or repair the disk, and go on with --resume {run_dir}" in result.stderr
        subprocess.run(["mount", "-o", "remount,size=200m", str(run_dir)], check=True)
        assert_goes_on(run_dir, 0)
    finally:
        subprocess.run(["umount", str(run_dir)], check=True)


@pytest.mark.timeout(900)
def test_a_run_that_is_killed_again_and_again_loses_nothing(tmp_path: Path) -> None:
    """Kills, power cuts, Ctrl-C, a full disk; unsound replies, steps out of memory, hostile workflows. The audit is in the program."""
    settings = {"disturbances": 4, "tasks": 16, "epochs": 2, "dataset": "stream", "fault-rate": 3, "seed": 3}
    words = [f"--{key}={value}" for key, value in settings.items()]
    program = [sys.executable, "benchmarks/crash_test.py", "--no-comparison"]
    done = ended([*program, *words], tmp_path / "run", timeout_s=850)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout[done.stdout.index("{") :])
    assert sum(report["disturbances"].values()) == 4
    assert report["faults"] > 5
    assert report["tasks"] == 32
    assert report["lost"] == 0


def test_a_run_that_is_ended_before_its_first_step_leaves_nothing_behind(command: list[str], tmp_path: Path) -> None:
    with long_run(command, tmp_path / "run") as process:
        deadline = time.monotonic() + 240
        while len(left_behind(tmp_path / "run")) < 4:  # the run, its engine, its trainer, its shared memory
            assert time.monotonic() < deadline, "engine and trainer did not start"
            time.sleep(0.05)
        process.terminate()
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    assert b"interrupted at step 0" in output
    assert left_behind(tmp_path / "run") == []


@pytest.mark.timeout(900)
def test_a_run_that_is_ended_while_its_trainer_loads_waits_for_neither_model_nor_step(
    command: list[str], tmp_path: Path
) -> None:
    """Its first batch is ready. The trainer is stopped until the end, as one whose model takes an hour."""
    with long_run([*command, "--rollout.max_concurrent=16", "--eval.tasks="], tmp_path / "run") as process:
        trainers: list[psutil.Process] = []
        while not trainers and process.poll() is None:
            trainers = [p for p in psutil.Process(process.pid).children() if "agentrl.trainer" in p.cmdline()]
        trainers[0].suspend()
        while not (tmp_path / "run" / "metrics.jsonl").exists() and process.poll() is None:
            time.sleep(0.05)
        wait_for_ready_groups(tmp_path / "run", 4)
        process.terminate()
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert b"interrupted at step 0" in output
    assert left_behind(tmp_path / "run") == []


def test_a_run_whose_episodes_all_fail_stops_and_shows_the_last_failure(command: list[str], tmp_path: Path) -> None:
    workflow = tmp_path / "broken.py"
    workflow.write_text("async def run(episode):\n    raise KeyError('no such thing')\n")
    broken = [str(workflow) if word == "workflows/calculator.py" else word for word in command]
    broken = [word for word in broken if not word.startswith("--eval.tasks")]
    result = ended([*broken, "--steps=2"], tmp_path / "run")
    assert result.returncode == 1
    assert "`rollout.max_failed_share` = 0.5" in result.stderr
    assert "KeyError: 'no such thing'" in result.stderr
    assert "ExceptionGroup" not in result.stderr
    assert result.stderr.count(" shows its traceback; ") == 1
    run = open_run(tmp_path / "run")
    assert (run.status, run.failure.partition(": ")[0]) == ("failed", "TooManyFailuresError")
    assert left_behind(tmp_path / "run") == []
    with Store(tmp_path / "run" / "store.sqlite") as store:
        assert store.read(count_totals).failed >= 20


EPOCH = """
import json, sys
import anyio
from agentrl.config import RunConfig
from agentrl.run.train import train
from agentrl.run.view import RunView

config = RunConfig.model_validate(json.loads(sys.argv[1]))

async def run(episode):
    messages = [{"role": "user", "content": f"{episode.task['n']} + 1 ="}]
    await episode.client.chat.completions.create(model=episode.model, messages=messages, max_tokens=3)
    return float(episode.seed % 3)

def tasks():
    for n in range(6):
        yield {"n": n}

if __name__ == "__main__":
    done = anyio.run(lambda: train(config, workflow=run, tasks=tasks, view=RunView(config)))
    print(json.dumps(done.summary))
"""


def test_one_epoch_from_python_trains_on_every_task_once(tmp_path: Path) -> None:
    """Six tasks in batches of four groups: a whole batch, and one of the two that are left. Two ranks train an adapter on them."""
    run_dir = tmp_path / "run"
    config = {
        "run_dir": str(run_dir),
        "steps": 50,
        "model": {"path": str(NANO)},
        "data": {"epochs": 1},
        "rollout": {"batch_size": 8, "group_size": 2, "drop_uniform_groups": False},
        "trainer": {
            "ranks": 2,
            "lora": {"rank": 4},
            "optimizer": {"lr": 1e-2, "warmup_steps": 0},
            "step_timeout_s": 240,
        },
    }
    (tmp_path / "epoch.py").write_text(EPOCH)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "epoch.py"), json.dumps(config)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(run_dir),
    )
    assert done.returncode == 0, done.stderr
    assert left_behind(run_dir) == []
    assert audit(run_dir).violations == []
    summary = json.loads(done.stdout)
    assert (summary["steps"], summary["episodes_finished"], summary["eval_after"]) == (2, 12, None)
    assert summary["logprob_mismatch_max"] < 1e-3
    with Store(run_dir / "store.sqlite") as store:
        visited = store._db.execute("SELECT task FROM groups ORDER BY task").fetchall()
        used = store._db.execute(
            "SELECT step, COUNT(*) FROM groups JOIN episodes ON group_id = groups.id GROUP BY 1"
        ).fetchall()
    assert [task for (task,) in visited] == list(range(6))
    assert used == [(1, 8), (2, 4)]
