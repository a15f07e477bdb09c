"""Backends of other packages are found by their entry points, and checked before a run depends on them.

    [project.entry-points."agentrl.sandboxes"]
    my-service = "my_package.backend:MyService"

`sandbox.backend = "my-service"` then calls `MyService()`, which gives a `Backend`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from agentrl.errors import ConfigError, one_line
from agentrl.sandboxes.seams import Backend

GROUP = "agentrl.sandboxes"


def plugin_names() -> list[str]:
    """Return the names of the backends that installed packages bring."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def load_plugin(name: str) -> Backend | None:
    """Return a new backend of the installed package that has one of this name; None where there is no such package.

    Raises:
        ConfigError: Two packages have one of this name, it cannot be imported or made, or what was made is no backend.
    """
    found: list[EntryPoint] = list(entry_points(group=GROUP, name=name))
    if not found:
        return None
    packages = sorted({entry.dist.name if entry.dist else entry.value for entry in found})
    if len(packages) > 1:
        raise ConfigError(f"backend = {name!r} is of the packages {' and '.join(packages)}; uninstall all but one")
    where = f"backend = {name!r} ({found[0].value} of {packages[0]})"
    try:
        factory = found[0].load()
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{where} cannot be imported: {type(error).__name__}: {one_line(error)}") from error
    return make_backend(factory, where)


def make_backend(factory: Callable[[], Any], where: str) -> Backend:
    """Return the backend that a factory makes.

    Args:
        factory: A class or function that takes no arguments.
        where: What messages call it.

    Raises:
        ConfigError: It is no function or class, it raises, or what it makes is no backend.
    """
    if not callable(factory):
        raise ConfigError(f"{where} is {type(factory).__name__}; name a class or function that returns a Backend")
    try:
        made = factory()
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{where} cannot be made: {type(error).__name__}: {one_line(error)}") from error
    lacks = [what for what, there in _parts(made) if not there]
    if lacks:
        raise ConfigError(
            f"{where} made {type(made).__name__}, which is no Backend: it lacks {', '.join(lacks)} "
            "(agentrl.sandboxes.Backend says what each does)"
        )
    return cast(Backend, made)


def _parts(made: Any) -> list[tuple[str, bool]]:
    name, isolates = getattr(made, "name", None), getattr(made, "isolates", None)
    return [
        ("name (text)", isinstance(name, str) and bool(name)),
        ("isolates (a mapping of texts)", isinstance(isolates, Mapping)),
        ("async def prepare(spec)", inspect.iscoroutinefunction(getattr(made, "prepare", None))),
        ("start(spec, core), an asynchronous context manager", _is_start(getattr(made, "start", None))),
    ]


def _is_start(start: Any) -> bool:
    if not callable(start) or inspect.iscoroutinefunction(start) or inspect.isasyncgenfunction(start):
        return False
    try:
        inspect.signature(start).bind(None, None)
    except TypeError:
        return False
    return True
