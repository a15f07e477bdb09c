"""Control groups of version 2 for sandboxes whose backend makes none: memory of every kind and processes, bounded by the kernel.

A group is a folder, made below one that hands on both controllers and that we may write to: as root, or where systemd delegates one.
"""

from __future__ import annotations

import os
import secrets
import time
from contextlib import suppress
from pathlib import Path

from agentrl.errors import SandboxError
from agentrl.sandboxes.backends.leftovers import is_dead, owner
from agentrl.sandboxes.seams import MB, Limits

OWN_MEMORY_MB = 64
"""For our own process, and what it holds for programs."""
OWN_PROCESSES = 1
REMOVE_TIMEOUT_S = 5.0
"""How long the processes of a group that was killed may take to be gone."""
PREFIX = "agentrl."
TOP = Path("/sys/fs/cgroup")


def memory_of_a_sandbox(limits: Limits) -> int:
    """Return the bytes that everything in a sandbox may take together: programs, one full folder of files, and our own process."""
    return (limits.memory_mb + limits.disk_mb + OWN_MEMORY_MB) * MB


def parent_group() -> Path | None:
    """Return the nearest group above this process's that hands on both controllers, and that we may make groups in."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line.removeprefix("0::").lstrip("/") for line in lines if line.startswith("0::")), None)
    if own is None:
        return None
    for folder in (TOP / own, *(TOP / own).parents):
        with suppress(OSError):
            handed_on = {*(folder / "cgroup.subtree_control").read_text().split()}
            if {"memory", "pids"} <= handed_on and all(
                os.access(one, os.W_OK) for one in (folder, folder / "cgroup.procs")
            ):
                return folder
    return None


def make_group(parent: Path, limits: Limits) -> Path:
    """Return a new group that holds a sandbox to its limits.

    Raises:
        SandboxError: The kernel refuses it.
    """
    group = parent / f"{PREFIX}{owner()}.{secrets.token_hex(6)}"
    try:
        group.mkdir()
        (group / "memory.max").write_text(str(memory_of_a_sandbox(limits)))
        (group / "pids.max").write_text(str(limits.processes + OWN_PROCESSES))
        if (swap := group / "memory.swap.max").exists():
            swap.write_text("0")
    except OSError as error:
        remove_group(group)
        raise SandboxError(f"the control group of a sandbox cannot be made: {error}") from error
    return group


def remove_group(group: Path) -> None:
    """Kill the processes of a group and remove it. One that stays is left to `remove_orphaned_groups`."""
    deadline = time.monotonic() + REMOVE_TIMEOUT_S
    while group.exists() and time.monotonic() < deadline:
        if (kill := group / "cgroup.kill").exists():
            kill.write_text("1")
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.005)


def remove_orphaned_groups(parent: Path) -> None:
    """Remove the groups of agentrl processes that are no longer there."""
    for group in parent.glob(f"{PREFIX}*:*:*:*.*"):
        if is_dead(group.name.removeprefix(PREFIX).rpartition(".")[0]):
            remove_group(group)
