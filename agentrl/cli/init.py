"""`agentrl init NAME`: a small workflow, environment, task set and test that run as they are, to be changed from there."""

from __future__ import annotations

import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

from agentrl.errors import ConfigError

TEMPLATE = Path(__file__).parent / "template"


def init(name: str, /) -> int:
    """Write a new workflow, environment, task set and test to start from.

    Args:
        name: The folder to make.
    """
    for path in write_project(Path(name)):
        print(path)
    print(f"Next: cd {shlex.quote(name)} && agentrl train --config run.toml")
    print(f"Its tests: {'' if find_spec('pytest') else 'python -m pip install pytest && '}python -m pytest")
    return 0


def write_project(directory: Path) -> list[Path]:
    """Copy the template into a new directory.

    Returns the files that were written.

    Raises:
        ConfigError: There is something already, or nothing can be written there.
    """
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ConfigError(f"{directory} exists already; choose another name")
        directory.mkdir(parents=True, exist_ok=True)
        sources = [source for source in sorted(TEMPLATE.iterdir()) if source.is_file()]
        return [Path(shutil.copyfile(source, directory / source.name)) for source in sources]
    except OSError as error:
        raise ConfigError(f"{directory} cannot be written: {error.strerror}; choose another place") from error
