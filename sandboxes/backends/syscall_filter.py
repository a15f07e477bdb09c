"""The seccomp filter of every program in a sandbox, as compiled BPF (Linux, `Documentation/userspace-api/seccomp_filter`).

It refuses what a program that is graded has no use for: changing other processes (limits, scheduling, memory), objects of
the kernel that outlive their process (System V and POSIX queues, keys), memory and objects that no limit counts, sockets of other
families than unix and inet, new namespaces and mounts, and the calls that privilege escalations like. What would make others wait
(all of the machine's files written out, a lease on a file that they open, a cached file dropped) is refused or does nothing. Docker's own filter stays
in force beside it, loosened by what the pristine process needs; bubblewrap has none of its own.
"""

from __future__ import annotations

import platform
import struct

from agentrl.errors import SandboxError

_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _AND, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x45, 0x06
_ARCH_OFFSET, _NUMBER_OFFSET, _ARGS_OFFSET = 4, 0, 16
_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_COLUMN = {"x86_64": 0, "aarch64": 1}

_REFUSED: dict[str, tuple[int, int | None]] = {
    # changing other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    # what outlives its process, or is memory that nobody's resident size shows
    "shmget": (29, 194),
    "shmat": (30, 196),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "memfd_secret": (447, 447),
    "io_setup": (206, 0),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # namespaces and mounts
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    # what escalations like
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "modify_ldt": (154, None),
    "fanotify_init": (300, 262),
    "lookup_dcookie": (212, 18),
    "io_uring_setup": (425, 425),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "reboot": (169, 142),
    "open_by_handle_at": (304, 265),
    "personality": (135, 92),
    "syslog": (103, 116),
    "quotactl": (179, 60),
}
_DOES_NOTHING = {"sync": (162, 81), "syncfs": (306, 267), "fadvise64": (221, 223)}
"""Reaches the files of the whole machine, and is no more than advice or care to a program whose files are in memory."""
_FCNTL, _SET_LEASE = (72, 25), 1024
_CLONE, _CLONE3, _PRLIMIT = (56, 220), (435, 435), (302, 261)
_SOCKET, _SOCKETPAIR, _MMAP = (41, 198), (53, 199), (9, 222)
_FAMILIES = (1, 2, 10)
"""unix, inet and inet6."""
_SHARED_ANONYMOUS = 0x21
"""MAP_SHARED and MAP_ANONYMOUS."""
_MEMFD_CREATE, _HUGE_PAGES = (319, 279), 4
"""MFD_HUGETLB: pages that no memory limit counts."""
_X32_BIT = 0x40000000


def compile_filter(machine: str | None = None, *, counted: bool = True) -> bytes:
    """Return the filter for `machine` (x86_64 or aarch64; default: this one).

    Where no control group has `counted` it, shared anonymous memory is refused as well, and files of memory (`memfd_create`): no
    process's size shows them.

    Raises:
        SandboxError: The machine is of any other kind.
    """
    machine = machine or platform.machine()
    if machine not in _COLUMN:
        raise SandboxError(f"sandboxes need an x86_64 or aarch64 machine, and this is {machine!r}")
    column = _COLUMN[machine]

    def instruction(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("=HBBI", code, if_true, if_false, operand)

    def on_number(number: int, *body: bytes) -> bytes:
        """`body`, instructions that end in a return, for this call only."""
        code = b"".join(body)
        return instruction(_EQUAL, number, 0, len(code) // 8) + code

    def by_argument(code: int, operand: int, argument: int, *, refuse_if: bool) -> tuple[bytes, ...]:
        """Refuse or allow by a test of the low half of one argument."""
        refused, fine = (0, 1) if refuse_if else (1, 0)
        return (
            instruction(_LOAD, _ARGS_OFFSET + 8 * argument),
            instruction(code, operand, refused, fine),
            instruction(_RETURN, _ERRNO | _EPERM),
            instruction(_RETURN, _ALLOW),
        )

    # The numbers below are those of one machine: by those of another, 32-bit code and x32 among them, a program would call anything.
    program = [
        instruction(_LOAD, _ARCH_OFFSET),
        instruction(_EQUAL, _AUDIT_ARCH[machine], 1, 0),
        instruction(_RETURN, _KILL),
        instruction(_LOAD, _NUMBER_OFFSET),
    ]
    if machine == "x86_64":
        program += [instruction(0x35, _X32_BIT, 0, 1), instruction(_RETURN, _KILL)]  # jump if greater or equal
    # An error, and no kill: libraries try some of these calls, and do without them.
    refused = [number for numbers in _REFUSED.values() if (number := numbers[column]) is not None]
    program += [on_number(number, instruction(_RETURN, _ERRNO | _EPERM)) for number in refused]
    program += [on_number(numbers[column], instruction(_RETURN, _ERRNO)) for numbers in _DOES_NOTHING.values()]
    program.append(on_number(_FCNTL[column], *by_argument(_EQUAL, _SET_LEASE, 1, refuse_if=True)))
    # Other families (netlink, packet, vsock) lead deep into the kernel, or out of it. The error is that of a kernel without the family.
    for call in (_SOCKET, _SOCKETPAIR):
        of_family = [instruction(_EQUAL, family, len(_FAMILIES) - n, 0) for n, family in enumerate(_FAMILIES)]
        no_such_family, fine = instruction(_RETURN, _ERRNO | _EAFNOSUPPORT), instruction(_RETURN, _ALLOW)
        program.append(on_number(call[column], instruction(_LOAD, _ARGS_OFFSET), *of_family, no_such_family, fine))
    # With a control group, huge pages alone escape the limit of memory; without one, nothing counts a file of memory.
    if counted:
        program.append(on_number(_MEMFD_CREATE[column], *by_argument(_ANY_BIT, _HUGE_PAGES, 1, refuse_if=True)))
    else:
        program.append(on_number(_MEMFD_CREATE[column], instruction(_RETURN, _ERRNO | _EPERM)))
        flags = instruction(_LOAD, _ARGS_OFFSET + 8 * 3) + instruction(_AND, _SHARED_ANONYMOUS)
        verdicts = instruction(_RETURN, _ERRNO | _EPERM) + instruction(_RETURN, _ALLOW)
        program.append(on_number(_MMAP[column], flags + instruction(_EQUAL, _SHARED_ANONYMOUS, 0, 1) + verdicts))
    # clone3 takes its flags through memory, which a filter cannot read: libraries then fall back to clone.
    program.append(on_number(_CLONE3[column], instruction(_RETURN, _ERRNO | _ENOSYS)))
    # In a namespace of its own a program would be root, and could use parts of the kernel that are for root alone.
    program.append(on_number(_CLONE[column], *by_argument(_ANY_BIT, _NEW_NAMESPACES, 0, refuse_if=True)))
    # prlimit of process 0 sets the caller's own limits; of any other it would reach programs that are not its.
    program.append(on_number(_PRLIMIT[column], *by_argument(_EQUAL, 0, 0, refuse_if=False)))
    program.append(instruction(_RETURN, _ALLOW))
    return b"".join(program)
