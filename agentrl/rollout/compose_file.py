"""What a task's `docker-compose.yaml` says of the one service that a sandbox can be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from agentrl.errors import TaskFileError, one_line

NOT_TO_BE_HAD = ("privileged", "cap_add", "devices", "gpus")


def environment_of_service(compose: Path) -> dict[str, Any]:
    """Return what a compose file, if there is one, says of its service, in the words of `[environment]` of a `task.toml`.

    Its volumes are left out: the agent has the image alone. So is what keeps a container alive, such as `command` and `tty`.

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
        variables = _environment(env or {})
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
    found: dict[str, Any] = {"env": variables} if variables else {}
    if workdir is not None:
        found["workdir"] = workdir
    if build is None and image is not None and "$" not in str(image):
        found["docker_image"] = image
    return found


def _other_image(build: Mapping[str, Any]) -> list[str]:
    """Return what has a build give another image than the Dockerfile alone: a stage, and arguments but those of proxies."""
    arguments = [str(one).partition("=")[0] for one in build.get("args") or ()]
    named = [f"args.{name}" for name in arguments if not name.lower().endswith("_proxy")]
    return [*(["target"] if build.get("target") else []), *named]


def _environment(given: Mapping[str, Any] | list[str]) -> dict[str, str]:
    """Return the variables of a service, which stand in a mapping or as texts `NAME=VALUE`, without those of the harness itself.

    One without a value, `NAME`, is this machine's variable of that name.
    """
    pairs = [one.partition("=") for one in given] if isinstance(given, list) else []
    named: dict[str, Any] = (
        {name: value if equals else None for name, equals, value in pairs}
        if isinstance(given, list)
        else dict(given.items())
    )
    texts = {name: f"${{{name}:-}}" if value is None else _text(value) for name, value in named.items()}
    return {name: text for name, text in texts.items() if "T_BENCH_" not in text}


def _text(value: Any) -> str:
    """Return a value as compose writes it, where YAML has read a truth value or a number."""
    return str(value).lower() if isinstance(value, bool) else str(value)
