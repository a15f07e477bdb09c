"""The program of a worker process: a proxy, the workflow, and the episodes that the main process sends.

Three lines lead to the main process. Over the channel go episodes, replies to keep and beats, from the event loop. On
standard input, a thread waits: a line asks what the event loop is doing, its end ends the process, also when the loop is
blocked. What anybody prints goes to the log.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import anyio
from anyio.abc import SocketStream, TaskGroup

from agentrl.concurrency.event_loop import end_process, run_loop
from agentrl.config import RunConfig
from agentrl.errors import AgentRLError
from agentrl.machine.garbage import settled
from agentrl.record.end_reason import EndReason
from agentrl.rollout.open_runner import in_process_runner
from agentrl.rollout.run_episode import EpisodeRunner
from agentrl.rollout.worker_channel import (
    GONE,
    Beat,
    Cancel,
    Channel,
    Done,
    EngineChanged,
    Failed,
    FrameTooLargeError,
    Ready,
    Refused,
    Run,
    Start,
)
from agentrl.rollout.worker_engine import KeptReplies, MainEngine, WorkerCallLog, main_engine
from agentrl.rollout.worker_stack import loop_stack
from agentrl.rollout.workflow import load_workflow
from agentrl.store.outcome import Outcome

STOP_TIMEOUT_S = 8.0
"""How long episodes may take to end after standard input closed; then the process kills itself and all that it started."""
EPISODE: ContextVar[int | None] = ContextVar("agentrl_episode", default=None)
"""The episode that a task belongs to; tasks hand it on to those that they start."""


@dataclass(eq=False)
class _Worker:
    channel: Channel
    engine: MainEngine
    replies: KeptReplies
    runner: EpisodeRunner
    tasks: TaskGroup
    scopes: dict[int, anyio.CancelScope] = field(default_factory=dict)

    async def serve(self) -> None:
        """Do what the main process says, until it is gone."""
        while (frame := await self.channel.receive()) is not None:
            match frame:
                case Run():
                    self.scopes[frame.episode] = anyio.CancelScope()
                    self.tasks.start_soon(self._run, frame)
                case Cancel() if frame.episode in self.scopes:
                    self.scopes[frame.episode].cancel()
                case EngineChanged():
                    await self.engine.take(frame.state, self.tasks)
                case Done() | Failed():
                    self.replies.on_answer(frame)

    async def _run(self, frame: Run) -> None:
        EPISODE.set(frame.episode)
        with self.scopes[frame.episode]:
            runner = replace(self.runner, defaults=frame.defaults)
            call_log = WorkerCallLog.of(self.replies, frame)
            outcome = await runner.run(frame.task, frame.seed, frame.group_seed, call_log)
            with suppress(*GONE):
                try:
                    await self.channel.send(call_log.ended(outcome))
                except FrameTooLargeError as error:
                    text = f"its record cannot be sent to the main process: {error}"
                    failed = Outcome(status=EndReason.WORKER, error=text)
                    await self.channel.send(call_log.ended(failed))
        del self.scopes[frame.episode]

    async def beat(self, every_s: float) -> None:
        """Tell the main process again and again that the event loop turns."""
        with suppress(*GONE):
            while True:
                await self.channel.send(Beat(self.runner.metrics()))
                await self.engine.report()
                await anyio.sleep(every_s)


async def _work(connection: socket.socket, on_start: Callable[[anyio.CancelScope], None]) -> None:
    channel = Channel(await SocketStream.from_socket(connection))
    start = await channel.receive()
    if not isinstance(start, Start):
        return  # the main process is gone
    sys.path += [path for path in start.import_path if path not in sys.path]
    config = RunConfig.model_validate(start.config)
    try:
        workflow = load_workflow(Path(config.workflow))
        async with (
            AsyncExitStack() as context,
            main_engine(channel, start.state) as engine,
            in_process_runner(config, workflow, engine.engine, chat_format=None, training=start.training) as runner,
            anyio.create_task_group() as tasks,
        ):
            context.enter_context(settled())
            await channel.send(Ready())
            on_start(tasks.cancel_scope)
            replies = KeptReplies(channel)
            worker = _Worker(channel, engine, replies, runner, tasks)
            tasks.start_soon(engine.report_losses)
            tasks.start_soon(worker.beat, start.beat_s)
            await worker.serve()
            tasks.cancel_scope.cancel()
    except AgentRLError as error:
        with suppress(*GONE):
            await channel.send(Refused(type(error).__name__, str(error)))
    except GONE:
        return  # the main process is gone


def _obey(questions: IO[str], answers: IO[str], stop: Callable[[], None]) -> None:
    """Answer on `answers` what the event loop is doing, whenever a line asks for it; end the process when there are no more."""
    for _ in questions:
        stack = loop_stack()
        episode = stack.context.get(EPISODE) if stack.context else None
        answers.write(json.dumps({"episode": episode, "where": stack.where, "traceback": stack.traceback}) + "\n")
        answers.flush()
    stop()
    time.sleep(STOP_TIMEOUT_S)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main() -> None:
    """Work until standard input, or the channel, closes."""
    parent = os.getppid()
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    # What the workflow, or a program that it starts, reads or prints must not mix with what is said here.
    questions, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # says what blocks while nothing can run Python
    running: list[Callable[[], object]] = []

    def stop() -> None:
        if not running:
            os.killpg(os.getpgrp(), signal.SIGKILL)
        with suppress(RuntimeError):  # the loop has ended already
            running[0]()

    async def work() -> None:
        loop = asyncio.get_running_loop()

        def on_start(scope: anyio.CancelScope) -> None:
            running.append(lambda: loop.call_soon_threadsafe(scope.cancel))

        await _work(connection, on_start)

    threading.Thread(target=_obey, args=(questions, answers, stop), daemon=True).start()
    run_loop(work)
    sys.stdout.flush()
    if os.getppid() != parent:  # nobody else is left to end what the workflow started
        os.killpg(os.getpgrp(), signal.SIGKILL)
    end_process(0)


if __name__ == "__main__":
    main()
