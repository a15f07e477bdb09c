"""Open the engine that a run, an evaluation or a service has its episodes ask, and the machines that its processes are on.

open_hosts ──► open_engine: servers, or the address of some ──► agentrl.rollout.open_runner.open_rollout: proxy, sandboxes, runner
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path

from agentrl.config import RunConfig
from agentrl.engine.adapter_folders import role_folders
from agentrl.engine.client.sglang import SGLangEngine
from agentrl.engine.launch import launch_engine
from agentrl.errors import EngineError, WorkerError
from agentrl.system.files import scratch_directory
from agentrl.system.host import OpenHost, on_this_machine
from agentrl.system.imports import check_extra
from agentrl.system.tasks import in_thread

NAME_A_LOG = (EngineError, WorkerError)
"""Errors whose messages name the log of a process that was started here."""


def open_hosts(config: RunConfig) -> AbstractAsyncContextManager[OpenHost]:
    """Return a context of what opens the machines of a run's processes: the nodes of its cluster, or this one."""
    if not config.cluster.address:
        return nullcontext(on_this_machine)
    check_extra("cluster", "`cluster.address`")
    from agentrl.cluster.cluster import open_cluster

    return open_cluster(config)


@asynccontextmanager
async def open_engine(
    config: RunConfig,
    *,
    logs: Path | None = None,
    seed: int | None = None,
    training: bool = False,
    open_host: OpenHost = on_this_machine,
) -> AsyncIterator[SGLangEngine]:
    """Serve the model of a configuration for the length of the context.

    Args:
        config: `model`, `engine` and `trainer.lora` are used. A checkpoint is served with the adapters of the roles that it holds.
        logs: Directory of `engine.log`. Default: one that is deleted at the end, unless that is an error of `NAME_A_LOG`.
        seed: What the engine samples by. Default: `config.seed`.
        training: Whether the weights are to be updated, for which room is made where they are an adapter.
        open_host: Opens the machine of each server that is started.

    Yields:
        The engine.

    Raises:
        AgentRLError: It cannot be started.
    """
    async with AsyncExitStack() as stack:
        if logs is None:
            logs = await stack.enter_async_context(scratch_directory("agentrl-engine-", kept_after=NAME_A_LOG))
        held = await in_thread(role_folders, Path(config.model.path))
        lora = config.trainer.lora if training or held else None
        engine = await stack.enter_async_context(
            launch_engine(
                config.model.path,
                config.engine,
                log=logs / "engine.log",
                seed=config.seed if seed is None else seed,
                lora_rank=None if lora is None else lora.rank,
                adapters=max(1, len(held or config.trainer.roles)),
                open_host=open_host,
            )
        )
        if held:
            await engine.update_weights(Path(config.model.path), engine.version)
        yield engine
