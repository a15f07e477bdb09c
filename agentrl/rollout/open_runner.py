"""Open what runs the episodes of a run: a proxy in front of an engine, sandboxes and the workflow, in this process or in worker processes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

from agentrl.config import RunConfig
from agentrl.engine import Engine
from agentrl.engine.client.reply_client import ReplyClient
from agentrl.engine.client.sglang import SGLangEngine
from agentrl.errors import WorkerError
from agentrl.models import model_name
from agentrl.proxy import ChatFormat, Proxy, ProxyLimits, load_chat_format, open_proxy
from agentrl.proxy.http_door import Handle
from agentrl.rollout.episode_parts import open_run_sandboxes
from agentrl.rollout.run_episode import EpisodeRunner, local_runner, sampling_defaults
from agentrl.rollout.trained_roots import load_trajectories
from agentrl.rollout.workers.pool import WorkerPool, open_workers
from agentrl.rollout.workflow import Workflow
from agentrl.system.host import OpenHost, on_this_machine
from agentrl.system.tasks import in_thread

Runner = EpisodeRunner | WorkerPool
"""What runs episodes: in this process, or in others."""


def chat_format_of(config: RunConfig) -> ChatFormat:
    """Return the chat format of a run's model. It blocks: call it in a thread.

    Raises:
        ConfigError: It cannot be loaded.
    """
    model, spelled = config.model, config.proxy.control_tokens_in_text
    return load_chat_format(model.path, model.renderer, control_tokens_in_text=spelled, **model.renderer_options)


def open_model_proxy(
    config: RunConfig,
    engine: Engine,
    chat_format: ChatFormat,
    *,
    training: bool = False,
    middleware: Callable[[Proxy], Handle] | None = None,
) -> AbstractAsyncContextManager[Proxy]:
    """Open the proxy of a configuration.

    Args:
        config: `model` and `proxy` are used.
        engine: What it asks.
        chat_format: That of the model.
        training: Whether what is recorded is to be trained on.
        middleware: As for `agentrl.proxy.open_proxy`.

    Returns:
        A context, in which the proxy takes requests.
    """
    own = config.proxy
    limits = ProxyLimits(**own.model_dump(exclude={"host", "port", "control_tokens_in_text"}))
    name = model_name(config.model.path)
    return open_proxy(
        engine,
        chat_format,
        name,
        host=own.host,
        port=own.port,
        limits=limits,
        training=training,
        refuse_altered=training and config.trainer.turns.altered_sampling == "refuse",
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
            cancel_timeout_s=rollout.cancel_timeout_s,
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
    """Yield the runner that `rollout.workers` asks for, for the length of the context.

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
        WorkerError: No worker can be started.
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
            if (
                middleware and chat_format and config.proxy.port
            ):  # no session is opened in it: it has the middleware's pages
                await stack.enter_async_context(open_model_proxy(config, engine, chat_format, middleware=middleware))
            yield workers
