"""A sandbox whose first process is a child of ours."""

from __future__ import annotations

import logging
import os
import signal

import pytest

from agentrl.sandboxes.backends.process_link import process_link


@pytest.mark.anyio
async def test_a_process_that_a_signal_has_ended_meanwhile_is_not_missed(caplog: pytest.LogCaptureFixture) -> None:
    """Ctrl-C reaches the sandboxes too: they may end just before they are killed, and asyncio is not to warn of it."""
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            async with process_link(["sleep", "1000"], env={}) as link:
                os.kill(link.process.pid, signal.SIGKILL)
            assert link.process.returncode == -signal.SIGKILL
    assert not caplog.records
