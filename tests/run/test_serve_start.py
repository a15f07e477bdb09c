"""How `agentrl serve` starts, that a signal ends it also then, and what it says where its end cannot keep a session."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import httpx2
import pytest

from agentrl.config import load_config
from agentrl.errors import StoreError
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
        command += ["--out", str(tmp_path / "kept"), "--engine.urls", urls]
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
    assert (process.returncode, said, complained) == (0, "", "")
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


@pytest.mark.anyio
async def test_a_service_that_cannot_keep_its_sessions_at_its_end_says_so(server_url: str, tmp_path: Path) -> None:
    config = load_config([], {"model.path": json.dumps(str(NANO)), "engine.urls": json.dumps([server_url])})
    kept = tmp_path / "kept"

    async def end(url: str) -> None:
        headers = {"Authorization": "Bearer admin"}
        async with httpx2.AsyncClient(headers=headers, trust_env=False) as http:
            assert (await http.post(f"{url}/sessions")).status_code == 200
        await anyio.Path(kept).rename(tmp_path / "moved")
        scope.cancel()

    async with anyio.create_task_group() as group:
        with pytest.raises(StoreError, match="was taken away"), anyio.CancelScope() as scope:
            await serve(config, "admin", lambda _, url: group.start_soon(end, url), kept)
