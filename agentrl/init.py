"""`agentrl init NAME`: a small workflow, environment, task set and test that run as they are, to be changed from there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from agentrl.errors import ConfigError

TEMPLATE = Path(__file__).parent / "template"


def write_project(directory: Path) -> Iterator[Path]:
    """Copy the template into a new directory; the files that were written. Raises ConfigError when there is something
    already."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"{directory} exists already; choose another name")
    directory.mkdir(parents=True, exist_ok=True)
    for source in sorted(TEMPLATE.iterdir()):
        if source.is_file():
            yield Path(shutil.copyfile(source, directory / source.name))
