"""Join a Ray cluster, see that it has what a run needs, and open its nodes for the run's processes."""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import anyio
import ray
from ray.exceptions import ActorDiedError

from agentrl.cluster.answers import answered
from agentrl.cluster.brought import Brought
from agentrl.cluster.node_process import NodeProcess
from agentrl.cluster.ray_host import RayHost
from agentrl.concurrency.host import Host, OpenHost
from agentrl.concurrency.threads import in_thread
from agentrl.config import ClusterConfig, RunConfig
from agentrl.errors import AgentRLError, ConfigError, one_line

PLACE_TIMEOUT_S = 300.0
"""Bound of finding room for a process, and of starting its actor."""
PLACE_TRIES = 5
"""So many nodes may die, one after the other, with a process that was to start there."""
CLOSE_TIMEOUT_S = 20.0
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
    try:
        await in_thread(check_room, config)
        yield _opener(config.cluster, uuid.uuid4().hex[:12])
    finally:
        with anyio.CancelScope(shield=True):
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
    """Check that the cluster has what a run needs, whatever else uses it now.

    Raises:
        ConfigError: It does not. The message names what is missing.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    servers = 0 if config.engine.urls else config.engine.servers
    ranks = config.trainer.ranks if config.cluster.ranks_on_nodes else 0
    roles = {"RolloutWorker": config.cluster.rollout_workers, "EngineServer": servers, "TrainerRank": ranks}
    needs = {role: _needs(config.cluster, role) for role in roles}
    for name in sorted({name for need in needs.values() for name in need}):
        total = sum(needs[role].get(name, 0) * count for role, count in roles.items())
        has = sum(node.get(name, 0) for node in nodes)
        each = ", ".join(
            f"{count} x {needs[role][name]:g} of {role}"
            for role, count in roles.items()
            if count and needs[role].get(name)
        )
        if total > has:
            raise ConfigError(
                f"the run needs {total:g} {name}s ({each}), the cluster has {has:g}; add nodes, or ask for less in `[cluster]`"
            )
        largest = max((node.get(name, 0) for node in nodes), default=0)
        for role, need in needs.items():
            if roles[role] and need.get(name, 0) > largest:
                raise ConfigError(
                    f"one {role} needs {need[name]:g} {name}s on one node, and the largest node has {largest:g}; ask for less in `[cluster]`"
                )


def _needs(cluster: ClusterConfig, role: str) -> dict[str, float]:
    """Return what one process of a role takes, by the names of resources."""
    if role == "TrainerRank":
        own = {"CPU": cluster.cpus_per_rank, "GPU": float(cluster.gpus_per_rank), **cluster.rank_resources}
    elif role == "EngineServer":
        own = {"CPU": cluster.cpus_per_server, "GPU": float(cluster.gpus_per_server), **cluster.server_resources}
    else:
        own = {"CPU": cluster.cpus_per_worker, **cluster.worker_resources}
    return {name: amount for name, amount in own.items() if amount}


def _opener(cluster: ClusterConfig, run: str) -> Callable[[str, str], AbstractAsyncContextManager[Host]]:
    brought = Brought()

    @asynccontextmanager
    async def open_host(role: str, name: str) -> AsyncIterator[Host]:
        for tries_left in reversed(range(PLACE_TRIES)):
            actor = await in_thread(_start_actor, cluster, role, name, run)
            try:
                facts = await answered(actor.facts.remote(), f"no node has room for the {name}", PLACE_TIMEOUT_S)
                break
            except BaseException as error:
                with anyio.CancelScope(shield=True):
                    await in_thread(ray.kill, actor)
                # Ray may choose a node that has died and is not known to be dead yet: the next one will be another.
                if not (tries_left and isinstance(error.__cause__, ActorDiedError)):
                    raise
        try:
            yield RayHost(
                name=f"node {facts['address']} ({facts['node'][:8]})",
                actor=actor,
                node=facts["node"],
                address=facts["address"],
                python=facts["python"],
                scratch=Path(facts["scratch"]),
                package=Path(facts["package"]),
                work=Path(facts["work"]),
                brought=brought,
            )
        finally:
            with anyio.CancelScope(shield=True):
                with suppress(AgentRLError):
                    await answered(actor.close.remote(), f"the {name} does not end", CLOSE_TIMEOUT_S)
                await in_thread(ray.kill, actor)

    return open_host


@cache
def _actor_class(role: str) -> Any:
    """Return the class of a role's actors: the same for all roles but for its name, which Ray's tools show."""
    return ray.remote(type(role, (NodeProcess,), {"__doc__": NodeProcess.__doc__}))


def _start_actor(cluster: ClusterConfig, role: str, name: str, run: str) -> Any:
    needs = _needs(cluster, role)
    labels = {
        "EngineServer": cluster.server_labels,
        "RolloutWorker": cluster.worker_labels,
        "TrainerRank": cluster.rank_labels,
    }[role]
    return (
        _actor_class(role)
        .options(
            name=f"{name} {run} {uuid.uuid4().hex[:8]}",
            num_cpus=needs.pop("CPU", 0),
            num_gpus=math.ceil(needs.pop("GPU", 0)),
            resources=needs,
            label_selector=labels or None,
            scheduling_strategy="SPREAD",
            max_concurrency=1000,
        )
        .remote(run)
    )
