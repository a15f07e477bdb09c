"""What is done on the event loop, and what in threads."""

from __future__ import annotations

import threading
import time

import anyio
import pytest

from agentrl.proxy import Session
from agentrl.proxy.completion_service import INLINE_BYTES, run_sized

pytestmark = pytest.mark.anyio


async def test_large_pieces_of_a_session_run_in_threads_and_one_at_a_time() -> None:
    session, threads = Session(), anyio.CapacityLimiter(4)
    running, most, seen = set[int](), [0], set[int]()

    def piece() -> None:
        running.add(threading.get_ident())
        most[0] = max(most[0], len(running))
        time.sleep(0.001)
        seen.add(threading.get_ident())
        running.discard(threading.get_ident())

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(run_sized, session, INLINE_BYTES + 1, piece, threads)
    assert most == [1]
    assert threading.get_ident() not in seen
    assert await run_sized(session, INLINE_BYTES, threading.get_ident, threads) == threading.get_ident()
