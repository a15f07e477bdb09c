"""The seccomp filter of every program in a sandbox, as compiled BPF (Linux, `Documentation/userspace-api/seccomp_filter`).

It refuses calls that a user without privileges may make and a program that is graded has no use for: those that change other processes (the
first process is of the same user), objects of the kernel that outlive their process (System V and POSIX queues, keys), memory and objects that
no limit counts, all of the machine's files written out, sockets of other families than unix and inet, and new namespaces, which would give
privileges. Docker's own filter stays in force beside it.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Sequence

from agentrl.errors import SandboxError

_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ARCH_OFFSET, _NUMBER_OFFSET, _FIRST_ARGUMENT_OFFSET = 4, 0, 16
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

# Names, each with its number on x86_64 and on aarch64.
_REFUSED = """
ptrace 101 117 process_vm_readv 310 270 process_vm_writev 311 271 process_madvise 440 440 kcmp 312 272 pidfd_getfd 438 438
sched_setaffinity 203 122 sched_setscheduler 144 119 sched_setparam 142 118 sched_setattr 314 274 setpriority 141 140 ioprio_set 251 30
shmget 29 194 shmat 30 196 semget 64 190 msgget 68 186 mq_open 240 180 add_key 248 217 request_key 249 218 keyctl 250 219
memfd_secret 447 447 io_setup 206 0 io_uring_setup 425 425 bpf 321 280 perf_event_open 298 241 userfaultfd 323 282 fanotify_init 300 262
unshare 272 97 setns 308 268 sync 162 81 syncfs 306 267
"""
_LOOKED_AT = "clone 56 220 clone3 435 435 prlimit 302 261 socket 41 198"
_FAMILIES = (1, 2, 10)
"""unix, inet and inet6."""
_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""


def compile_filter(machine: str | None = None) -> bytes:
    """Return the filter for `machine` (x86_64 or aarch64; default: this one).

    Raises:
        SandboxError: The machine is of any other kind.
    """
    machine = machine or platform.machine()
    if machine not in _ARCHITECTURES:
        raise SandboxError(f"sandboxes need an x86_64 or aarch64 machine, and this is {machine!r}")
    number = _numbers(_LOOKED_AT, machine)
    # The numbers below are those of one machine: by those of another, 32-bit code and x32 among them, a program would call anything.
    program = [_step(_LOAD, _ARCH_OFFSET), _step(_EQUAL, _ARCHITECTURES[machine], 1, 0), _step(_RETURN, _KILL)]
    program.append(_step(_LOAD, _NUMBER_OFFSET))
    if machine == "x86_64":
        program += [_step(_AT_LEAST, _X32_BIT, 0, 1), _step(_RETURN, _KILL)]
    # An error, and no kill: libraries try some of these calls, and do without them.
    program += [_on(refused, _refuse(_EPERM)) for refused in _numbers(_REFUSED, machine).values()]
    # Other families (netlink, packet, vsock) lead deep into the kernel, or out of it. The error is that of a kernel without the family.
    program.append(_on_other_argument(number["socket"], _FAMILIES, _EAFNOSUPPORT))
    # prlimit of process 0 sets the caller's own limits; of any other it would reach the first process.
    program.append(_on_other_argument(number["prlimit"], [0], _EPERM))
    # clone3 takes its flags through memory, which a filter cannot read: libraries then fall back to clone.
    program.append(_on(number["clone3"], _refuse(_ENOSYS)))
    flags = _step(_LOAD, _FIRST_ARGUMENT_OFFSET), _step(_ANY_BIT, _NEW_NAMESPACES, 0, 1)
    program.append(_on(number["clone"], *flags, _refuse(_EPERM), _step(_RETURN, _ALLOW)))
    return b"".join([*program, _step(_RETURN, _ALLOW)])


def _numbers(table: str, machine: str) -> dict[str, int]:
    words = table.split()
    column = 1 + list(_ARCHITECTURES).index(machine)
    return {name: int(number) for name, number in zip(words[::3], words[column::3], strict=True)}


def _step(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, operand)


def _refuse(error: int) -> bytes:
    return _step(_RETURN, _ERRNO | error)


def _on(number: int, *body: bytes) -> bytes:
    """Return `body`, instructions that end in a return, for this call only."""
    return _step(_EQUAL, number, 0, len(body)) + b"".join(body)


def _on_other_argument(number: int, allowed: Sequence[int], error: int) -> bytes:
    """Return instructions that refuse a call whose first argument is none of those that are allowed."""
    tests = [_step(_EQUAL, value, len(allowed) - n, 0) for n, value in enumerate(allowed)]
    return _on(number, _step(_LOAD, _FIRST_ARGUMENT_OFFSET), *tests, _refuse(error), _step(_RETURN, _ALLOW))
