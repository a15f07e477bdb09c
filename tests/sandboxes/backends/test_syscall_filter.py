"""The seccomp filter, run by an interpreter of BPF written for this test, on both machines it is made for."""

from __future__ import annotations

import struct

import pytest

from agentrl.errors import SandboxError
from agentrl.sandboxes.backends.syscall_filter import compile_filter

ALLOW, REFUSE, MISSING, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def verdict(machine: str, number: int, *args: int, arch: int | None = None) -> int:
    """What the filter returns for one system call (struct seccomp_data: number, arch, instruction pointer, six arguments)."""
    data = struct.pack("=IIQ6Q", number, ARCH[machine] if arch is None else arch, 0, *args, *[0] * (6 - len(args)))
    program = list(struct.iter_unpack("=HBBI", compile_filter(machine)))
    loaded = position = 0
    while True:
        code, if_true, if_false, operand = program[position]
        position += 1
        if code == 0x20:  # load a word
            (loaded,) = struct.unpack_from("=I", data, operand)
        elif code == 0x06:  # return
            return int(operand)
        else:
            holds = {0x15: loaded == operand, 0x35: loaded >= operand, 0x45: bool(loaded & operand)}[code]
            position += if_true if holds else if_false


@pytest.mark.parametrize(
    ("machine", "numbers"),
    [
        (
            "x86_64",
            {"read": 0, "execve": 59, "ptrace": 101, "unshare": 272, "clone": 56, "clone3": 435, "prlimit64": 302},
        ),
        (
            "aarch64",
            {"read": 63, "execve": 221, "ptrace": 117, "unshare": 97, "clone": 220, "clone3": 435, "prlimit64": 261},
        ),
    ],
)
def test_what_passes_and_what_does_not(machine: str, numbers: dict[str, int]) -> None:
    assert verdict(machine, numbers["read"]) == ALLOW
    assert verdict(machine, numbers["execve"]) == ALLOW
    assert verdict(machine, numbers["ptrace"], 16, 1) == REFUSE
    assert verdict(machine, numbers["unshare"]) == REFUSE
    assert verdict(machine, numbers["clone3"]) == MISSING
    assert verdict(machine, numbers["clone"], 0x00000011) == ALLOW  # fork
    assert verdict(machine, numbers["clone"], 0x003D0F00) == ALLOW  # a thread
    for namespace in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict(machine, numbers["clone"], namespace | 0x11) == REFUSE
    assert verdict(machine, numbers["prlimit64"], 0) == ALLOW  # one's own limits
    assert verdict(machine, numbers["prlimit64"], 1) == REFUSE
    assert verdict(machine, numbers["read"], arch=0x40000003) == KILL  # 32-bit calls have other numbers


@pytest.mark.parametrize(("machine", "socket"), [("x86_64", 41), ("aarch64", 198)])
def test_sockets_are_of_unix_and_inet(machine: str, socket: int) -> None:
    allowed = [family for family in range(64) if verdict(machine, socket, family, 1, 0) == ALLOW]
    assert allowed == [1, 2, 10]  # unix, inet, inet6
    assert verdict(machine, socket, 16, 3, 0) == 0x00050000 | 97  # netlink: no such family


@pytest.mark.parametrize(
    ("machine", "numbers"),
    [("x86_64", {206, 447, 425, 440, 300, 162, 306}), ("aarch64", {0, 447, 425, 440, 262, 81, 267})],
)
def test_what_no_limit_counts_is_refused(machine: str, numbers: set[int]) -> None:
    assert {verdict(machine, number) for number in numbers} == {REFUSE}


def test_the_other_numbering_of_x86_is_shut() -> None:
    assert verdict("x86_64", 0x40000000 + 521) == KILL


def test_other_machines_are_refused() -> None:
    with pytest.raises(SandboxError, match="sandboxes need an x86_64 or aarch64 machine, and this is 'riscv64'"):
        compile_filter("riscv64")
