"""The event loop does small pieces of work, and threads the large ones."""

from __future__ import annotations

import threading

import anyio
import pytest

from agentrl.proxy.completion_service import INLINE_BYTES, run_sized

pytestmark = pytest.mark.anyio


async def test_large_pieces_of_work_run_in_threads() -> None:
    threads = anyio.CapacityLimiter(2)
    assert await run_sized(INLINE_BYTES + 1, threading.get_ident, threads) != threading.get_ident()
    assert await run_sized(INLINE_BYTES, threading.get_ident, threads) == threading.get_ident()
