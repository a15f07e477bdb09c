"""What the host sends to a sandbox, frame by frame, in memory that no program of the sandbox inherits.

Programs are forked from the process that reads this, and what waits for its turn there is the input of later runs.
"""

from __future__ import annotations

import mmap
import os
import struct

HEADER = struct.Struct(">cII")
"""Of a frame: its kind, the number of the request, and the length of what follows."""

Payload = bytes | mmap.mmap


def frame(kind: bytes, number: int, payload: bytes) -> bytes:
    """Return a message as it is sent, either way."""
    return HEADER.pack(kind, number, len(payload)) + payload


class Inbox:
    """The frames that come from a descriptor. Nothing is read beyond the frame that has begun."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._header = b""
        self._payload: Payload = b""
        self._have = 0

    def read(self) -> bool:
        """Read what there is of the frame that has begun; False when the host has hung up. Waits where there is nothing."""
        if len(self._header) < HEADER.size:
            data = os.read(self._fd, HEADER.size - len(self._header))
            self._header += data
            if len(self._header) == HEADER.size and (length := int(HEADER.unpack(self._header)[2])):
                self._payload = _not_inherited(length)
            return bool(data)
        with memoryview(self._payload) as view, view[self._have :] as rest:
            length = os.readv(self._fd, [rest])
        self._have += length
        return bool(length)

    def next_frame(self) -> tuple[bytes, int, Payload] | None:
        """Return the frame that has begun, when it is whole."""
        if len(self._header) < HEADER.size or self._have < len(self._payload):
            return None
        kind, number, _ = HEADER.unpack(self._header)
        payload = self._payload
        self._header, self._payload, self._have = b"", b"", 0
        return kind, number, payload


def split_head(payload: Payload) -> tuple[bytes, memoryview]:
    """Return the first line of a payload, and what follows it, which is not copied."""
    end = payload.find(b"\n")
    return payload[:end], memoryview(payload)[end + 1 :]


def _not_inherited(length: int) -> mmap.mmap:
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_DONTFORK)
    return memory
