"""Sandboxes made by bubblewrap: kernel namespaces around a process of ours, without a daemon and without an image.

A sandbox sees this machine's /usr, read-only, and this Python with its packages, and nothing else of the file system.
Resource limits bound the memory of each process, and the number of all of them.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from agentrl.errors import SandboxError
from agentrl.sandboxes.backends.process_link import process_link
from agentrl.sandboxes.backends.start_arguments import FOLDERS, PATH, init_arguments, sandbox_environment
from agentrl.sandboxes.linked_sandbox import LinkedSandbox
from agentrl.sandboxes.sandbox import DEFAULT_IMAGE, MB, WORK, Sandbox, SandboxSpec
from agentrl.system.tasks import in_thread

VENV = "/venv"
"""Where a sandbox sees the virtual environment that agentrl runs in."""
FIRST_UID, USER_IDS = 1_000_000_000, 1_000_000_000
"""Users of sandboxes, each sandbox's one of its own, so that what the kernel counts by user is counted anew."""
START = 'ulimit -s unlimited 2>/dev/null; exec "$@"'
"""Starts a sandbox. Without a bound of the stack's own, that of all memory holds, and a thread gets 2 MB and not as much as the bound."""
_SANDBOXES_ON: Counter[int] = Counter()
"""How many sandboxes of this process are pinned to each core."""


class Bubblewrap:
    """The backend for machines without a Docker engine. Needs the `bwrap` program, and user namespaces unless run as root."""

    name = "bubblewrap"

    holes = "memory_mb bounds each process, and not all of them together; files of memory, socket buffers and empty files are not counted"
    """What a program can do here that it should not."""

    async def prepare(self, spec: SandboxSpec) -> None:
        """Look whether bubblewrap works here.

        Raises:
            SandboxError: bubblewrap is missing, may not make namespaces here, or cannot do what `spec` asks for.
        """
        if spec.image != DEFAULT_IMAGE:
            raise SandboxError(f"image = {spec.image!r} is an image of Docker; it needs backend = 'docker'")
        if await in_thread(shutil.which, "bwrap") is None:
            raise SandboxError(
                "bubblewrap is not installed: install the package `bubblewrap`, or start a Docker engine"
            )
        probe = [*_namespaces(), "--ro-bind", "/", "/", "--", "/bin/true"]
        done = await in_thread(lambda: subprocess.run(probe, capture_output=True, timeout=30))  # noqa: S603
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()
            raise SandboxError(
                f"bubblewrap may not make namespaces here ({said}); enable user namespaces, or use Docker"
            )

    @asynccontextmanager
    async def start(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """Yield a new sandbox."""
        core = min(os.sched_getaffinity(0), key=_SANDBOXES_ON.__getitem__)
        _SANDBOXES_ON[core] += 1
        try:
            command, env = await in_thread(_command, spec, core)
            async with (
                process_link(command, env) as link,
                LinkedSandbox(link, spec, env=env, nproc=spec.limits.processes).open() as sandbox,
            ):
                yield sandbox
        finally:
            _SANDBOXES_ON[core] -= 1


def _command(spec: SandboxSpec, core: int) -> tuple[list[str], dict[str, str]]:
    python = _python()
    env = sandbox_environment(WORK, f"{python.parent}:{PATH}")
    uid = FIRST_UID + secrets.randbelow(USER_IDS) if os.geteuid() == 0 else None
    command = [
        *("/bin/sh", "-c", START, "sh"),
        *(("taskset", "-c", str(core)) if shutil.which("taskset") else ()),
        *_namespaces(),
        *_file_system(spec),
        *("--chdir", WORK, "--"),
        str(python),
        *init_arguments(uid=uid, counted=False),
    ]
    return command, env


def _python() -> Path:
    """Return this interpreter's path in a sandbox. A virtual environment is shown elsewhere: its own place may be under /tmp."""
    if sys.prefix == sys.base_prefix:
        return Path(sys.executable)
    return Path(VENV) / Path(os.path.normpath(sys.executable)).relative_to(os.path.normpath(sys.prefix))


def _namespaces() -> list[str]:
    command = ["bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try", "--die-with-parent"]
    command += ["--new-session", "--as-pid-1", "--cap-drop", "ALL", "--unshare-net"]
    if os.geteuid() == 0:  # the first process becomes another user, and loses them
        return [*command, "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    return [*command, "--unshare-user", "--uid", "1000", "--gid", "1000"]


def _file_system(spec: SandboxSpec) -> Iterator[str]:
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    shown = ["/usr", "/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime", *map(str, Path("/etc").glob("java-*"))]
    if not sys.base_prefix.startswith("/usr"):
        shown.append(sys.base_prefix)
    for name in shown:
        yield from _folders_above(Path(name))
        yield from ("--ro-bind-try", name, name)
    if sys.prefix != sys.base_prefix:
        yield from ("--ro-bind", sys.prefix, VENV)
    yield from ("--proc", "/proc", "--dev", "/dev")
    yield from ("--remount-ro", "/dev")
    for name in FOLDERS:
        yield from ("--size", str(spec.limits.disk_mb * MB), "--perms", "1777", "--tmpfs", name)
    yield from ("--remount-ro", "/")


def _folders_above(path: Path) -> Iterator[str]:
    """Make the folders above a path, which bubblewrap would make with mode 0700, and root's, when root runs it."""
    for parent in reversed(path.parents[:-1]):
        yield from ("--perms", "0755", "--dir", str(parent))
