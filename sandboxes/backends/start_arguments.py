"""The arguments that a sandbox is started with: its settings, the modules of `inside/`, for a Python without agentrl, and its variables."""

from __future__ import annotations

import base64
import importlib.resources
import json
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from agentrl.sandboxes.backends.syscall_filter import compile_filter
from agentrl.sandboxes.sandbox import WORK

PATH = "/usr/local/bin:/usr/bin:/bin"
"""Where an image has its programs."""
FOLDERS = (WORK, "/tmp", "/dev/shm")  # noqa: S108
"""The writable folders, which are in memory."""
EMPTIED = (*FOLDERS, "/dev/mqueue", "/var/tmp", "/run")  # noqa: S108
"""The folders that a reset empties where programs may write to them: a backend may make more than it is asked for."""


def init_arguments(*, uid: int | None = None, counted: bool = True, folders: Sequence[str] = EMPTIED) -> list[str]:
    """Return the arguments of `python3` that make it the first process of a sandbox.

    Args:
        uid: The user that it becomes, where it is started as root.
        counted: Whether there is a control group; without one, limits of each process bound its address space too.
        folders: Those that a reset empties, the user's own first.
    """
    seccomp = base64.b64encode(compile_filter()).decode()
    return _arguments({"work": folders[0], "folders": folders, "uid": uid, "counted": counted, "filter": seccomp})


def program_arguments(program: Mapping[str, Any]) -> list[str]:
    """Return the arguments of `python3` that make it run one program, as `Sandbox.run_python` asks for it."""
    return _arguments({"program": {name: program.get(name) for name in ("script", "code", "args")}})


def _arguments(config: dict[str, Any]) -> list[str]:
    sources = _sources()
    packed = base64.b64encode(zlib.compress(json.dumps(sources).encode())).decode()
    return ["-I", "-c", sources["agentrl.sandboxes.inside.modules"], json.dumps(config), packed]


def sandbox_environment(work: str, path: str) -> dict[str, str]:
    """Return the environment variables of programs in a sandbox.

    Args:
        work: The user's folder.
        path: Where programs are looked for.
    """
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    own = {"PATH": path, "HOME": work, "USER": "nobody", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    return own | one_thread


@cache
def _sources() -> dict[str, str]:
    """Return all modules of `inside/`, by dotted name."""
    files = importlib.resources.files("agentrl.sandboxes.inside").iterdir()
    names = {f"agentrl.sandboxes.inside.{file.name.removesuffix('.py')}": file for file in files}
    return {name: file.read_text() for name, file in names.items() if file.name.endswith(".py")}
