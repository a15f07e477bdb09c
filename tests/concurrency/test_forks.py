"""What a workflow forks holds nothing of the run's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from agentrl.errors import StoreError
from agentrl.run import run_lock

RUN = """
import os, sys, time
from pathlib import Path
import anyio
from agentrl.concurrency.child_process import child_process
from agentrl.errors import EngineError
from agentrl.concurrency.forks import kept_from_forks
from agentrl.run.run_lock import lock_run

async def main():
    folder = Path(sys.argv[1])
    lock = lock_run(folder)
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    async with child_process("engine", command, log=folder / "engine.log", error=EngineError) as engine:
        with kept_from_forks(lock) if sys.argv[2] == "kept" else open(os.devnull):
            forked = os.fork()
            if forked == 0:
                time.sleep(60)
                os._exit(0)
            print(engine.pid, forked, flush=True)
            await anyio.sleep(60)

anyio.run(main)
"""


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def killed_run(folder: Path, lock: str, ends: ExitStack) -> tuple[int, int]:
    """Ids of the child and the forked process of a run that was killed."""
    run = subprocess.Popen([sys.executable, "-c", RUN, str(folder), lock], stdout=subprocess.PIPE, text=True)
    ends.callback(run.wait)
    ends.callback(run.kill)
    assert run.stdout is not None
    with run.stdout:
        child, forked = map(int, run.stdout.readline().split())
    ends.callback(psutil.Process(forked).kill)
    run.kill()
    run.wait()
    return child, forked


@pytest.mark.slow
def test_a_forked_process_keeps_neither_children_nor_the_lock(tmp_path: Path, ends: ExitStack) -> None:
    child, forked = killed_run(tmp_path, "kept", ends)
    if psutil.pid_exists(child):
        psutil.wait_procs([psutil.Process(child)], timeout=40)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
    assert psutil.pid_exists(forked)
    os.close(run_lock.lock_run(tmp_path))


def test_the_process_that_holds_a_lock_is_named(
    tmp_path: Path, ends: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, forked = killed_run(tmp_path, "shared", ends)
    monkeypatch.setattr(run_lock, "ORPHAN_TIMEOUT_S", 0.1)
    with pytest.raises(StoreError, match=rf"is in use by process {forked}, which the run of process \d+ started"):
        run_lock.lock_run(tmp_path)
