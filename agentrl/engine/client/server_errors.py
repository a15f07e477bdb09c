"""Errors of a server that gave no usable answer, by whose fault it is.

    EngineError              the server refused: it is alive, and so would the next one refuse
    ├── ServerLostError      it cannot be reached, broke off, went silent, or failed: it is taken out of service at once
    │   ├── ServerFailedError
    │   └── UnreachableError
    ├── BadReplyError        it answered with what cannot be right: it is asked again elsewhere, and taken out when it repeats
    └── LocalShortageError   this machine has no descriptor, port, thread or memory for the call: no server is to blame

What a server had said of a reply before is in `partial`, to be gone on from.
"""

from __future__ import annotations

import errno
import os
import re

from agentrl.errors import EngineError
from agentrl.record.tokens import Generation

_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL)
_OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemory|MemoryError|can(?:no|')t allocate memory", re.IGNORECASE)


class _PartialReplyError(EngineError):
    def __init__(self, message: str, partial: Generation | None = None) -> None:
        super().__init__(message)
        self.partial = partial


class ServerLostError(_PartialReplyError):
    """A server cannot be reached any more, or cannot go on. `partial` is what it said of a reply before."""


class UnreachableError(ServerLostError):
    """A connection to a server failed or broke off, which may also be the fault of what lies between."""


class ServerFailedError(ServerLostError):
    """A server answered that it failed. What it was asked to do may be half done."""


class BadReplyError(_PartialReplyError):
    """A server answered with what no sound server answers. `partial` is the sound beginning of the reply."""


class LocalShortageError(_PartialReplyError):
    """A call failed for want of something on this machine. `partial` is what came of a reply before."""


def shortage(error: BaseException) -> str | None:
    """Say what this machine lacks that a call failed with `error`; None: the failure came from elsewhere."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in _SHORTAGES:
            return os.strerror(seen.errno)
        if isinstance(seen, MemoryError) or "can't start new thread" in str(seen):
            return str(seen) or "out of memory"
        seen = seen.__cause__ or seen.__context__
    # A name that cannot be looked up for want of a descriptor says only that it was not found.
    return None if _has_descriptor() else os.strerror(errno.EMFILE)


def _has_descriptor() -> bool:
    try:
        os.close(os.dup(2))
    except OSError as error:
        return error.errno not in _SHORTAGES
    return True


def says_out_of_memory(message: object) -> bool:
    """Return whether a server's refusal is about its memory: then its state is unknown, and a new start may mend it."""
    return bool(_OUT_OF_MEMORY.search(str(message)))
