"""Harbor's form of a terminal task beside what `task.toml` says by itself: compose file, the verifier's image, marked instructions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from agentrl.errors import TaskFileError, one_line
from agentrl.rollout.compose_file import environment_of_service

_CANARY = re.compile(r"<!--.*canary.*-->|#.*canary.*", re.IGNORECASE)


def read_harbor(file: Path, text: str) -> dict[str, Any]:
    """Return the settings of a `task.toml`, with what the compose file of its folder adds to them.

    Raises:
        TaskFileError: It is no TOML, or the folder asks for more than one image.
    """
    try:
        settings = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise TaskFileError(f"{file}: not valid TOML: {one_line(error)}") from error
    environment, verifier = settings.get("environment", {}), settings.get("verifier", {})
    if not isinstance(environment, dict) or not isinstance(verifier, dict) or settings.get("steps"):
        return settings  # which is refused as it is
    if verifier.get("environment_mode") == "separate":
        _check_verifier_image(file.parent / "tests")
    context = file.parent / "environment"
    has_image = (context / "Dockerfile").is_file()
    said = environment_of_service(context / "docker-compose.yaml") if has_image else {}
    settings["environment"] = {**said, **environment, "service_env": said.get("service_env", {})}
    return settings


def without_canary(instruction: str) -> str:
    """Return an instruction without the lines at its start that mark benchmark data, which no agent is to see."""
    lines = instruction.split("\n")
    first = next((i for i, line in enumerate(lines) if not _CANARY.fullmatch(line.strip())), len(lines))
    first = next((i for i in range(first, len(lines)) if lines[i].strip()), len(lines))
    return "\n".join(lines[first:])


def _check_verifier_image(tests: Path) -> None:
    """Check that tests which run apart, as they all do here, have no image of their own.

    Raises:
        TaskFileError: They have one.
    """
    for own in ("Dockerfile", "docker-compose.yaml"):
        if (tests / own).is_file():
            raise TaskFileError(
                f"{tests / own}: an image of the verifier's own (verifier.environment_mode) is not built; it runs in a new sandbox of the "
                "task's image, so put what it needs there"
            )
