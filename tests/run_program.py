"""A training run that is a program of its own, so that it can be killed at any moment and gone on with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from agentrl.run.run_directory import read_metrics


def start(directory: Path, program: str, config: str, *words: str) -> subprocess.Popen[str]:
    """Start a program, written to `directory`, with the run's configuration as JSON and further words as its arguments."""
    (directory / "program.py").write_text(program)
    command = [sys.executable, str(directory / "program.py"), config, *words]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


def ends_well(process: subprocess.Popen[str]) -> None:
    """Wait until it has ended without an error."""
    try:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    finally:
        _kill(process)


def kill_at_step(process: subprocess.Popen[str], run_dir: Path, step: int, within_s: float = 300) -> None:
    """Kill it as soon as its run has taken so many steps."""
    deadline = time.monotonic() + within_s
    try:
        while len(read_metrics(run_dir)) < step:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline, "the run did not get that far"
            time.sleep(0.05)
    finally:
        _kill(process)
        assert process.stderr is not None
        process.stderr.close()


def _kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    process.wait(30)
