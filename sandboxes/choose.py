"""Which backend a sandbox comes from, and the one sandbox that is opened without a pool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import entry_points
from typing import Any, Literal

from agentrl.errors import ConfigError, SandboxError, one_line
from agentrl.sandboxes.backends.bubblewrap import Bubblewrap
from agentrl.sandboxes.backends.docker_backend import Docker
from agentrl.sandboxes.backends.hosted import Hosted
from agentrl.sandboxes.backends.process_link import NoIsolation
from agentrl.sandboxes.sandbox import DEFAULT_IMAGE, Backend, Limits, Sandbox, SandboxSpec
from agentrl.system.tasks import in_thread

BackendName = Literal["auto", "docker", "bubblewrap", "UNSAFE_no_isolation"]
"""auto is the first of an order that works here; it never is the unsafe one."""

AUTO_ORDER: tuple[BackendName, ...] = ("docker", "bubblewrap")
_BACKENDS: dict[str, Callable[[], Backend]] = {
    "docker": Docker,
    "bubblewrap": Bubblewrap,
    "UNSAFE_no_isolation": NoIsolation,
}


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
    reasons = []
    for candidate in order if name == "auto" else (name,):
        backend = await in_thread(named_backend, candidate) if isinstance(candidate, str) else candidate
        try:
            await backend.prepare(spec)
        except SandboxError as error:
            reasons.append(f"{backend.name}: {error}")
        else:
            return backend
    raise SandboxError(("no sandbox backend works here. " if name == "auto" else "") + "; ".join(reasons))


def named_backend(name: str, load_object: Callable[[str], Any] | None = None) -> Backend:
    """Return a backend of agentrl's, of an installed package, or of the user's, which may be a service of hosted sandboxes.

    Args:
        name: "docker" and the like; an entry point of the group `agentrl.sandboxes`; or `python:FILE_OR_MODULE:FACTORY`, where
            FACTORY is a class or function without arguments.
        load_object: Loads what such a path names; None: there can be none of these.

    Raises:
        ConfigError: There is none of this name, or it cannot be loaded.
    """
    if name in _BACKENDS:
        return _BACKENDS[name]()
    installed = {entry.name: entry for entry in entry_points(group="agentrl.sandboxes")}
    path = name.removeprefix("python:")
    if name not in installed and (load_object is None or path == name or ":" not in path):
        known = ", ".join(("auto", *_BACKENDS, *sorted(installed)))
        raise ConfigError(
            f"backend = {name!r} is none; use one of {known}, or a Backend of yours (in `sandbox.backend`: python:FILE_OR_MODULE:FACTORY)"
        )
    where = f" ({installed[name].value})" if name in installed else ""
    try:
        made = (installed[name].load() if name in installed else load_object(path))()  # type: ignore[misc]
        return made if hasattr(made, "prepare") else Hosted(made)
    except Exception as error:
        raise ConfigError(
            f"backend = {name!r}{where} cannot be loaded: {type(error).__name__}: {one_line(error)}; it is to be a class or function without "
            "arguments, and to make what has a `name` and `async def start(spec)`, as agentrl.sandboxes.HostedService"
        ) from error


@asynccontextmanager
async def open_sandbox(
    *,
    image: str = DEFAULT_IMAGE,
    backend: str | Backend = "auto",
    limits: Limits | None = None,
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

    Raises:
        SandboxError: The backend cannot be used; it says what to do.
    """
    spec = SandboxSpec(image=image, limits=limits or Limits())
    chosen = await choose_backend(backend, spec)
    async with chosen.start(spec) as sandbox:
        yield sandbox
