"""Open what episodes need beside a model: environments and sandboxes.

It is the composition root of episodes, the one place where the SDK imports either; all others are given what is opened here.

It lies here, and not with the commands, because each process that runs episodes begins with it: a run, an evaluation, a replay, a
service, a checker, and a worker process, which has nobody above it to be given anything by. Both are imported when they are opened,
in a thread: gymnasium takes a while, and workflows ask for environments in the event loop.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import ModuleType
from typing import Any, Literal

from agentrl.config import RunConfig
from agentrl.episode import EnvFactory, EpisodeSandboxes
from agentrl.system.imports import load_object
from agentrl.system.tasks import in_thread, in_users_thread, open_resources


@asynccontextmanager
async def open_environments() -> AsyncIterator[EnvFactory]:
    """Yield what makes the environments of episodes. What several of them share is open as long as this is."""
    envs = await in_thread(_import_envs)
    async with open_resources() as resources:
        yield partial(envs.AsyncToolEnv, resources=resources)


@asynccontextmanager
async def open_run_sandboxes(config: RunConfig) -> AsyncIterator[EpisodeSandboxes]:
    """Yield the sandboxes of a run. Nothing is started before an episode asks for one."""
    sandboxes = await in_thread(_import_sandboxes)
    options = config.sandbox
    limits = sandboxes.Limits(memory_mb=options.memory_mb)
    workers = max(1, config.rollout.workers)  # each has its share of the run's sandboxes
    async with sandboxes.open_sandboxes(
        sandboxes.SandboxSpec(image=options.image, limits=limits),
        backend=await load_backend(options.backend),
        order=backend_order(config),
        graders=max(2, math.ceil(sandboxes.pool.default_size() / workers)),
        leases=math.ceil(config.rollout.max_concurrent / workers),
    ) as opened:
        yield opened


def backend_order(config: RunConfig) -> Sequence[Literal["bubblewrap", "docker"]]:
    """Return the backends of sandboxes that "auto" tries, in this order."""
    return ("bubblewrap", "docker") if config.engine.kind == "embedded" else ("docker", "bubblewrap")


async def load_backend(name: str) -> Any:
    """Return what `sandbox.backend` stands for: "auto", or a new `Backend` of agentrl's, of a package or of the user's.

    Raises:
        ConfigError: There is none of that name, or it cannot be loaded.
    """
    if name == "auto":
        return name
    sandboxes = await in_thread(_import_sandboxes)
    return await in_users_thread(sandboxes.choose.named_backend, name, load_object)


def _import_envs() -> ModuleType:
    from agentrl import envs

    return envs


def _import_sandboxes() -> ModuleType:
    from agentrl import sandboxes

    return sandboxes
