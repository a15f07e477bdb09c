"""The standard streams of a process that talks to the host over them: moved where no print or input of other code gets in between."""

from __future__ import annotations

import os
from typing import BinaryIO


def private_streams() -> tuple[BinaryIO, BinaryIO]:
    """Return the streams from and to the host; what other code reads is empty then, and what it prints goes to standard error."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, answers
