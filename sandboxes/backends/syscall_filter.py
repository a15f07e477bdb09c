"""The seccomp filter of every program in a sandbox, as compiled BPF (Linux, `Documentation/userspace-api/seccomp_filter`).

It refuses what a program that is graded has no use for: changing other processes (the first process is of the same user), objects of
the kernel that outlive their process (System V and POSIX queues, keys), memory and objects that no limit counts, sockets of other
families than unix and inet, new namespaces and mounts, and the calls that privilege escalations like. Those that would make others wait
(all of the machine's files written out, a lease on a file that they open) are refused or do nothing. Docker's own filter stays in force beside it.
"""

from __future__ import annotations

import platform
import struct

from agentrl.errors import SandboxError

_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ARCH_OFFSET, _NUMBER_OFFSET, _ARGS_OFFSET = 4, 0, 16
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

# Names, each with its number on x86_64 and on aarch64.
_REFUSED = """
ptrace 101 117 process_vm_readv 310 270 process_vm_writev 311 271 process_madvise 440 440 kcmp 312 272 pidfd_getfd 438 438
sched_setaffinity 203 122 sched_setscheduler 144 119 sched_setparam 142 118 sched_setattr 314 274 setpriority 141 140 ioprio_set 251 30
shmget 29 194 shmat 30 196 semget 64 190 msgget 68 186 mq_open 240 180 add_key 248 217 request_key 249 218 keyctl 250 219
memfd_secret 447 447 io_setup 206 0 io_uring_setup 425 425 bpf 321 280 perf_event_open 298 241 userfaultfd 323 282 fanotify_init 300 262
unshare 272 97 setns 308 268 mount 165 40 umount2 166 39 pivot_root 155 41 chroot 161 51 open_tree 428 428 move_mount 429 429
fsopen 430 430 fsconfig 431 431 fsmount 432 432 fspick 433 433 mount_setattr 442 442 sethostname 170 161 setdomainname 171 162
lookup_dcookie 212 18 init_module 175 105 finit_module 313 273 delete_module 176 106 kexec_load 246 104 reboot 169 142
open_by_handle_at 304 265 personality 135 92 syslog 103 116 quotactl 179 60
"""
_DOES_NOTHING = "sync 162 81 syncfs 306 267 fadvise64 221 223"
_LOOKED_AT = "fcntl 72 25 clone 56 220 clone3 435 435 prlimit 302 261 socket 41 198 socketpair 53 199 mmap 9 222 memfd_create 319 279"
_MODIFY_LDT = 154
"""Of x86_64 alone."""
_SET_LEASE = 1024
_FAMILIES = (1, 2, 10)
"""unix, inet and inet6."""
_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""
_SHARED_ANONYMOUS = 0x21
"""MAP_SHARED and MAP_ANONYMOUS."""
_HUGE_PAGES = 4
"""MFD_HUGETLB: pages that no memory limit counts."""


def compile_filter(machine: str | None = None, *, counted: bool = True) -> bytes:
    """Return the filter for `machine` (x86_64 or aarch64; default: this one).

    Where no control group has `counted` it, shared anonymous memory is refused as well, and files of memory (`memfd_create`).

    Raises:
        SandboxError: The machine is of any other kind.
    """
    machine = machine or platform.machine()
    if machine not in _AUDIT_ARCH:
        raise SandboxError(f"sandboxes need an x86_64 or aarch64 machine, and this is {machine!r}")
    number = {name: numbers[machine] for name, numbers in _table(_LOOKED_AT).items()}
    # The numbers below are those of one machine: by those of another, 32-bit code and x32 among them, a program would call anything.
    program = [_step(_LOAD, _ARCH_OFFSET), _step(_EQUAL, _AUDIT_ARCH[machine], 1, 0), _step(_RETURN, _KILL)]
    program.append(_step(_LOAD, _NUMBER_OFFSET))
    if machine == "x86_64":
        program += [_step(_AT_LEAST, _X32_BIT, 0, 1), _step(_RETURN, _KILL)]
        program.append(_on(_MODIFY_LDT, _step(_RETURN, _ERRNO | _EPERM)))
    # An error, and no kill: libraries try some of these calls, and do without them.
    program += [_on(numbers[machine], _step(_RETURN, _ERRNO | _EPERM)) for numbers in _table(_REFUSED).values()]
    program += [_on(numbers[machine], _step(_RETURN, _ERRNO)) for numbers in _table(_DOES_NOTHING).values()]
    program.append(_on(number["fcntl"], *_by_argument(1, _EQUAL, _SET_LEASE, refuse_if=True)))
    # Other families (netlink, packet, vsock) lead deep into the kernel, or out of it. The error is that of a kernel without the family.
    for call in ("socket", "socketpair"):
        of_family = [_step(_EQUAL, family, len(_FAMILIES) - n, 0) for n, family in enumerate(_FAMILIES)]
        ends = _step(_RETURN, _ERRNO | _EAFNOSUPPORT), _step(_RETURN, _ALLOW)
        program.append(_on(number[call], _step(_LOAD, _ARGS_OFFSET), *of_family, *ends))
    if counted:
        program.append(_on(number["memfd_create"], *_by_argument(1, _ANY_BIT, _HUGE_PAGES, refuse_if=True)))
    else:
        program.append(_on(number["memfd_create"], _step(_RETURN, _ERRNO | _EPERM)))
        shared = _by_argument(3, _EQUAL, _SHARED_ANONYMOUS, refuse_if=True, mask=_SHARED_ANONYMOUS)
        program.append(_on(number["mmap"], *shared))
    # clone3 takes its flags through memory, which a filter cannot read: libraries then fall back to clone.
    program.append(_on(number["clone3"], _step(_RETURN, _ERRNO | _ENOSYS)))
    program.append(_on(number["clone"], *_by_argument(0, _ANY_BIT, _NEW_NAMESPACES, refuse_if=True)))
    # prlimit of process 0 sets the caller's own limits; of any other it would reach the first process.
    program.append(_on(number["prlimit"], *_by_argument(0, _EQUAL, 0, refuse_if=False)))
    return b"".join([*program, _step(_RETURN, _ALLOW)])


def _table(text: str) -> dict[str, dict[str, int]]:
    words = text.split()
    rows = zip(words[::3], words[1::3], words[2::3], strict=True)
    return {name: {"x86_64": int(first), "aarch64": int(second)} for name, first, second in rows}


def _step(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, operand)


def _on(number: int, *body: bytes) -> bytes:
    """Return `body`, instructions that end in a return, for this call only."""
    code = b"".join(body)
    return _step(_EQUAL, number, 0, len(code) // 8) + code


def _by_argument(argument: int, code: int, operand: int, *, refuse_if: bool, mask: int | None = None) -> list[bytes]:
    """Return instructions that refuse or allow by a test of the low half of one argument."""
    refused, fine = (0, 1) if refuse_if else (1, 0)
    masked = [] if mask is None else [_step(_AND, mask)]
    test = _step(code, operand, refused, fine)
    return [
        _step(_LOAD, _ARGS_OFFSET + 8 * argument),
        *masked,
        test,
        _step(_RETURN, _ERRNO | _EPERM),
        _step(_RETURN, _ALLOW),
    ]
