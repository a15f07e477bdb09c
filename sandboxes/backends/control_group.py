"""Control groups for sandboxes whose backend makes none: memory of every kind, processes and CPU time, counted by the kernel.

Version 1 has a hierarchy for each controller, version 2 one for all. Either way a group is a folder, made below one that we may
write to: as root, or where systemd delegates one to its user.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agentrl.errors import SandboxError
from agentrl.sandboxes.backends.owner import is_dead, owner
from agentrl.sandboxes.seams import MB, Limits

OWN_MEMORY_MB = 64
"""For our own processes. A control group also holds the writable folders."""
OWN_PROCESSES = 2
"""The pristine process, and the first process of a user."""
REMOVE_TIMEOUT_S = 5.0
"""How long the processes of a group that was killed may take to be gone."""
PREFIX = "agentrl."
VERSION_1 = ("memory", "pids", "cpuacct")
PLACE = Path("/sys/fs/cgroup")
"""Where a sandbox sees its own."""


@dataclass(frozen=True)
class ControlGroup:
    """The folders of one group, by controller; version 2 has one, under the name ""."""

    folders: dict[str, Path]

    def entering(self, command: list[str]) -> list[str]:
        """`command`, run in this group from its first instruction on."""
        enter = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit 1; shift; done; shift; exec "$@"'
        files = [str(folder / "cgroup.procs") for folder in self.folders.values()]
        return ["/bin/sh", "-c", enter, "sh", *files, "--", *command]

    def shown(self) -> Iterator[tuple[Path, Path]]:
        """Return the folders that tell what a sandbox has used, each with where its programs find it: as in a container."""
        for controller, folder in self.folders.items():
            if controller != "pids":
                yield folder, PLACE / controller


def memory_of_a_sandbox(limits: Limits) -> int:
    """Bytes that everything in a sandbox may take together: programs, the writable folders, and our own processes."""
    return (limits.memory_mb + 3 * limits.disk_mb + OWN_MEMORY_MB) * MB


def parent_groups() -> dict[str, Path] | None:
    """Return where this process may make groups that bound memory and processes and count CPU time; None where it may not."""
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    mounts = dict(_mounts())
    if all(name in own and name in mounts for name in VERSION_1):
        folders = {name: _below(mounts[name], own[name]) for name in VERSION_1}
        return folders if all(os.access(folder, os.W_OK) for folder in folders.values()) else None
    if "" in own and "" in mounts:
        return _delegated(mounts[""][0], _below(mounts[""], own[""]))
    return None


def _mounts() -> Iterator[tuple[str, tuple[Path, str]]]:
    """Return each controller, "" for version 2, with where it is mounted and which of its groups is the root there."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, kind = line.partition(" - ")
        root, where = mount.split()[3:5]
        name, _, options = kind.split()
        if name == "cgroup":
            for controller in set(options.split(",")) & set(VERSION_1):
                yield controller, (Path(where), root)
        elif name == "cgroup2":
            yield "", (Path(where), root)


def _below(mount: tuple[Path, str], path: str) -> Path:
    where, root = mount
    return where / os.path.relpath(path, root) if path.startswith(root) else where


def _delegated(top: Path, own: Path) -> dict[str, Path] | None:
    """Return the nearest group of version 2 above our own that hands on both controllers, and that we may make groups in."""
    for folder in (own, *own.parents):
        try:
            handed_on = set((folder / "cgroup.subtree_control").read_text().split())
        except OSError:
            return None
        if (
            {"memory", "pids"} <= handed_on
            and os.access(folder, os.W_OK)
            and os.access(folder / "cgroup.procs", os.W_OK)
        ):
            return {"": folder}
        if folder == top:
            return None
    return None


def make_group(parents: dict[str, Path], limits: Limits) -> ControlGroup:
    """Return a new group that holds a sandbox to its limits.

    Raises:
        SandboxError: The kernel refuses it.
    """
    name = f"{PREFIX}{owner()}.{uuid.uuid4().hex[:12]}"
    group = ControlGroup({controller: folder / name for controller, folder in parents.items()})
    memory, processes = memory_of_a_sandbox(limits), limits.processes + OWN_PROCESSES
    try:
        for folder in group.folders.values():
            folder.mkdir()
        if "" in group.folders:
            _set(group.folders[""], {"memory.max": memory, "memory.swap.max": 0, "pids.max": processes})
        else:
            sizes = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.kmem.tcp.limit_in_bytes")
            _set(group.folders["memory"], dict.fromkeys(sizes, memory))
            _set(group.folders["pids"], {"pids.max": processes})
    except OSError as error:
        remove_group(group)
        raise SandboxError(f"the control group of a sandbox cannot be made: {error}") from error
    return group


def _set(folder: Path, values: dict[str, int]) -> None:
    for name, value in values.items():
        if (folder / name).exists():  # a kernel without swap has no files for it
            (folder / name).write_text(str(value))


def remove_group(group: ControlGroup) -> None:
    """Remove a group and end what is still in it: a bubblewrap that was killed while it started leaves a child that waits for it.

    What cannot be removed now is left to `remove_orphaned_groups`.
    """
    deadline = time.monotonic() + REMOVE_TIMEOUT_S
    for folder in group.folders.values():
        while folder.exists():
            try:
                folder.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    return
                _kill_all(folder)
                time.sleep(0.005)


def _kill_all(folder: Path) -> None:
    with suppress(OSError):
        for pid in (folder / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def remove_orphaned_groups(parents: dict[str, Path]) -> None:
    """Remove the groups of agentrl processes that are no longer there."""
    for parent in parents.values():
        for folder in parent.glob(f"{PREFIX}*:*:*:*.*"):
            if is_dead(folder.name.removeprefix(PREFIX).rpartition(".")[0]):
                _kill_all(folder)
                with suppress(OSError):  # its last process may be ending
                    folder.rmdir()
