"""The frames that pass between the host and the first process of a sandbox, either way.

A frame is its kind (1 byte), the number of the request (4) and the length of what follows (4).
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator

HEADER = struct.Struct(">cII")

Payload = bytes | mmap.mmap


def frame(kind: bytes, number: int, payload: bytes) -> bytes:
    """Return a message as it is sent, either way."""
    return HEADER.pack(kind, number, len(payload)) + payload


def take_frames(received: bytearray) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield the whole frames at the beginning of what was received, and take them out of it."""
    while len(received) >= HEADER.size:
        kind, number, length = HEADER.unpack_from(received)
        end = HEADER.size + length
        if len(received) < end:
            return
        with memoryview(received) as view:
            payload = bytes(view[HEADER.size : end])
        del received[:end]
        yield kind, number, payload


def read_frame(fd: int) -> tuple[bytes, int, Payload] | None:
    """Read one frame, and wait for all of it; None when the host has hung up. Programs are forked from the process that reads.

    The payload is in memory that no forked program inherits, and that is unmapped with it: it may be another program's input.
    """
    header = bytearray(HEADER.size)
    if not _fill(fd, header):
        return None
    kind, number, length = HEADER.unpack(header)
    if not length:
        return kind, number, b""
    payload = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    payload.madvise(mmap.MADV_DONTFORK)
    return (kind, number, payload) if _fill(fd, payload) else None


def _fill(fd: int, buffer: bytearray | mmap.mmap) -> bool:
    with memoryview(buffer) as view:
        have = 0
        while have < len(view):
            with view[have:] as rest:
                length = os.readv(fd, [rest])
            if not length:
                return False
            have += length
    return True


def split_head(payload: Payload) -> tuple[bytes, memoryview]:
    """Return the first line of a payload, and what follows it, which is not copied."""
    end = payload.find(b"\n")
    return payload[:end], memoryview(payload)[end + 1 :]
