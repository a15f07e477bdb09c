"""What a test needs beside Python: there, or a reason not to run."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(reason: str) -> NoReturn:
    """Skip the test on a user's machine. In CI, which installs everything, fail it."""
    if os.environ.get("AGENTRL_TEST_EVERYTHING"):
        pytest.fail(reason)
    pytest.skip(reason)
