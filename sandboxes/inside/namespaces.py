"""A world of its own for each user of a sandbox: new namespaces, new mounts, a user id that nobody has had, and no rights at all."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from agentrl.sandboxes.inside.processes import PR_SET_NO_NEW_PRIVS, libc

NEW_MOUNTS, NEW_CGROUP, NEW_UTS, NEW_IPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
NEW_PIDS, NEW_NETWORK = 0x20000000, 0x40000000
READ_ONLY, NO_SUID, NO_DEVICES, NO_EXEC, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
PR_CAPBSET_DROP, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 24, 47, 4
LAST_CAPABILITY = 63
SIOCSIFFLAGS, IFF_UP, AF_INET, SOCK_DGRAM = 0x8914, 1, 2, 2
CAPABILITIES_VERSION_3 = 0x20080522
FIRST_UID, LAST_UID = 1_000_000_000, 2_000_000_000
"""Where the user ids come from when all can be had: nobody's on the machine."""
HIDDEN = ("acpi", "asound", "kcore", "keys", "latency_stats", "timer_list", "timer_stats", "sched_debug", "scsi")
"""What in /proc is the machine's and not the sandbox's. `sys` and its like are only kept from being written."""
KEPT_FROM_WRITING = ("bus", "fs", "irq", "sys", "sysrq-trigger")


def process_ids_of_this_process() -> int:
    """Return a descriptor of the namespace of process ids that this process is in."""
    return os.open("/proc/self/ns/pid", os.O_RDONLY)


def new_process_ids(own: int) -> None:
    """Make a new namespace of process ids for the next child, which becomes process 1 there. `own` is this process's."""
    # The last child's has ended, and no namespace can be made below it.
    check(libc.setns(own, NEW_PIDS), "the sandbox may not return to its own namespace of process ids")
    check(libc.unshare(NEW_PIDS), "the sandbox may make no namespace of process ids")


def settle(config: dict[str, Any]) -> None:
    """Become what process 1 has to be: leave the other namespaces for new ones, mount what a user may write to, and give up every right."""
    flags = NEW_MOUNTS | NEW_CGROUP | NEW_UTS | NEW_IPC | (0 if config["network"] else NEW_NETWORK)
    check(libc.unshare(flags), "the sandbox may make no namespaces")
    mount(None, "/", None, RECURSIVE | PRIVATE)
    mount_proc()
    for folder in config["folders"]:
        options = f"mode=1777,size={config['size']},nr_inodes={config['files']}"
        mount("tmpfs", folder, "tmpfs", NO_SUID | NO_DEVICES, options)
    if os.path.isdir("/dev/mqueue"):
        mount("mqueue", "/dev/mqueue", "mqueue", NO_SUID | NO_DEVICES | NO_EXEC)
    if not config["network"]:
        start_loopback()
    give_up_rights(a_user_id())


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Mount a file system."""
    words = [None if word is None else word.encode() for word in (source, target, kind)]
    check(libc.mount(*words, ctypes.c_ulong(flags), options.encode()), f"cannot mount {target}")


def mount_proc() -> None:
    """Mount /proc, without what is the machine's."""
    mount("proc", "/proc", "proc", NO_SUID | NO_DEVICES | NO_EXEC)
    for name in KEPT_FROM_WRITING:
        if os.path.exists(path := f"/proc/{name}"):
            mount(path, path, None, BIND | RECURSIVE)
            mount(None, path, None, BIND | REMOUNT | READ_ONLY | NO_SUID | NO_DEVICES | NO_EXEC)
    for name in HIDDEN:
        if os.path.isdir(path := f"/proc/{name}"):
            mount("tmpfs", path, "tmpfs", READ_ONLY | NO_SUID | NO_DEVICES | NO_EXEC, "nr_inodes=2")
        elif os.path.exists(path):
            mount("/dev/null", path, None, BIND)


def start_loopback() -> None:
    """Programs may talk to themselves over 127.0.0.1."""
    request = b"lo".ljust(16, b"\0") + IFF_UP.to_bytes(2, "little").ljust(24, b"\0")
    fd = check(libc.socket(AF_INET, SOCK_DGRAM, 0), "cannot make a socket")
    check(libc.ioctl(fd, ctypes.c_ulong(SIOCSIFFLAGS), request), "cannot start the loopback device")
    os.close(fd)


def a_user_id() -> int | None:
    """Return a user id at random, so that what the kernel counts by user is counted anew; None where only our own can be had."""
    with open("/proc/self/uid_map") as file:
        start, count = max(
            ((int(line.split()[0]), int(line.split()[2])) for line in file), key=lambda range_: range_[1]
        )
    end = min(start + count, LAST_UID)
    first = FIRST_UID if end == LAST_UID else start + count // 8
    if end - first < 1000:
        return None
    return first + int.from_bytes(os.urandom(8), "little") % (end - first)


def give_up_rights(uid: int | None) -> None:
    """No capability is left after this, and none can be had, of whatever user this process becomes."""
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    for capability in range(LAST_CAPABILITY + 1):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break  # the kernel knows no more, or this process has no right to drop any
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION_3, 0)
    check(libc.capset(header, (ctypes.c_uint32 * 6)()), "cannot give up its rights")
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "cannot give up gaining rights")


def check(result: int, what: str) -> int:
    """Return the result of a system call.

    Raises:
        OSError: It failed.
    """
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result
