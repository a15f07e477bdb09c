"""`agentrl runs`: the runs in a directory, and how far they are."""

from __future__ import annotations

import time
from pathlib import Path

RUNS = Path("runs")
_FILES = ("metrics.jsonl", "store.sqlite", "store.sqlite-wal", "summary.json", "config.json")
FILE_WIDTH = 250
"""Columns of the list where it is written into a file: a line a run."""


def runs(directory: Path = RUNS, /) -> int:
    """List the runs below a directory, the newest first, with their state and figures.

    Args:
        directory: Where they are looked for, at any depth.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from agentrl.errors import AgentRLError, one_line
    from agentrl.viewer.queries import ShownRun

    found = [
        path.parent
        for path in directory.rglob("config.json")
        if any((path.parent / name).is_file() for name in ("store.sqlite", "metrics.jsonl"))
    ]
    table = Table("run", "state", "step", "reward", "held-out", "changed", box=None, pad_edge=False)
    for path in sorted(found, key=_changed, reverse=True):
        name, when = escape(str(path)), time.strftime("%Y-%m-%d %H:%M", time.localtime(_changed(path)))
        try:
            figures = ShownRun(path).figures()
            table.add_row(name, *(figures[key] for key in ("state", "step", "reward", "held_out")), when)
        except (AgentRLError, OSError, ValueError) as error:
            table.add_row(name, escape(one_line(str(error).replace(f"{path}/", ""), 60)), "", "", "", when)
    console = Console()
    if not console.is_terminal:
        console.width = FILE_WIDTH
    if found:
        console.print(table, highlight=False)
    else:
        print(f"no runs below {directory}; name the directory that holds them: agentrl runs DIRECTORY")
    return 0


def _changed(path: Path) -> float:
    files = [path / name for name in _FILES]
    return max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)
