"""Real boxes: a backend that works here, or the reason why it is not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio

from agentrl.errors import SandboxError
from agentrl.sandboxes import BackendName, Box, BoxSpec, choose_backend
from tests.components import missing

REMEDY = {
    "docker": "start a Docker engine with the image agentrl/sandbox (scripts/start_sandboxes.sh)",
    "bubblewrap": "install bubblewrap (scripts/start_sandboxes.sh)",
}


def working_backend(name: BackendName) -> BackendName:
    """`name`, if it works here."""
    try:
        anyio.run(choose_backend, name, BoxSpec())
    except SandboxError as error:
        missing(f"{error}: {REMEDY[name]}")
    return name


def kill_first_process(box: Box) -> None:
    """Take a bubblewrap box down."""
    monitor = box._link.process.pid  # type: ignore[attr-defined]
    (first,) = Path(f"/proc/{monitor}/task/{monitor}/children").read_text().split()
    os.kill(int(first), signal.SIGKILL)
