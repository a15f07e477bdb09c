"""What a test needs beside Python, there or a reason not to run; and a bounded wait for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NoReturn

import anyio
import pytest


def missing(reason: str) -> NoReturn:
    """Skip the test on a user's machine. In CI, which installs everything, fail it."""
    if os.environ.get("AGENTRL_TEST_EVERYTHING"):
        pytest.fail(reason)
    pytest.skip(reason)


async def wait_until(condition: Callable[[], bool], timeout_s: float) -> None:
    """Return when `condition` holds; raise TimeoutError when it has not by then."""
    with anyio.fail_after(timeout_s):
        while not condition():
            await anyio.sleep(0.02)
