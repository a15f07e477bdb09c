"""The older form of a terminal task, Terminal-Bench's: `task.yaml`, with Dockerfile, `run-tests.sh`, `tests/` and `solution.sh` beside it."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Any

import yaml

from agentrl.errors import TaskFileError, one_line

WITHHELD = ("tests", "run-tests.sh", "solution.sh", "solution.yaml", "solution")
"""What lies beside the Dockerfile, in the folder that it is built from, and is not for the agent to see."""


def read_terminal_bench(file: Path, text: str) -> tuple[str, dict[str, Any]]:
    """Return the instruction of a `task.yaml`, and its settings as Harbor's `task.toml` would say them.

    Raises:
        TaskFileError: It is no task.yaml, or names tests whose outcome is not understood.
    """
    try:
        said = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise TaskFileError(f"{file}: not valid YAML: {one_line(error)}") from error
    if not isinstance(said, dict):
        raise TaskFileError(f"{file}: a task must be a mapping, not {type(said).__name__}")
    if not isinstance(said.get("instruction"), str):
        raise TaskFileError(
            f"{file}, instruction: it must be a text, not {one_line(repr(said.get('instruction')), 80)}"
        )
    parser = said.get("parser_name", "pytest")
    if parser != "pytest":
        raise TaskFileError(
            f"{file}, parser_name: {parser!r} is not understood, 'pytest' alone is; give the task Harbor's form, whose tests write their reward"
        )
    _check_one_service(file.with_name("docker-compose.yaml"))
    named = {"agent": "max_agent_timeout_sec", "verifier": "max_test_timeout_sec"}
    settings: dict[str, Any] = {
        section: {"timeout_sec": said[name]} for section, name in named.items() if said.get(name) is not None
    }
    # Of Terminal-Bench itself; ours is the same table as `[metadata.agentrl]`.
    settings["metadata"] = {"agentrl": said["agentrl"]} if "agentrl" in said else {}
    settings.setdefault("verifier", {"timeout_sec": 180.0})["env"] = {"TEST_DIR": "/tests"}
    return said["instruction"], settings


def _check_one_service(compose: Path) -> None:
    if not compose.is_file():
        return
    try:
        services = yaml.safe_load(compose.read_text(encoding="utf-8"))["services"]
        count = len(services)
        build = (
            next(iter(services.values()))["build"] if count == 1 and "build" in next(iter(services.values())) else "."
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, yaml.YAMLError) as error:
        raise TaskFileError(f"{compose}: not understood: {one_line(error)}") from error
    if count != 1:
        raise TaskFileError(
            f"{compose}, services: {', '.join(map(str, services))}; a sandbox runs one image, so a task may have one service"
        )
    said = {"context": build} if isinstance(build, str) else build if isinstance(build, dict) else {}
    for name, usual in (("context", "."), ("dockerfile", "Dockerfile")):
        given = str(said.get(name, usual))
        if "$" not in given and posixpath.normpath(given) != usual:
            raise TaskFileError(
                f"{compose}, build.{name}: {given!r} is not read; an image is built from the Dockerfile of the task's own folder"
            )
