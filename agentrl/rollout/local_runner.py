"""Open what runs episodes in this process: a proxy in front of an engine, sandboxes and the workflow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from agentrl.config import RolloutConfig, RunConfig
from agentrl.engine import Engine
from agentrl.models import model_name
from agentrl.proxy import ChatFormat, Proxy, ProxyLimits, SamplingDefaults, load_chat_format, open_proxy
from agentrl.proxy.http_door import Handle
from agentrl.rollout.episode_parts import open_run_sandboxes
from agentrl.rollout.run_episode import EpisodeRunner, local_runner
from agentrl.rollout.trained_roots import load_trajectories
from agentrl.rollout.workflow import Workflow
from agentrl.system.tasks import in_thread


def chat_format_of(config: RunConfig) -> ChatFormat:
    """Return the chat format of a run's model. It blocks: call it in a thread.

    Raises:
        ConfigError: It cannot be loaded.
    """
    model, spelled = config.model, config.proxy.control_tokens_in_text
    return load_chat_format(model.path, model.renderer, control_tokens_in_text=spelled, **model.renderer_options)


def sampling_defaults(rollout: RolloutConfig) -> SamplingDefaults:
    """Return how a request of a run's episode that does not say is sampled."""
    return SamplingDefaults(temperature=rollout.temperature, top_p=rollout.top_p, max_tokens=rollout.max_tokens)


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
    config: RunConfig, workflow: Workflow, engine: Engine, *, chat_format: ChatFormat | None, training: bool
) -> AsyncIterator[EpisodeRunner]:
    """Yield a runner in this process, with a proxy in front of `engine` and sandboxes of its own."""
    rollout = config.rollout
    if chat_format is None:
        chat_format = await in_thread(chat_format_of, config, abandon_on_cancel=True)
    trajectories = await in_thread(load_trajectories, rollout.trajectories)
    async with (
        open_model_proxy(config, engine, chat_format, training=training) as proxy,
        open_run_sandboxes(config) as sandboxes,
        local_runner(
            workflow,
            proxy,
            timeout_s=rollout.episode_timeout_s,
            cancel_timeout_s=rollout.cancel_timeout_s,
            defaults=sampling_defaults(rollout),
            sandboxes=sandboxes,
            trajectories=trajectories,
        ) as runner,
    ):
        yield runner
