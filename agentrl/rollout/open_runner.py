"""Open what runs the episodes of a run: an engine, and what asks it, in this process or in worker processes.

open_hosts ──► open_engine: servers, or the address of some ──► open_rollout: proxy, sandboxes and the workflow
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path

from agentrl.config import RunConfig
from agentrl.config.machine import cpu_threads
from agentrl.engine import Engine
from agentrl.engine.adapters import role_folders
from agentrl.engine.client import EngineLimits, SGLangEngine
from agentrl.engine.client.reply import ReplyClient
from agentrl.engine.launch import launch_engine
from agentrl.errors import EngineError, WorkerError
from agentrl.models import model_name
from agentrl.proxy import ChatFormat, Proxy, ProxyLimits, load_chat_format, open_proxy
from agentrl.proxy.http_messages import Handle
from agentrl.rollout.episode_parts import open_run_sandboxes
from agentrl.rollout.run_episode import EpisodeRunner, local_runner, sampling_defaults
from agentrl.rollout.trained_conversations import load_trajectories
from agentrl.rollout.workers.pool import WorkerPool, open_workers
from agentrl.rollout.workflow import Workflow
from agentrl.system.files import scratch_directory
from agentrl.system.host import OpenHost, on_this_machine
from agentrl.system.imports import check_extra
from agentrl.system.tasks import in_thread

ERRORS_WITH_A_LOG = (EngineError, WorkerError)
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
        logs: Directory of `engine.log`. Default: one that is deleted at the end, unless that is an error of `ERRORS_WITH_A_LOG`.
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
            logs = await stack.enter_async_context(scratch_directory("agentrl-engine-", kept_after=ERRORS_WITH_A_LOG))
        folders = await in_thread(role_folders, Path(config.model.path))
        lora = config.trainer.lora if training or folders else None
        engine = await stack.enter_async_context(
            launch_engine(
                config.model.path,
                config.engine,
                log=logs / "engine.log",
                seed=config.seed if seed is None else seed,
                lora_rank=None if lora is None else lora.rank,
                adapters=max(1, len(folders or config.trainer.roles)),
                threads=cpu_threads(config, training=training),
                reply_timeout_s=max(EngineLimits.request_timeout_s, config.rollout.episode_timeout_s),
                open_host=open_host,
            )
        )
        if folders:
            await engine.update_weights(Path(config.model.path), engine.version)
        yield engine


Runner = EpisodeRunner | WorkerPool
"""What runs episodes: in this process, or in others."""


def chat_format_of(config: RunConfig) -> ChatFormat:
    """Return the chat format of a run's model. It blocks: call it in a thread.

    Raises:
        ConfigError: It cannot be loaded.
    """
    return load_chat_format(config.model.path, config.model.renderer, **config.model.renderer_options)


def open_model_proxy(
    config: RunConfig,
    engine: Engine,
    chat_format: ChatFormat,
    *,
    training: bool = False,
    session_idle_timeout_s: float | None = None,
    middleware: Callable[[Proxy], Handle] | None = None,
) -> AbstractAsyncContextManager[Proxy]:
    """Open the proxy of a configuration.

    Args:
        config: `model` and `proxy` are used.
        engine: What it asks.
        chat_format: That of the model.
        training: Whether what is recorded is to be trained on.
        session_idle_timeout_s: A session that no request came for is closed after this; None: never.
        middleware: As for `agentrl.proxy.open_proxy`.

    Returns:
        A context, in which the proxy takes requests.
    """
    return open_proxy(
        engine,
        chat_format,
        model_name(config.model.path),
        host=config.proxy.host,
        port=config.proxy.port,
        limits=ProxyLimits(session_idle_timeout_s=session_idle_timeout_s),
        training=training,
        adapters=tuple(config.trainer.roles),
        middleware=middleware,
    )


@asynccontextmanager
async def in_process_runner(
    config: RunConfig,
    workflow: Workflow,
    engine: Engine,
    *,
    chat_format: ChatFormat | None,
    training: bool,
    middleware: Callable[[Proxy], Handle] | None = None,
) -> AsyncIterator[EpisodeRunner]:
    """Yield a runner in this process, with a proxy in front of `engine` and sandboxes of its own."""
    rollout = config.rollout
    if chat_format is None:
        chat_format = await in_thread(chat_format_of, config, abandon_on_cancel=True)
    trajectories = await in_thread(load_trajectories, rollout.trajectories)
    async with (
        open_model_proxy(config, engine, chat_format, training=training, middleware=middleware) as proxy,
        open_run_sandboxes(config) as sandboxes,
        local_runner(
            workflow,
            proxy,
            timeout_s=rollout.episode_timeout_s,
            clock=engine.fleet.clock if isinstance(engine, ReplyClient) else time.monotonic,
            defaults=sampling_defaults(rollout),
            sandboxes=sandboxes,
            trajectories=trajectories,
        ) as runner,
    ):
        yield runner


@asynccontextmanager
async def open_rollout(
    config: RunConfig,
    workflow: Workflow,
    engine: Engine,
    *,
    chat_format: ChatFormat | None = None,
    training: bool = False,
    logs: Path,
    say: Callable[[str], None],
    open_host: OpenHost = on_this_machine,
    middleware: Callable[[Proxy], Handle] | None = None,
) -> AsyncIterator[Runner]:
    """Open the runner that `rollout.workers` asks for.

    Args:
        config: The run.
        workflow: The workflow; workers load it themselves.
        engine: What answers the model calls. Workers call its servers themselves.
        chat_format: That of the configuration's model, where it is loaded already.
        training: Whether what the episodes record is to be trained on.
        logs: Directory of the workers' logs.
        say: Takes what a user should read.
        open_host: Opens the machine of each worker.
        middleware: As for `agentrl.proxy.open_proxy`, of the proxy in this process. With workers there is one for its pages, at `proxy.port`.

    Raises:
        AgentRLError: The model's tokenizer cannot be loaded, or there is no sandbox.
        WorkerError: The engine is none that workers can call, or no worker can be started.
    """
    if config.rollout.workers == 0:
        async with in_process_runner(
            config, workflow, engine, chat_format=chat_format, training=training, middleware=middleware
        ) as runner:
            yield runner
    else:
        if not isinstance(engine, SGLangEngine):
            raise WorkerError(
                f"`rollout.workers` = {config.rollout.workers} needs an engine of servers, which workers call themselves, not a "
                f"{type(engine).__name__}; run the workflows in this process with `rollout.workers` = 0"
            )
        async with AsyncExitStack() as stack:
            opened = open_workers(config, engine, training=training, logs=logs, say=say, open_host=open_host)
            workers = await stack.enter_async_context(opened)
            if middleware and chat_format and config.proxy.port:  # for the pages alone: no session is opened in it
                await stack.enter_async_context(open_model_proxy(config, engine, chat_format, middleware=middleware))
            yield workers
