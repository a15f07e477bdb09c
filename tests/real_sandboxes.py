"""Real sandboxes: a backend that works here, or the reason why it is not."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrl.errors import SandboxError
from agentrl.sandboxes import BackendName, Sandbox, SandboxSpec
from agentrl.sandboxes.backends import bubblewrap
from agentrl.sandboxes.choose import choose_backend
from tests.components import missing

REMEDY = {
    "docker": "start a Docker engine with the image agentrl/sandbox (scripts/start_sandboxes.sh)",
    "bubblewrap": "install bubblewrap (scripts/start_sandboxes.sh)",
}


def working_backend(name: BackendName) -> BackendName:
    """`name`, if it works here."""
    try:
        # In a thread of its own: a fixture that is open may have an event loop in this one.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(anyio.run, choose_backend, name, SandboxSpec()).result()
    except SandboxError as error:
        missing(f"{error}: {REMEDY[name]}")
    return name


def as_an_ordinary_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have bubblewrap started by an ordinary user for the length of a test."""
    if os.geteuid() != 0:
        return
    real = bubblewrap.process_link

    def as_nobody(command: list[str], env: dict[str, str]) -> Any:
        return real(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command], env)

    monkeypatch.setattr(bubblewrap.os, "geteuid", lambda: 65534)  # type: ignore[attr-defined]
    monkeypatch.setattr(bubblewrap, "process_link", as_nobody)
    # An ordinary user cannot read the interpreter of a root's home: the machine's own will do.
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    monkeypatch.setattr(sys, "prefix", "/usr")
    monkeypatch.setattr(sys, "base_prefix", "/usr")


def kill_first_process(sandbox: Sandbox) -> None:
    """Take a bubblewrap sandbox down."""
    monitor = sandbox._link.process.pid  # type: ignore[attr-defined]
    (first,) = Path(f"/proc/{monitor}/task/{monitor}/children").read_text().split()
    os.kill(int(first), signal.SIGKILL)
