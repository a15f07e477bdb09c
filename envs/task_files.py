"""Files of tasks that the programs of environments write: one task a line, as `--tasks` takes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write_task_files(directory: Path, parts: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write `NAME.jsonl` for each part, and say how many tasks each has. The directory is made where there is none."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, tasks in parts.items():
        path = directory / f"{name}.jsonl"
        path.write_text("".join(json.dumps(task) + "\n" for task in tasks))
        print(f"{path}: {len(tasks)} tasks")
