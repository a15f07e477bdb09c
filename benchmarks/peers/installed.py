"""The programs beside agentrl that are installed here, and what a table of theirs says at its head."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from pathlib import Path

PEERS = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "agentrl" / "peers"


def interpreter(name: str) -> Path | None:
    """Return the Python of a peer's own environment; None where it is not installed."""
    if name == "agentrl":
        return Path(sys.executable)
    return PEERS / name / "bin" / "python" if (PEERS / name / "installed").exists() else None


def source(name: str) -> Path:
    """Return where the repository of a peer is that no index has."""
    return PEERS / name / "source"


def absent(name: str) -> str:
    """Return what is said of a peer that is not installed."""
    return f"{name:28} not measured: not installed; scripts/install_peers.sh {name}"


def head(names: list[str]) -> str:
    """Return the date, the machine, and the packages that each environment was made of."""
    cores = len(os.sched_getaffinity(0))
    machine = f"{cores} cores of {platform.machine()}, Python {platform.python_version()}"
    made_of = [
        f"{name}: {(PEERS / name / 'installed').read_text().strip().replace(f'{PEERS}/', '')}"
        for name in names
        if name != "agentrl" and interpreter(name)
    ]
    return "\n".join([f"{time.strftime('%Y-%m-%d')}, {machine}, load {os.getloadavg()[0]:.1f} at the start", *made_of])


def spread(values: list[float], digits: int = 1) -> str:
    """Return the median of some rounds, and their range where there are several."""
    middle = f"{statistics.median(values):,.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"
