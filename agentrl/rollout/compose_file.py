"""What a task's `docker-compose.yaml` says of the one service that a sandbox can be."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from agentrl.errors import TaskFileError, one_line
from agentrl.rollout.compose_interpolation import LookUp, interpolate

_SET_IN_FILE = re.compile(r"^\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*[=:]", re.MULTILINE)
NOT_TO_BE_HAD = ("privileged", "cap_add", "devices", "gpus")


def environment_of_service(compose: Path) -> dict[str, Any]:
    """Return what a compose file, if there is one, says of its service, in the words of `[environment]` of a `task.toml`.

    Its variables are those of this process, as they are of Docker Compose's. Its volumes are left out: the agent has the image alone. So is what keeps a container alive, such as `command` and `tty`.

    Raises:
        TaskFileError: It is no compose file, has several services, or asks for what a sandbox does not give.
    """
    if not compose.is_file():
        return {}
    try:
        services = yaml.safe_load(compose.read_text(encoding="utf-8"))["services"]
        names, (service, *_) = list(services), [one or {} for one in services.values()]
        build, image, workdir, env = (service.get(name) for name in ("build", "image", "working_dir", "environment"))
        context, dockerfile = (
            (build.get("context", "."), build.get("dockerfile")) if isinstance(build, Mapping) else (build or ".", None)
        )
        given = _environment(env or {})
        wanted = [name for name in NOT_TO_BE_HAD if service.get(name)]
        resources = ((service.get("deploy") or {}).get("resources") or {}).get("reservations") or {}
        wanted += ["deploy.resources.reservations.devices"] if resources.get("devices") else []
        other_image = _other_image(build) if isinstance(build, Mapping) else []
    except (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError, RecursionError) as error:
        raise TaskFileError(f"{compose}: not understood: {one_line(error)}") from error
    if len(names) != 1:
        raise TaskFileError(
            f"{compose}, services: {', '.join(map(str, names))}; a sandbox runs one image, so a task may have one service"
        )
    where = f"{compose}, services.{names[0]}"
    if wanted:
        raise TaskFileError(f"{where}: {', '.join(wanted)} cannot be had in a sandbox; leave the task out")
    if "$" not in str(context) and (Path(str(context)), dockerfile or "Dockerfile") != (Path("."), "Dockerfile"):
        raise TaskFileError(
            f"{where}.build: the image is built from the Dockerfile beside this file alone; put that of {context!r} there"
        )
    if other_image:
        raise TaskFileError(
            f"{where}.build: {', '.join(other_image)}: the image is built as the Dockerfile alone says; write the arguments there as the "
            "defaults of its ARG, and have the stage that is meant be its last"
        )
    look_up, found = _variables_beside(compose, where), dict[str, Any]()
    if variables := _filled(given, look_up, f"{where}.environment"):
        found["service_env"] = variables
    if workdir is not None:
        found["workdir"] = _interpolated(workdir, look_up, f"{where}.working_dir")
    if build is None and image is not None and "$" not in str(image):
        found["docker_image"] = image
    return found


def _other_image(build: Mapping[str, Any]) -> list[str]:
    """Return what has a build give another image than the Dockerfile alone: a stage, and arguments but those of proxies."""
    arguments = [str(one).partition("=")[0] for one in build.get("args") or ()]
    named = [f"args.{name}" for name in arguments if not name.lower().endswith("_proxy")]
    return [*(["target"] if build.get("target") else []), *named]


def _environment(given: Mapping[str, Any] | list[str]) -> dict[str, str | None]:
    """Return the variables of a service, which stand in a mapping or as texts `NAME=VALUE`, without those of the harness itself.

    One without a value, `NAME`, is None: it is this machine's variable of that name, where there is one.
    """
    pairs = [one.partition("=") for one in given] if isinstance(given, list) else []
    named: dict[str, Any] = (
        {name: value if equals else None for name, equals, value in pairs}
        if isinstance(given, list)
        else dict(given.items())
    )
    texts = {name: None if value is None else _text(value) for name, value in named.items()}
    return {name: text for name, text in texts.items() if "T_BENCH_" not in (text or "")}


def _filled(given: Mapping[str, str | None], look_up: LookUp, where: str) -> dict[str, str]:
    """Return the variables of a service with their values."""
    values = {
        name: look_up(name) if text is None else _interpolated(text, look_up, f"{where}.{name}")
        for name, text in given.items()
    }
    return {name: value for name, value in values.items() if value is not None}


def _interpolated(text: Any, look_up: LookUp, where: str) -> Any:
    """Return a text with its variables filled in, and what is no text as it is.

    Raises:
        TaskFileError: It cannot be.
    """
    try:
        return interpolate(text, look_up) if isinstance(text, str) else text
    except ValueError as error:
        raise TaskFileError(f"{where}: {error}") from None


def _variables_beside(compose: Path, where: str) -> LookUp:
    """Return what looks up a variable of this process, and refuses one that Docker Compose would find in the file `.env` alone."""
    file = compose.with_name(".env")
    in_file = {*_SET_IN_FILE.findall(file.read_text(encoding="utf-8", errors="replace"))} if file.is_file() else set()

    def look_up(name: str) -> str | None:
        value = os.environ.get(name)
        if value is None and name in in_file:
            raise TaskFileError(
                f"{where}: the variable {name} is set in {file}, which is not read here; write its value into the compose file, or set it"
            )
        return value

    return look_up


def _text(value: Any) -> str:
    """Return a value as compose writes it, where YAML has read a truth value or a number."""
    return str(value).lower() if isinstance(value, bool) else str(value)
