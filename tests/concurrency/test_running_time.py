"""Time in which the process does not run does not count."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from agentrl.concurrency.event_loop import run_loop
from agentrl.concurrency.running_time import ALLOWED_S, RunningTime

STOPPED_S = 8.0
PROGRAM = """
import sys
from pathlib import Path
import anyio
from agentrl.models import NANO
from agentrl.proxy import load_chat_format
from tests.rollout.hostile_run import call, play

async def workflow(episode):
    await call(episode)
    Path(sys.argv[1], "running").touch()
    await anyio.sleep(2)
    return 0.5

result = play(workflow, load_chat_format(str(NANO), "auto"), Path(sys.argv[1]), episode_timeout_s=7)
print(len(result.finished), len(result.failed), result.failed[:1])
"""


@pytest.mark.soak
@pytest.mark.timeout(120)
def test_episodes_of_a_run_that_was_stopped_go_on(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=root, env={**os.environ, "PYTHONPATH": "."}
    )
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "running").exists():
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(STOPPED_S)
        os.kill(process.pid, signal.SIGCONT)
        output, _ = process.communicate(timeout=50)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    assert (process.returncode, output) == (0, "6 0 []\n")


@pytest.mark.soak
def test_code_that_blocks_the_event_loop_uses_time_up() -> None:
    async def main() -> float:
        started = asyncio.get_running_loop().time()
        end = time.monotonic() + ALLOWED_S + 0.5
        while time.monotonic() < end:
            pass
        return asyncio.get_running_loop().time() - started

    assert run_loop(main) >= ALLOWED_S + 0.4


def test_all_time_counts_without_its_thread() -> None:
    clock = RunningTime()
    clock.stop()
    clock._thread.join(60)
    before, (seen, left_out) = clock.now(), clock._seen
    clock._seen = seen - 100, left_out
    assert 0 <= clock.now() - before < 50
