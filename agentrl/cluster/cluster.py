"""Join a Ray cluster, check that it has what a run needs, and start the actors of the run's processes on its nodes."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import ray

from agentrl.cluster.actors import NodeProcess, call_actor
from agentrl.cluster.files import ClusterFiles
from agentrl.cluster.host import RayHost
from agentrl.config import ClusterConfig, RunConfig
from agentrl.errors import ClusterError, ConfigError, NodeLostError, one_line
from agentrl.system.host import Host, OpenHost
from agentrl.system.tasks import in_thread

PLACE_TIMEOUT_S = 300.0
"""Bound of finding room for a process, and of starting its actor."""
PLACE_TRIES = 5
"""So many nodes may die, one after the other, with a process that was to start there."""
KINDS = {"RolloutWorker": "worker", "EngineServer": "server", "TrainerRank": "rank"}
"""Each role of a process, and what the keys of `[cluster]` call it."""
NOT_SENT = ["runs/", ".git/", ".venv/", "__pycache__/", "*.safetensors", "*.sqlite*", "*.log"]
"""What lies beside a workflow's file and does not travel with it."""


@asynccontextmanager
async def open_cluster(config: RunConfig) -> AsyncIterator[OpenHost]:
    """Join the cluster of `cluster.address` for the length of the context.

    Args:
        config: The run.

    Yields:
        What opens a node for each of its processes.

    Raises:
        ConfigError: There is no cluster, or it does not have what the run needs.
    """
    await in_thread(_join, config)
    files = ClusterFiles()
    try:
        await in_thread(check_room, config)
        yield _opener(config.cluster, files)
    finally:
        with anyio.CancelScope(shield=True):
            await files.close()
            await in_thread(ray.shutdown)


def _join(config: RunConfig) -> None:
    address = config.cluster.address
    runtime_env: dict[str, Any] = {}
    if config.workflow:
        runtime_env = {"working_dir": str(Path(config.workflow).absolute().parent), "excludes": NOT_SENT}
    logging.getLogger("ray").setLevel(logging.ERROR)  # it warns of the thread that joins, which is no user's concern
    try:
        ray.init(
            address=address,
            runtime_env=runtime_env,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
            include_dashboard=False if address == "local" else None,
        )
    except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError) as error:
        raise ConfigError(
            f"`cluster.address` = {address!r} cannot be joined: {one_line(error)}; start Ray there (`ray start --head`), or give "
            '"local", which starts it on this machine'
        ) from error


def check_room(config: RunConfig) -> None:
    """Check that the cluster has what a run needs, without regard to what else uses it now.

    Raises:
        ConfigError: It does not. The message names what is missing.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    servers = 0 if config.engine.urls else config.engine.servers
    ranks = config.trainer.ranks if config.cluster.rank else 0
    counts = {"RolloutWorker": config.rollout.workers, "EngineServer": servers, "TrainerRank": ranks}
    needs = {role: _resources(config.cluster, role) for role, count in counts.items() if count}
    for name in sorted({name for need in needs.values() for name, amount in need.items() if amount}):
        wanted = {role: need[name] for role, need in needs.items() if need.get(name)}
        total = sum(amount * counts[role] for role, amount in wanted.items())
        has = [node.get(name, 0) for node in nodes]
        if total > sum(has):
            each = ", ".join(f"{counts[role]} x {amount:g} of {role}" for role, amount in wanted.items())
            raise ConfigError(
                f"the run needs {total:g} {name}s ({each}), the cluster has {sum(has):g}; add nodes, or ask for less in `[cluster]`"
            )
        role, most = max(wanted.items(), key=lambda item: item[1])
        if most > max(has, default=0):
            raise ConfigError(
                f"one {role} needs {most:g} {name}s on one node, and the largest node has {max(has, default=0):g}; ask for less in `[cluster]`"
            )


def _resources(cluster: ClusterConfig, role: str) -> dict[str, float]:
    """Return what one process of a role takes, by the names of resources."""
    options = _options(cluster, role)
    return {"CPU": options["num_cpus"], "GPU": options.get("num_gpus", 0), **options.get("resources", {})}


def _options(cluster: ClusterConfig, role: str) -> dict[str, Any]:
    """Return Ray's options of the actor of a role."""
    return {"num_cpus": 1, **getattr(cluster, KINDS[role])}


def _opener(cluster: ClusterConfig, files: ClusterFiles) -> OpenHost:
    servers: list[RayHost] = []

    async def place(role: str, name: str) -> RayHost:
        for tries_left in reversed(range(PLACE_TRIES)):
            actor = await in_thread(_start_actor, cluster, role, name)
            try:
                found = await call_actor(actor.place.remote(), f"no node has room for the {name}", PLACE_TIMEOUT_S)
                scratch = await files.new_directory(found["node"])
                return RayHost(**found, actor=actor, scratch=scratch, files=files, servers=servers)
            except BaseException as error:
                with anyio.CancelScope(shield=True):
                    await in_thread(ray.kill, actor)
                # Ray may choose a node that has died and is not known to be dead yet: the next one will be another.
                if not (tries_left and isinstance(error, NodeLostError)):
                    raise
        raise AssertionError

    @asynccontextmanager
    async def open_host(role: str, name: str) -> AsyncIterator[Host]:
        host = await place(role, name)
        if role == "EngineServer":
            servers.append(host)
        try:
            yield host
        finally:
            servers[:] = [server for server in servers if server is not host]
            with anyio.CancelScope(shield=True):
                assert host.scratch is not None
                with suppress(ClusterError):
                    await host.remove(host.scratch)
                await in_thread(ray.kill, host.actor)

    return open_host


def _start_actor(cluster: ClusterConfig, role: str, name: str) -> Any:
    own = {"scheduling_strategy": "SPREAD", "max_concurrency": 1000, **_options(cluster, role)}
    return ray.remote(NodeProcess).options(name=f"{role}: {name} ({secrets.token_hex(4)})", **own).remote()
