"""Cases of which the gate has a few, and the soak all others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def gate(*kept: str, of: Iterable[str]) -> list[Any]:
    """Return the parameters of a test: all names, of which those that are not kept are left to the soak."""
    names = list(of)
    assert {*kept} <= {*names}
    return [name if name in kept else pytest.param(name, marks=pytest.mark.soak) for name in names]
