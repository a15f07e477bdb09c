"""Worker processes that run the workflows, so that one that blocks, crashes or floods harms only its own process.

    episode ─► the least busy worker ─► Outcome
                       │
                       └ lost (it died, or its event loop was blocked): killed with all that it started, and started again;
                         its episodes start over in other workers and get the replies that they had, token for token

Which episode lost a worker is not always known. Each counts the workers that it lost: after two it runs alone, in a process of its own,
where an innocent one ends, and after three its attempt has failed.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from agentrl.config import RunConfig
from agentrl.engine.client.sglang import SGLangEngine
from agentrl.episode import Task
from agentrl.errors import AgentRLError, EpisodeError, WorkerError, WorkerLostError
from agentrl.proxy import CallLog, SamplingDefaults
from agentrl.record.end_reason import EndReason
from agentrl.rollout.check_tasks import unsendable
from agentrl.rollout.run_episode import sampling_defaults
from agentrl.rollout.workers.protocol import TO_MAIN, Connection, Run, Start
from agentrl.rollout.workers.worker import RunningEpisode, Worker
from agentrl.store.call_log import EpisodeCallLog
from agentrl.store.outcome import Outcome
from agentrl.system import traces
from agentrl.system.host import Host, OpenHost, on_this_machine
from agentrl.system.tasks import Condition, background_tasks, in_thread

ALONE_AFTER, FAILED_AFTER = 2, 3
"""Lost workers after which an episode runs in a process of its own, and after which its attempt has failed."""
PROGRAM = ("-P", "-m", "agentrl.rollout.worker_process")
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
        self._alone = list(range(self.config.rollout.workers, 2 * self.config.rollout.workers))
        """Indices that workers for a single episode may have."""

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
        most = (self.config.cluster.address and self.config.cluster.episodes_per_worker) or math.inf
        while not (
            free := [one for one in self.workers.values() if not one.lost.is_set() and len(one.episodes) < most]
        ):
            await self._next_change()
        try:
            yield min(free, key=lambda worker: len(worker.episodes))
        finally:
            self._changed.notify_all()

    @asynccontextmanager
    async def new_worker(self) -> AsyncIterator[Worker]:
        """Yield a worker for a single episode."""
        while not self._alone:
            await self._changed.wait()
        index = self._alone.pop()
        try:
            async with self._open(index) as worker:
                yield worker
        finally:
            self._alone.append(index)
            self._changed.notify_all()

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
            hang_timeout_s = self.config.rollout.hang_timeout_s
            tasks.start_soon(worker.serve, child, log, log_start, hang_timeout_s)
            config = (await config_of_worker(self.config, host)).model_dump(mode="json")
            worker.connection.send(Start(config, self.engine.state(), [str(path) for path in sys.path], self.training))
            with anyio.move_on_after(START_TIMEOUT_S):
                await worker.started.wait()
            if not worker.started.is_set() or worker.lost.is_set():
                raise WorkerError(f"{name} cannot be started: {worker.reason or f'it took {START_TIMEOUT_S:g} s'}")
            self._opened.append(worker)
            try:
                with self.engine.fleet.followers.following(name) as worker.follower:
                    tasks.start_soon(worker.send_fleet)
                    tasks.start_soon(worker.watch, 2 * hang_timeout_s)
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
    """Return the configuration of one worker: it has its share of the run's sandboxes, and the paths of its machine.

    Of sandboxes to grade with it has two at least, one for a program and one for test code.
    """
    workers, sandbox = config.rollout.workers, config.sandbox
    graders = sandbox.graders or max(2, len(os.sched_getaffinity(0)))
    leases = sandbox.leases or config.rollout.max_concurrent
    own = {"graders": max(2, math.ceil(graders / workers)), "leases": math.ceil(leases / workers)}
    model = str(await host.bring(Path(config.model.path), weights=False))
    workflow = config.workflow if host.work is None else str(host.work / Path(config.workflow).name)
    parts = {"sandbox": sandbox.model_copy(update=own), "model": config.model.model_copy(update={"path": model})}
    proxy = config.proxy.model_copy(update={"port": 0})  # each has its own
    return config.model_copy(update={**parts, "proxy": proxy, "workflow": workflow})
