"""Open what runs the episodes of a run, in this process or in worker processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from agentrl.config import RunConfig
from agentrl.engine import Engine
from agentrl.engine.client.sglang import SGLangEngine
from agentrl.errors import WorkerError
from agentrl.proxy import ChatFormat
from agentrl.rollout.local_runner import in_process_runner
from agentrl.rollout.run_episode import Runner
from agentrl.rollout.workers.pool import open_workers
from agentrl.rollout.workflow import Workflow
from agentrl.system.host import OpenHost, on_this_machine


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

    Raises:
        AgentRLError: The model's tokenizer cannot be loaded, or there is no sandbox.
        WorkerError: No worker can be started.
    """
    if config.rollout.workers == 0:
        async with in_process_runner(config, workflow, engine, chat_format=chat_format, training=training) as runner:
            yield runner
    else:
        if not isinstance(engine, SGLangEngine):
            raise WorkerError(
                f"`rollout.workers` = {config.rollout.workers} needs an engine of servers, which workers call themselves, not a "
                f"{type(engine).__name__}; run the workflows in this process with `rollout.workers` = 0"
            )
        async with open_workers(config, engine, training=training, logs=logs, say=say, open_host=open_host) as workers:
            yield workers
