"""Worker processes that run the workflows, so that one that blocks, crashes or floods harms only its own process.

    episode ─► the least busy worker ─► Outcome
                       │
                       └ lost (it died, or its event loop was blocked): killed with all that it started, and started again;
                         its episodes start over in other workers and get the replies that they had, token for token

Which episode lost a worker is not always known. Each counts the workers that it lost: after two it runs alone, in a process of its own,
where an innocent one ends, and after three its attempt has failed.

A worker is lost when its process ends, which it also does by itself when its event loop is blocked, or when nothing comes from it any more.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from agentrl.config import RunConfig
from agentrl.engine.client import SGLangEngine
from agentrl.engine.client.fleet import FleetReplica
from agentrl.episode import Task
from agentrl.errors import AgentRLError, EpisodeError, WorkerError, WorkerLostError
from agentrl.proxy import CallLog, SamplingDefaults
from agentrl.record.end_reason import EndReason
from agentrl.record.recorded_choice import Key
from agentrl.rollout.run_episode import sampling_defaults
from agentrl.rollout.workers import protocol
from agentrl.rollout.workers.protocol import TO_MAIN, Connection, Run, Start, unsendable
from agentrl.store.call_log import EpisodeCallLog
from agentrl.store.outcome import Outcome
from agentrl.store.rows import CallRow
from agentrl.system import traces
from agentrl.system.child_process import STATUS_TIMEOUT_S, Child, end_of_log, how_ended
from agentrl.system.failure_text import is_library
from agentrl.system.host import Host, OpenHost, on_this_machine
from agentrl.system.tasks import Condition, background_tasks, in_thread

LOG_TAIL_CHARACTERS = 4096


@dataclass(eq=False)
class RunningEpisode:
    """An episode in a worker. `calls` are its replies so far, and `call_log` puts new ones into the store."""

    calls: dict[Key, CallRow]
    call_log: EpisodeCallLog | None
    outcome: asyncio.Future[Outcome] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


@dataclass(eq=False)
class Worker:
    """A running worker. `WorkerPool` opens it."""

    name: str
    connection: protocol.Connection[protocol.ToMain]
    engine: SGLangEngine
    tasks: TaskGroup
    replica: FleetReplica | None = None
    """The worker as the engine knows it, from when it takes episodes."""
    started: anyio.Event = field(default_factory=anyio.Event)
    lost: anyio.Event = field(default_factory=anyio.Event)
    reason: str = ""
    """The reason why it was lost."""
    metrics: dict[str, float] = field(default_factory=dict)
    episodes: dict[int, RunningEpisode] = field(default_factory=dict)
    _heard: bool = True

    async def run(self, frame: protocol.Run, episode: RunningEpisode) -> Outcome:
        """Run an episode.

        Raises:
            WorkerLostError: The worker is lost before the episode has ended.
        """
        self.episodes[frame.episode] = episode
        try:
            self.connection.send(frame)
            return await episode.outcome
        finally:
            del self.episodes[frame.episode]
            if episode.outcome.cancelled():
                self.connection.send(protocol.Cancel(frame.episode))

    def mark_lost(self, reason: str) -> None:
        """Note that the worker is lost, and wake what waits for it."""
        self.reason = self.reason or f"{self.name} {reason}"
        self.lost.set()
        self.started.set()
        for episode in self.episodes.values():
            if not episode.outcome.done():
                episode.outcome.set_exception(WorkerLostError(self.reason))

    async def serve(self, child: Child, log: Path, log_start: int) -> None:
        """Do what the worker asks until it is gone, then note why: its log says it, from where it began to write there."""
        with suppress(KeyError):  # it names calls that it never sent
            async for frame in self.connection.frames():
                self._heard = True
                self._take(frame)
        how = "closed its connection, or sent what is no frame"
        with anyio.move_on_after(STATUS_TIMEOUT_S):
            how = how_ended(await child.wait())
        written = await in_thread(end_of_log, log, log_start)
        # As faulthandler begins, with the stacks of all threads after it.
        if re.search(r"^Timeout \(\d", written, re.MULTILINE):
            how = f"was blocked for {HANG_TIMEOUT_S:g} s (run long work in a thread) by {_blocking_line(written)}"
        tail = written[-LOG_TAIL_CHARACTERS:].strip()
        self.mark_lost(f"{how}\nthe end of its log {log}:\n{tail}")

    def _take(self, frame: protocol.ToMain) -> None:
        match frame:
            case protocol.SendCall(number, number_of_episode, call):
                committed = partial(self.connection.send, protocol.Committed(number))
                episode = self.episodes.get(number_of_episode)
                if episode is not None:
                    episode.calls[call.key] = call
                if episode is not None and episode.call_log is not None:
                    episode.call_log.enqueue(call, committed)
                else:
                    committed()  # of an episode that has ended, nothing is kept
            case protocol.EpisodeResult() if (episode := self.episodes.get(frame.episode)) is not None:
                if not episode.outcome.done():
                    episode.outcome.set_result(frame.outcome(episode.calls))
            case protocol.Report():
                self.started.set()
                self.metrics = frame.metrics
                if self.replica is not None:
                    self.engine.take_report(self.replica, frame.replica)
            case protocol.ServerFailed():
                self.tasks.start_soon(self.engine.handle_failure, frame.report, self.name)

    async def send_fleet(self) -> None:
        """Tell the worker about the fleet, now and whenever that changes."""
        while True:
            fleet = self.engine.state()
            self.connection.send(protocol.FleetChanged(fleet))
            await self.engine.fleet.replicas.next_after(fleet.number)

    async def watch(self, silence_s: float) -> None:
        """Lose the worker when nothing comes from it: its process was stopped, or hangs where it cannot end."""
        while self._heard:
            self._heard = False
            await anyio.sleep(silence_s)
        self.mark_lost(f"sent nothing for {silence_s:g} s")


def _blocking_line(written: str) -> str:
    """Return the innermost line of the user's in the main thread, whose stack faulthandler writes last."""
    frames = re.findall(r'File "(.+)", line (\d+) in (.+)', written.rpartition("Thread ")[2])
    return next((f"{file}:{line} in {name}" for file, line, name in frames if not is_library(file)), "a library")


ALONE_AFTER, FAILED_AFTER = 2, 3
"""Lost workers after which an episode runs in a process of its own, and after which its attempt has failed."""
PROGRAM = ("-P", "-m", "agentrl.rollout.worker_process")
HANG_TIMEOUT_S = 30.0
"""How long a line of a workflow may block the event loop of a worker, which is killed then; its episodes go on elsewhere from their log."""
START_TIMEOUT_S = 300.0
"""Bound of starting a worker, imports of the workflow included."""
MAX_FAILED_STARTS = 3
"""So many times in a row a worker may fail to start again."""
RESTART_AFTER_S = 0.5
LARGEST = ("sandbox_wait_max_s",)
"""Metrics of workers of which the largest is the run's; the others are summed."""


@dataclass(eq=False)
class WorkerPool:
    """The workers of a run, which run its episodes. Open it with `open_workers`."""

    config: RunConfig
    engine: SGLangEngine
    training: bool
    logs: Path
    say: Callable[[str], None]
    open_host: OpenHost = on_this_machine
    workers: dict[int, Worker] = field(default_factory=dict)
    failure: AgentRLError | None = None
    """Why no worker can be started any more."""
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    """Numbers of the episodes that are sent."""
    _opened: list[Worker] = field(default_factory=list)
    """All workers so far, lost ones too."""
    _changed: Condition = field(default_factory=Condition)

    def __post_init__(self) -> None:
        self._alone = anyio.Semaphore(self.config.rollout.workers)
        """Bounds the workers for a single episode."""
        self._indices = itertools.count(self.config.rollout.workers)
        """The indices of these."""

    async def run(
        self,
        task: Task,
        seed: int,
        group_seed: int | None = None,
        call_log: CallLog | None = None,
        defaults: SamplingDefaults | None = None,
    ) -> Outcome:
        """Make one attempt at one task, in as many workers as it takes; see `EpisodeRunner.run`.

        Raises:
            AgentRLError: No worker can be started any more.
        """
        started_at = time.time()
        assert call_log is None or isinstance(call_log, EpisodeCallLog)
        recorded = {} if call_log is None else call_log.recorded
        calls = dict(recorded)
        defaults = defaults or sampling_defaults(self.config.rollout)
        lost: list[str] = []
        error = unsendable(task)
        while error is None:
            number = next(self.numbers)
            alone = len(lost) >= ALONE_AFTER
            try:
                made_here = [key for key in calls if key not in recorded]
                replies = list(calls.values())
                frame = Run(number, json.dumps(task), seed, group_seed, defaults, replies, made_here, traces.headers())
                async with self.new_worker() if alone else self.least_busy() as worker:
                    return await worker.run(frame, RunningEpisode(calls, call_log))
            except WorkerLostError as loss:
                lost.append(str(loss))
                if len(lost) == FAILED_AFTER:
                    error = f"the episode lost its worker {FAILED_AFTER} times, the last time alone in it: {loss}"
            except EpisodeError as refused:
                error = str(refused)
            except AgentRLError as failure:
                if not alone:
                    raise
                error = f"no worker of its own could be started for the episode: {failure}"
        return Outcome(reason=EndReason.WORKER, error=error, started_at=started_at, duration_s=time.time() - started_at)

    async def keep_running(self, index: int) -> None:
        """Have a worker of this index, a new one whenever it is lost."""
        failed_starts = 0
        while self.failure is None:
            try:
                async with self._open(index) as worker:
                    failed_starts = 0
                    self.workers[index] = worker
                    self._changed.notify_all()
                    await worker.lost.wait()
                    del self.workers[index]
            except AgentRLError as error:
                failed_starts += 1
                if not self._opened or failed_starts == MAX_FAILED_STARTS:
                    self.failure = error
                    self._changed.notify_all()
            await anyio.sleep(RESTART_AFTER_S)

    async def until_started(self) -> None:
        """Wait for all workers. Raises what kept one from starting."""
        while len(self.workers) < self.config.rollout.workers:
            await self._next_change()

    def metrics(self) -> dict[str, float]:
        """Return the number of workers lost, and the sums of what the workers measure."""
        total: dict[str, float] = {"workers_lost": sum(worker.lost.is_set() for worker in self._opened)}
        for name, value in (item for worker in self._opened for item in worker.metrics.items()):
            before = total.get(name, 0.0)
            total[name] = max(before, value) if name in LARGEST else before + value
        return total

    @asynccontextmanager
    async def least_busy(self) -> AsyncIterator[Worker]:
        """Yield the worker with the fewest episodes, once one has room."""
        while not (free := [one for one in self.workers.values() if not one.lost.is_set()]):
            await self._next_change()
        try:
            yield min(free, key=lambda worker: len(worker.episodes))
        finally:
            self._changed.notify_all()

    @asynccontextmanager
    async def new_worker(self) -> AsyncIterator[Worker]:
        """Yield a worker for a single episode."""
        async with self._alone, self._open(next(self._indices)) as worker:
            yield worker

    @asynccontextmanager
    async def _open(self, index: int) -> AsyncIterator[Worker]:
        """Hold a worker process for the length of the context.

        Raises:
            WorkerError: It cannot be started.
        """
        name, log = f"worker {index}", self.logs / f"worker-{index}.log"
        log_start = await in_thread(lambda: log.stat().st_size if log.exists() else 0)
        async with (
            self.open_host("RolloutWorker", name) as host,
            host.child_process(name, [host.python, *PROGRAM], log=log, error=WorkerError, stream=True) as child,
            background_tasks() as tasks,
        ):
            assert child.stream is not None
            worker = Worker(name, Connection(child.stream, TO_MAIN), self.engine, tasks)
            tasks.start_soon(worker.connection.send_all)
            tasks.start_soon(worker.serve, child, log, log_start)
            config = (await config_of_worker(self.config, host)).model_dump(mode="json")
            path, fleet = [str(folder) for folder in sys.path], self.engine.state()
            worker.connection.send(Start(config, fleet, path, self.training, HANG_TIMEOUT_S))
            with anyio.move_on_after(START_TIMEOUT_S):
                await worker.started.wait()
            if not worker.started.is_set() or worker.lost.is_set():
                raise WorkerError(f"{name} cannot be started: {worker.reason or f'it took {START_TIMEOUT_S:g} s'}")
            self._opened.append(worker)
            try:
                with self.engine.fleet.replicas.joined(name) as worker.replica:
                    tasks.start_soon(worker.send_fleet)
                    tasks.start_soon(worker.watch, 2 * HANG_TIMEOUT_S)
                    yield worker
            finally:
                if worker.lost.is_set():
                    child.kill()
                    self.say(f"{worker.reason.splitlines()[0]}; its episodes go on elsewhere")

    async def _next_change(self) -> None:
        if self.failure is not None:
            raise self.failure
        await self._changed.wait()


@asynccontextmanager
async def open_workers(
    config: RunConfig,
    engine: SGLangEngine,
    *,
    training: bool,
    logs: Path,
    say: Callable[[str], None],
    open_host: OpenHost = on_this_machine,
) -> AsyncIterator[WorkerPool]:
    """Yield the `rollout.workers` processes of a run, started, for the length of the context.

    Args:
        config: The run.
        engine: The one whose servers answer the model calls of their episodes.
        training: Whether what these record is to be trained on.
        logs: Directory of their logs, `worker-N.log`.
        say: Takes a line about each worker that is lost.
        open_host: Opens the machine of each.

    Raises:
        AgentRLError: One cannot be started.
    """
    async with background_tasks() as tasks:
        pool = WorkerPool(config, engine, training, logs, say, open_host)
        for index in range(config.rollout.workers):
            tasks.start_soon(pool.keep_running, index)
        await pool.until_started()
        yield pool


async def config_of_worker(config: RunConfig, host: Host) -> RunConfig:
    """Return the configuration of one worker: it has the paths of its machine."""
    model = str(await host.bring(Path(config.model.path), weights=False))
    workflow = config.workflow if host.work is None else str(host.work / Path(config.workflow).name)
    own_model = config.model.model_copy(update={"path": model})
    proxy = config.proxy.model_copy(update={"port": 0})  # each has its own
    return config.model_copy(update={"model": own_model, "proxy": proxy, "workflow": workflow})
