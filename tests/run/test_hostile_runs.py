"""`agentrl train` on workflows that ignore their cancellation, block the event loop and raise KeyboardInterrupt."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.envs.calculator_env import distinct_tasks
from agentrl.models import NANO
from agentrl.run.audit import audit
from agentrl.store.store import Store
from tests.run.test_train import left_behind, long_run, metrics, wait_for_step

pytestmark = pytest.mark.soak

WORKFLOW = """
import asyncio
import random
import sys
import threading
import time

from agentrl import Episode


async def play(episode: Episode) -> float:
    env = episode.env("agentrl/Calculator-v0")
    await env.reset(seed=episode.seed, options=episode.task)
    while not env.done:
        reply = await episode.client.chat.completions.create(
            model=episode.model, messages=env.messages, tools=env.tools
        )
        await env.step(reply.choices[0].message)
    return env.total_reward


async def swallow() -> None:
    while True:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            pass


async def run(episode: Episode) -> float:
    reward = await play(episode)
    match MODE, episode.seed % 8:
        case "block", 0:
            open(BLOCKED, "w").close()
            while True:
                time.sleep(0.01)
        case "hostile", 0:
            raise KeyboardInterrupt
        case "hostile", 1:
            sys.exit(3)
        case "hostile", 3:
            threading.Thread(target=time.sleep, args=(3600,)).start()
            await swallow()
    return reward + episode.seed % 3
"""


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., list[str]]:
    tasks = distinct_tasks(24, seed=1)
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    settings = {
        "tasks": tmp_path / "train.jsonl",
        "run_dir": tmp_path / "run",
        "model.path": NANO,
        "rollout.batch_size": 16,
        "rollout.group_size": 4,
        "rollout.max_concurrent": 16,
        "rollout.max_tokens": 16,
        "rollout.retries": 0,
        "rollout.max_failed_share": 1,
        "rollout.episode_timeout_s": 5,
        "trainer.checkpoint.every": 2,
    }

    def of(mode: str, **more: object) -> list[str]:
        workflow = tmp_path / "workflow.py"
        workflow.write_text(f"MODE, BLOCKED = {mode!r}, {str(tmp_path / 'blocked')!r}\n{WORKFLOW}")
        options = [f"--{key}={value}" for key, value in {**settings, **more}.items()]
        return [sys.executable, "-m", "agentrl", "train", str(workflow), *options]

    return of


@pytest.mark.timeout(180)
def test_a_run_of_hostile_workflows_goes_on_and_ends_in_order_with_the_first_signal(
    command: Callable[..., list[str]], tmp_path: Path
) -> None:
    """They raise KeyboardInterrupt and SystemExit, and they and their threads do not end."""
    run_dir = tmp_path / "run"
    with long_run(command("hostile"), run_dir) as process:
        wait_for_step(run_dir, 2)
        started = time.perf_counter()
        os.kill(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert time.perf_counter() - started < 30
    assert process.returncode == 130, errors
    assert b"agentrl train --resume" in output
    assert f"hung: {tmp_path / 'workflow.py'}:".encode() in errors
    assert b"in swallow ignores its cancellation" in errors
    with Store(run_dir / "store.sqlite") as store:
        checkpoint = store.kept_checkpoints()[-1]
        rows = store._db.execute("SELECT seed, error FROM episodes WHERE reason != 'finished'").fetchall()
    ended = {0: "KeyboardInterrupt", 1: "SystemExit"}
    assert all(ended[seed % 8] in error for seed, error in rows if "EpisodeTimeoutError" not in error)
    last = metrics(run_dir)[-1]
    assert checkpoint[0] == last["step"], "the last step is in a checkpoint"
    assert (
        last["episodes_failed"]
        >= last.get("reason_hung", 0) + last.get("reason_timeout", 0) + last.get("reason_exit", 0)
        >= 1
    )
    assert last["loop_lag_max_s"] >= 0
    assert audit(run_dir).violations == []
    assert left_behind(run_dir) == []


@pytest.mark.timeout(180)
def test_the_second_signal_ends_a_run_at_once_whose_event_loop_is_blocked(
    command: Callable[..., list[str]], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    with long_run(command("block"), run_dir) as process:
        deadline = time.monotonic() + 90
        while not (tmp_path / "blocked").exists():
            assert time.monotonic() < deadline, "nothing blocked"
            time.sleep(0.05)
        time.sleep(2)
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.3)
        assert process.poll() is None, "the first signal waits for the event loop"
        os.kill(process.pid, signal.SIGINT)
        process.wait(timeout=20)
        _, errors = process.communicate(timeout=50)
    assert process.returncode == -signal.SIGINT
    assert f"{tmp_path / 'workflow.py'}:".encode() in errors
    assert b"in run blocks the event loop" in errors
    assert audit(run_dir).violations == [], "what was committed is safe"
