"""What runs a run's episodes: its proxy, its sandboxes and its workflow, in this process or in worker processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from agentrl.concurrency.threads import in_thread
from agentrl.config import ModelConfig, RunConfig
from agentrl.engine import Engine
from agentrl.episode import Task
from agentrl.errors import ConfigError, TaskFileError
from agentrl.models import model_name
from agentrl.proxy import ChatFormat, ProxyLimits, SamplingDefaults, load_chat_format, open_proxy
from agentrl.rollout.episode_parts import open_run_sandboxes
from agentrl.rollout.run_episode import EpisodeRunner, Runner, local_runner
from agentrl.rollout.tasks import TaskList, Tasks
from agentrl.rollout.workflow import Workflow


async def chat_format_of(model: ModelConfig) -> ChatFormat:
    """The chat format of a run's model, read in a thread. Raises ConfigError."""
    return await in_thread(
        lambda: load_chat_format(model.path, model.renderer, **model.renderer_options), abandon_on_cancel=True
    )


@asynccontextmanager
async def open_runner(
    config: RunConfig,
    workflow: Workflow,
    engine: Engine,
    *,
    chat_format: ChatFormat | None = None,
    training: bool = False,
    logs: Path,
    say: Callable[[str], None],
) -> AsyncIterator[Runner]:
    """The runner that `rollout.workers` asks for, for the length of the context.

    `chat_format`: that of the configuration's model, where it is loaded already. With `training` what the episodes record is to be
    trained on. Workers write their logs into the directory `logs`; `say` takes what a user should read. Raises AgentRLErrors.
    """
    if config.rollout.workers == 0:
        async with in_process_runner(config, workflow, engine, chat_format=chat_format, training=training) as runner:
            yield runner
    else:
        from agentrl.rollout.worker_pool import open_workers

        async with open_workers(config, engine, training=training, logs=logs, say=say) as workers:
            yield workers


@asynccontextmanager
async def in_process_runner(
    config: RunConfig, workflow: Workflow, engine: Engine, *, chat_format: ChatFormat | None, training: bool
) -> AsyncIterator[EpisodeRunner]:
    """A runner in this process, with a proxy in front of `engine` and sandboxes of its own."""
    model, rollout = config.model, config.rollout
    if chat_format is None:
        chat_format = await chat_format_of(config.model)
    defaults = SamplingDefaults(temperature=rollout.temperature, top_p=rollout.top_p, max_tokens=rollout.max_tokens)
    async with (
        open_proxy(
            engine,
            chat_format,
            model_name(model.path),
            host=config.proxy.host,
            port=config.proxy.port,
            limits=ProxyLimits(**config.proxy.model_dump(exclude={"host", "port"})),
            training=training,
        ) as proxy,
        open_run_sandboxes(config) as sandboxes,
        local_runner(
            workflow,
            proxy,
            timeout_s=rollout.episode_timeout_s,
            cancel_timeout_s=rollout.cancel_timeout_s,
            defaults=defaults,
            sandboxes=sandboxes,
        ) as runner,
    ):
        yield runner


def check_for_workers(workflow: Workflow | None, tasks: Tasks, held_out: Sequence[Task]) -> None:
    """Raise ConfigError for a workflow, and TaskFileError for a task, that cannot be sent to a worker process.

    The tasks of a stream are not known yet: one that cannot be sent fails its episodes.
    """
    from agentrl.rollout.worker_channel import is_json

    if workflow is not None:
        raise ConfigError(
            "rollout.workers runs the workflow in other processes, which load it from a file: name the file with `workflow` in "
            "the configuration instead of passing a function, or set rollout.workers = 0"
        )
    known = tasks.tasks if isinstance(tasks, TaskList) else []
    for kind, sequence in (("task", known), ("held-out task", held_out)):
        for index, task in enumerate(sequence):
            if not is_json(task):
                raise TaskFileError(unsendable(f"{kind} {index}", task))


def unsendable(name: str, task: Task) -> str:
    """Why a task cannot be sent to a worker process."""
    from agentrl.rollout.worker_channel import is_json

    key = next((key for key, value in task.items() if not is_json({key: value})), None)
    value = type(task[key]).__name__ if key is not None else "value"
    return (
        f"{name} cannot be sent to a worker process: its field {key!r} ({value}) is not plain JSON; write it as JSON values, or "
        "set rollout.workers = 0"
    )
