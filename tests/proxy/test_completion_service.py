"""What is done on the event loop, and what in threads."""

from __future__ import annotations

import threading

import anyio
import pytest

from agentrl.proxy.completion_service import INLINE_BYTES, run_sized

pytestmark = pytest.mark.anyio


async def test_large_pieces_of_work_run_in_threads_and_small_ones_on_the_event_loop() -> None:
    here, threads = threading.get_ident(), anyio.CapacityLimiter(2)
    assert await run_sized(INLINE_BYTES + 1, threading.get_ident, threads) != here
    assert await run_sized(INLINE_BYTES, threading.get_ident, threads) == here
