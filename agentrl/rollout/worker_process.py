"""The program of a worker process: a proxy, the workflow, and the episodes that the main process sends.

run(episode) ─► proxy ─► ReplicaEngine ─HTTP─► servers        main process
                  │             └── Report, ServerFailed ──►  FleetChanged ──► ReplicaEngine
                  └► WorkerCallLog ── SendCall ────────────►  store ── Committed ──► proxy

The process ends when its connection or its standard input does, and when its event loop is blocked for too long: a timer
that needs no Python then writes all stacks to the log and exits. All that is printed in it goes to the log.
"""

from __future__ import annotations

import faulthandler
import gc
import itertools
import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio.abc import ByteStream, SocketStream, TaskGroup

from agentrl.config import RunConfig
from agentrl.engine.client.replica import ReplicaEngine, replica_engine
from agentrl.errors import AgentRLError, EpisodeError
from agentrl.record.end_reason import EndReason
from agentrl.record.recorded_choice import CallLog, Key, RecordedChoice
from agentrl.record.trajectory import TokenRecord
from agentrl.rollout.open_runner import in_process_runner
from agentrl.rollout.run_episode import EpisodeRunner
from agentrl.rollout.workers import protocol
from agentrl.rollout.workflow import load_workflow
from agentrl.store.outcome import Outcome
from agentrl.store.rows import choice_of, pack, row_of
from agentrl.system import traces
from agentrl.system.event_loop import end_process, run_loop
from agentrl.system.this_process import settled

REPORT_EVERY_S = 1.0
STOP_TIMEOUT_S = 8.0
"""How long episodes may take to end after standard input closed; then the process kills itself and all that it started."""


@dataclass(eq=False)
class EpisodeServer:
    """The episodes of a worker process, and its end of the connection."""

    connection: protocol.Connection[protocol.ToWorker]
    engine: ReplicaEngine
    runner: EpisodeRunner
    tasks: TaskGroup
    hang_timeout_s: float
    _running: dict[int, anyio.CancelScope] = field(default_factory=dict)
    committing: dict[int, anyio.Event] = field(default_factory=dict)
    """Set when the reply of this number is in the store."""
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def take(self, frame: protocol.ToWorker) -> None:
        """Do what the main process asks."""
        match frame:
            case protocol.Run():
                self._running[frame.episode] = anyio.CancelScope()
                self.tasks.start_soon(self._run, frame)
            case protocol.Cancel() if frame.episode in self._running:
                self._running[frame.episode].cancel()
            case protocol.Committed():
                self.committing.pop(frame.number).set()
            case protocol.FleetChanged():
                self.engine.take(frame.fleet)
                self._report()
                if frame.fleet.ends_replies:
                    self.tasks.start_soon(self._report_end)

    async def _run(self, frame: protocol.Run) -> None:
        recorded = [choice for call in frame.calls if (choice := choice_of(call)) is not None]
        log = WorkerCallLog(
            recorded,
            frame.made_here,
            server=self,
            episode=frame.episode,
            sent={call.key for call in frame.calls},
        )
        with self._running[frame.episode], traces.taken_over(frame.trace):
            task = json.loads(frame.task)
            outcome = await self.runner.run(task, frame.seed, frame.group_seed, log, frame.defaults)
            record = pack(outcome.record, log.sent)
            try:
                self.connection.send(protocol.EpisodeResult.of(frame.episode, outcome, record))
            except EpisodeError as refused:
                failed = Outcome(reason=EndReason.WORKER, error=str(refused), started_at=outcome.started_at)
                self.connection.send(protocol.EpisodeResult.of(frame.episode, failed, pack(TokenRecord())))
        del self._running[frame.episode]

    def _report(self) -> None:
        self.connection.send(protocol.Report(self.runner.metrics(), self.engine.report()))

    async def _report_end(self) -> None:
        await self.engine.until_ended()
        self._report()

    async def keep_reporting(self) -> None:
        """Report again and again, and end the process when the event loop does not come back here for too long."""
        while True:
            faulthandler.dump_traceback_later(self.hang_timeout_s, exit=True, file=2)
            self._report()
            await anyio.sleep(min(REPORT_EVERY_S, self.hang_timeout_s / 4))


@dataclass(eq=False, kw_only=True)
class WorkerCallLog(CallLog):
    """One episode's calls, which the main process commits."""

    server: EpisodeServer
    episode: int
    sent: set[Key]
    """The replies that the main process has."""

    async def commit(self, choice: RecordedChoice) -> None:
        """Commit a reply. Returns when it is in the store."""
        number = next(self.server.numbers)
        committed = self.server.committing[number] = anyio.Event()
        self.server.connection.send(protocol.SendCall(number, self.episode, row_of(choice)))
        await committed.wait()
        self.sent.add(choice.key)


async def serve_worker(stream: ByteStream) -> None:
    """Run the episodes that the main process sends over a stream, until that ends.

    Raises:
        AgentRLError: It cannot start.
    """
    connection = protocol.Connection(stream, protocol.TO_WORKER)
    frames = connection.frames()
    start = await anext(frames, None)
    if not isinstance(start, protocol.Start):
        return  # the main process is gone
    sys.path += [path for path in start.import_path if path not in sys.path]
    config = RunConfig.model_validate(start.config)
    workflow = load_workflow(Path(config.workflow))
    async with (
        replica_engine(start.fleet, lambda failure: connection.send(protocol.ServerFailed(failure))) as engine,
        in_process_runner(config, workflow, engine, chat_format=None, training=start.training) as runner,
        anyio.create_task_group() as tasks,
    ):
        with settled():
            server = EpisodeServer(connection, engine, runner, tasks, start.hang_timeout_s)
            tasks.start_soon(connection.send_all)
            tasks.start_soon(server.keep_reporting)
            async for frame in frames:
                server.take(frame)
            tasks.cancel_scope.cancel()
            faulthandler.cancel_dump_traceback_later()


def _end_with_standard_input(standard_input: int, connection: socket.socket) -> None:
    """End the connection when standard input ends, as it does with the main process; then the process, should its event loop not do it."""
    while os.read(standard_input, 4096):
        pass
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    time.sleep(STOP_TIMEOUT_S)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main() -> None:
    """Serve the connection whose descriptor is the last argument."""
    gc.set_threshold(50_000)  # as in the main process
    parent = os.getppid()
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    threading.Thread(target=_end_with_standard_input, args=(os.dup(0), connection), daemon=True).start()
    # What the workflow, or a program that it starts, reads and prints is not the main process's.
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    faulthandler.enable()
    traces.begin_traces()

    async def serve() -> None:
        await serve_worker(await SocketStream.from_socket(connection))

    try:
        run_loop(serve)
    except AgentRLError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    sys.stdout.flush()
    if os.getppid() != parent:  # nobody else is left to end what the workflow started
        os.killpg(os.getpgrp(), signal.SIGKILL)
    end_process(0)


if __name__ == "__main__":
    main()
