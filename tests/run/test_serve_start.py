"""How `agentrl serve` starts, and that a signal ends it also then."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from agentrl.config import load_config
from agentrl.models import NANO
from agentrl.run.serve import serve

SILENCE_S = 60
"""More than the engine is waited for in the test."""


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_a_signal_ends_it_while_it_starts_and_it_never_says_that_it_serves(
    number: signal.Signals, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(SILENCE_S)
        urls = json.dumps([f"http://127.0.0.1:{silent.getsockname()[1]}"])
        command = [sys.executable, "-m", "agentrl", "serve", "--model", str(NANO), "--admin-key", "k"]
        command += ["--out", str(tmp_path / "kept"), "--engine.urls", urls, "--engine.hang_timeout_s", str(SILENCE_S)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            asked, _ = silent.accept()
            assert process.stderr is not None
            begun = process.stderr.readline()  # the chat format is read beside it
            process.send_signal(number)
            said, complained = process.communicate(timeout=50)
        finally:
            process.kill()
            process.wait(40)
        asked.close()
    assert (process.returncode, said) == (130, "")
    assert complained.splitlines()[-1] == "agentrl: interrupted"
    assert begun == f"starting the engine; sessions are kept in {tmp_path / 'kept'}\n"


@pytest.mark.anyio
async def test_it_starts_without_blocking_its_event_loop(server_url: str, tmp_path: Path) -> None:
    """Where it did, the fixture that looks for blocking calls would raise."""
    config = load_config([], {"model.path": json.dumps(str(NANO)), "engine.urls": json.dumps([server_url])})
    served: list[tuple[str, str]] = []
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:

            def announce(model: str, url: str) -> None:
                served.append((model, url))
                group.cancel_scope.cancel()

            group.start_soon(serve, config, "admin", announce, tmp_path / "kept")
    assert [model for model, _ in served] == ["nano"]
