"""Which backend a sandbox comes from, and the one sandbox that is opened without a pool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import entry_points
from typing import Any, Literal, get_args

from agentrl.concurrency.threads import in_thread
from agentrl.errors import ConfigError, SandboxError, one_line
from agentrl.sandboxes.backends.bubblewrap import Bubblewrap
from agentrl.sandboxes.backends.docker_engine import Docker
from agentrl.sandboxes.backends.hosted import Hosted
from agentrl.sandboxes.backends.no_isolation import NoIsolation
from agentrl.sandboxes.sandbox import Sandbox
from agentrl.sandboxes.seams import DEFAULT_IMAGE, Backend, Limits, SandboxSpec

BackendName = Literal["auto", "docker", "bubblewrap", "UNSAFE_no_isolation"]
"""auto is the first of an order that works here; it never is the unsafe one."""

_BACKENDS: dict[str, Callable[[], Backend]] = {
    "docker": Docker,
    "bubblewrap": Bubblewrap,
    "UNSAFE_no_isolation": NoIsolation,
}
OWN_NAMES: tuple[str, ...] = get_args(BackendName)
GROUP = "agentrl.sandboxes"
"""Of the entry points."""
AUTO_ORDER: tuple[BackendName, ...] = ("docker", "bubblewrap")


async def choose_backend(name: str | Backend, spec: SandboxSpec, order: Sequence[BackendName] = AUTO_ORDER) -> Backend:
    """Return a backend, ready for sandboxes of `spec`.

    Args:
        name: The backend itself, or its name: one of agentrl's, or of an installed package.
        spec: The sandboxes that it is to start.
        order: What "auto" tries, in this order.

    Raises:
        SandboxError: It, or all of `order`, cannot be used.
        ConfigError: There is no backend of that name.
    """
    chosen = await in_thread(plugin_of_name, name) if isinstance(name, str) else name
    if not isinstance(chosen, str):
        await chosen.prepare(spec)
        return chosen
    reasons = []
    for candidate in order if chosen == "auto" else (chosen,):
        backend = _BACKENDS[candidate]()
        try:
            await backend.prepare(spec)
        except SandboxError as error:
            if chosen != "auto":
                raise
            reasons.append(f"{candidate}: {error}")
        else:
            return backend
    raise SandboxError("no sandbox backend works here. " + "; ".join(reasons))


def plugin_of_name(name: str) -> str | Backend:
    """Return the backend of the installed package that has one of this name; the name itself where it is one of agentrl's.

    A package names it by an entry point in the group `agentrl.sandboxes`.

    Raises:
        ConfigError: There is none of this name, or more than one, or it cannot be imported or made.
    """
    if name in OWN_NAMES:
        return name
    found = entry_points(group=GROUP)
    mine = [entry for entry in found if entry.name == name]
    if len(mine) != 1:
        known = ", ".join((*OWN_NAMES, *sorted({entry.name for entry in found})))
        raise ConfigError(
            f"backend = {name!r} is of {len(mine)} installed packages; use one of {known}, or python:FILE:FACTORY for one of yours"
        )
    where = f"backend = {name!r} ({mine[0].value})"
    try:
        factory = mine[0].load()
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{where} cannot be imported: {type(error).__name__}: {one_line(error)}") from error
    return make_backend(factory, where)


def make_backend(factory: Callable[[], Any], where: str) -> Backend:
    """Return the backend that a class or function makes, which is one, or a service of hosted sandboxes.

    Args:
        factory: It takes no arguments.
        where: The beginning of messages.

    Raises:
        ConfigError: It cannot be called, or what it makes is neither.
    """
    try:
        made = factory()
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{where} cannot be made: {type(error).__name__}: {one_line(error)}") from error
    if not isinstance(getattr(made, "name", None), str) or not callable(getattr(made, "start", None)):
        raise ConfigError(
            f"{where} made {type(made).__name__}; it needs a `name` and `async def start(spec)`, as agentrl.sandboxes.HostedService has them"
        )
    return made if hasattr(made, "prepare") else Hosted(made)


@asynccontextmanager
async def open_sandbox(
    *,
    image: str = DEFAULT_IMAGE,
    backend: str | Backend = "auto",
    limits: Limits | None = None,
    runtime: str | None = None,
) -> AsyncIterator[Sandbox]:
    """Yield a sandbox of its own, started now and destroyed at the end.

    For many, use a `SandboxPool`; in a workflow, `episode.sandbox()`.

        async with open_sandbox(backend="bubblewrap") as sandbox:
            await sandbox.write("main.py", "print(sum(map(int, input().split())))")
            done = await sandbox.run(["python3", "main.py"], stdin=b"1 2 3", timeout_s=2)

    Args:
        image: The Docker image that it shows, for backends that run images.
        backend: The backend, or its name.
        limits: What its programs may use.
        runtime: The OCI runtime of Docker, such as `runsc`.

    Raises:
        SandboxError: The backend cannot be used; it says what to do.
    """
    spec = SandboxSpec(image=image, limits=limits or Limits(), runtime=runtime)
    chosen = await choose_backend(backend, spec)
    async with chosen.start(spec) as sandbox:
        yield sandbox
