"""Open what a run, an evaluation, a replay or a service needs to have episodes run on a model.

open_model      engine                                         (its log: in the run's directory, or in one that is deleted again)
open_rollout    engine ◄── proxy ◄── runner ──► sandboxes, environments         `rollout.workers` may have the last four elsewhere
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from agentrl.concurrency.host import OpenHost, on_this_machine
from agentrl.concurrency.scratch import scratch_directory
from agentrl.concurrency.threads import in_thread
from agentrl.config import RunConfig
from agentrl.engine.adapter_folders import role_folders
from agentrl.engine.client.sglang import SGLangEngine
from agentrl.engine.launch import open_engine
from agentrl.errors import EngineError, WorkerError
from agentrl.machine.extras import check_extra
from agentrl.proxy import ChatFormat
from agentrl.rollout.open_runner import open_runner
from agentrl.rollout.run_episode import Runner
from agentrl.rollout.workflow import Workflow

NAME_A_LOG = (EngineError, WorkerError)
"""Errors whose messages name the log of a process that was started here."""


@dataclass(frozen=True)
class Rollout:
    """A model that is served, and what runs episodes on it."""

    engine: SGLangEngine
    runner: Runner
    open_host: OpenHost
    """Opens the machine of another process of the run."""


def open_hosts(config: RunConfig) -> AbstractAsyncContextManager[OpenHost]:
    """Return a context of what opens the machines of a run's processes: the nodes of its cluster, or this one."""
    if not config.cluster.address:
        return nullcontext(on_this_machine)
    check_extra("cluster", "`cluster.address`")
    from agentrl.cluster.cluster import open_cluster

    return open_cluster(config)


@asynccontextmanager
async def open_model(
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
            open_engine(
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


@asynccontextmanager
async def open_rollout(
    config: RunConfig,
    workflow: Workflow,
    chat_format: ChatFormat,
    *,
    logs: Path | None = None,
    seed: int | None = None,
    training: bool = False,
    say: Callable[[str], None],
) -> AsyncIterator[Rollout]:
    """Serve the model of a configuration, and open what runs episodes of a workflow on it, for the length of the context.

    Args:
        config: The configuration, as `check_start` returns it.
        workflow: What an episode runs. Workers load it themselves.
        chat_format: That of the model.
        logs: Directory of the engine's and the workers' logs. Default: one that is deleted at the end, unless that is an error of
            `NAME_A_LOG`.
        seed: What the engine samples by. Default: `config.seed`.
        training: Whether what the episodes record is to be trained on, and the weights to be updated.
        say: It takes what a user should read.

    Yields:
        The engine and the runner.

    Raises:
        AgentRLError: Something cannot be started.
    """
    async with AsyncExitStack() as stack:
        if logs is None:
            logs = await stack.enter_async_context(scratch_directory("agentrl-rollout-", kept_after=NAME_A_LOG))
        open_host = await stack.enter_async_context(open_hosts(config))
        engine = await stack.enter_async_context(
            open_model(config, logs=logs, seed=seed, training=training, open_host=open_host)
        )
        opened = open_runner(
            config,
            workflow,
            engine,
            chat_format=chat_format,
            training=training,
            logs=logs,
            say=say,
            open_host=open_host,
        )
        runner = await stack.enter_async_context(opened)
        yield Rollout(engine, runner, open_host)
