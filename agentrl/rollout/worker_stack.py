"""Look at what the event loop is doing at this moment, from another thread of the process."""

from __future__ import annotations

import asyncio.events
import sys
import threading
import traceback
from contextvars import Context
from dataclasses import dataclass
from types import FrameType

from agentrl.reporting.code_place import place_of

_RUN_HANDLE = asyncio.events.Handle._run.__code__


@dataclass(frozen=True)
class LoopStack:
    """The stack of the thread that runs the event loop."""

    where: str
    """`FILE:LINE in FUNCTION`, as `place_of` chooses it."""
    traceback: str
    context: Context | None
    """Context of the task that runs; None: the loop waits for something to do."""


def loop_stack() -> LoopStack:
    """Return what the main thread, where the event loop runs, is doing."""
    thread = threading.main_thread().ident
    frame = sys._current_frames().get(thread) if thread is not None else None
    if frame is None:
        return LoopStack("nowhere", "", None)
    frames = [found for found, _ in traceback.walk_stack(frame)][::-1]
    return LoopStack(place_of(frames), "".join(traceback.format_stack(frame)), _context(frame))


def _context(frame: FrameType | None) -> Context | None:
    """Return the context of the task in which `frame` runs: the event loop steps every task in a handle, which knows it."""
    while frame is not None:
        if frame.f_code is _RUN_HANDLE:
            context: Context = frame.f_locals["self"]._context
            return context
        frame = frame.f_back
    return None
