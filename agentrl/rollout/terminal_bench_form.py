"""The older form of a terminal task, Terminal-Bench's: `task.yaml`, with Dockerfile, `run-tests.sh`, `tests/` and `solution.sh` beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from agentrl.errors import TaskFileError, one_line
from agentrl.rollout.compose_file import environment_of_service

DEFAULT_TIMEOUTS = {"agent": 360.0, "verifier": 60.0}
"""Seconds, as terminal-bench 0.2.18 has them."""

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
    named = {"agent": "max_agent_timeout_sec", "verifier": "max_test_timeout_sec"}
    settings: dict[str, Any] = {
        section: {"timeout_sec": DEFAULT_TIMEOUTS[section] if said.get(name) is None else said[name]}
        for section, name in named.items()
    }
    settings["environment"] = environment_of_service(file.with_name("docker-compose.yaml"))
    # Of Terminal-Bench itself; ours is the same table as `[metadata.agentrl]`.
    settings["metadata"] = {"agentrl": said["agentrl"]} if "agentrl" in said else {}
    settings["verifier"]["env"] = {"TEST_DIR": "/tests"}
    return said["instruction"], settings
