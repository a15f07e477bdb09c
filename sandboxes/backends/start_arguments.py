"""What a sandbox is started with: its settings, the modules of `inside/`, for a Python that need not have agentrl, and its variables."""

from __future__ import annotations

import base64
import importlib.resources
import json
import marshal
import zlib
from functools import cache

from agentrl.sandboxes.backends.syscall_filter import compile_filter
from agentrl.sandboxes.inside.modules import marshalled
from agentrl.sandboxes.seams import MB, WORK, SandboxSpec

PATH = "/usr/local/bin:/usr/bin:/bin"
"""Where an image has its programs."""
FOLDERS = ("/tmp", "/dev/shm")  # noqa: S108
"""Folders of memory besides the user's own."""
SCRATCH = (*FOLDERS, "/dev/mqueue")
"""All writable folders besides the user's own."""
FILES = 16_384
"""Files in a folder of memory."""
GREETING_TIMEOUT_S = 300.0
"""A sandbox to which nobody says a word for so long after its start ends."""
PRISTINE_RIGHTS = ("CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")
"""What the pristine process needs to make new namespaces and mounts; a first process gives it up before it serves."""
LONGEST_ARGUMENT = 100_000
"""Linux takes 128 KB."""


def init_arguments(
    spec: SandboxSpec,
    *,
    own_python: bool,
    work: str = WORK,
    isolated: bool = True,
    counted: bool = True,
    scratch: bool = True,
) -> list[str]:
    """Return the arguments of `python3` that make it the pristine process of a sandbox.

    Args:
        spec: The sandbox.
        own_python: Whether it is the Python of this process.
        work: The user's folder.
        isolated: Whether it has namespaces.
        counted: Whether there is a control group; without one, what it alone can count is refused.
        scratch: Whether the other writable folders are the sandbox's own, so that a reset may empty them.
    """
    size = spec.limits.disk_mb * MB
    namespaces = {"folders": [work, *FOLDERS], "network": spec.network, "size": size, "files": FILES}
    config = {
        "work": work,
        "scratch": SCRATCH if scratch else (),
        "namespaces": namespaces if isolated else None,
        "counted": counted,
        "greeting_ms": 1000 * GREETING_TIMEOUT_S,
        "filter": base64.b64encode(compile_filter(counted=counted)).decode(),
    }
    packed = packed_modules(own_python)
    parts = [packed[start : start + LONGEST_ARGUMENT] for start in range(0, len(packed), LONGEST_ARGUMENT)]
    return ["-I", "-c", _sources()["agentrl.sandboxes.inside.modules"], json.dumps(config), *parts]


def sandbox_environment(work: str, path: str) -> dict[str, str]:
    """Return the environment variables of programs in a sandbox.

    Args:
        work: The user's folder.
        path: Where programs are looked for.
    """
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {
        "PATH": path,
        "HOME": work,
        "USER": "nobody",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        **one_thread,
    }


@cache
def packed_modules(own_python: bool) -> str:
    """Return all modules of `inside/`, as `inside.modules.unpack` reads them."""
    if own_python:
        form, data = "compiled", marshal.dumps(marshalled(_sources()))
    else:
        form, data = "sources", json.dumps(_sources()).encode()
    return f"{form}:{base64.b64encode(zlib.compress(data)).decode()}"


@cache
def _sources() -> dict[str, str]:
    files = importlib.resources.files("agentrl.sandboxes.inside").iterdir()
    names = {f"agentrl.sandboxes.inside.{file.name.removesuffix('.py')}": file for file in files}
    return {name: file.read_text() for name, file in names.items() if file.name.endswith(".py")}
