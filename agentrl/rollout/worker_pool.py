"""Worker processes that run the workflows, so that one that blocks, crashes or floods harms only its own process.

    episode ─► the least busy worker ─► Outcome
                       │
                       └ lost (it died, or its event loop is blocked): killed with all that it started, and started again;
                         its episodes start over in other workers and get the replies that they had, token for token

Which episode lost a worker is not always known. Each has a suspicion, which grows with every worker lost under it:

    by 2   where the fault is certain: it was the only one there, or it is in its task that the event loop was blocked
    by 1   where it may be another's; by 0 where it is certainly another's

From a suspicion of 2 on it runs alone, in a new process of its own: an innocent one ends there. At 4 the attempt has failed.
So an episode that always takes its worker along takes two or three, and no episode fails for another's fault.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from agentrl.concurrency.background import background_tasks
from agentrl.concurrency.condition import Condition
from agentrl.concurrency.host import OpenHost, on_this_machine
from agentrl.config import RunConfig
from agentrl.engine.client.sglang import SGLangEngine
from agentrl.episode import Task
from agentrl.errors import AgentRLError, WorkerError, WorkerLostError
from agentrl.proxy import CallLog, SamplingDefaults
from agentrl.record.end_reason import EndReason
from agentrl.rollout.sendable import unsendable
from agentrl.rollout.worker import CERTAIN, EpisodeCalls, Worker, open_worker
from agentrl.rollout.worker_channel import FrameTooLargeError, Run, is_json
from agentrl.store.call_log import EpisodeCallLog
from agentrl.store.outcome import Outcome

ALONE_FROM = CERTAIN
"""Suspicion from which an episode runs in a process of its own."""
FAILED_FROM = 2 * CERTAIN
"""Suspicion from which an attempt has failed."""
MAX_FAILED_STARTS = 3
"""So many times in a row a worker may fail to start again."""
RESTART_AFTER_S = 0.5


@dataclass(eq=False)
class WorkerPool:
    """The workers of a run. Open it with `open_workers`."""

    config: RunConfig
    engine: SGLangEngine
    training: bool
    logs: Path
    say: Callable[[str], None]
    open_host: OpenHost = on_this_machine
    workers_lost: int = 0
    workers: dict[int, Worker] = field(default_factory=dict)
    failure: AgentRLError | None = None
    """Why no worker can be started any more."""
    _past_metrics: list[dict[str, float]] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _alone: set[int] = field(default_factory=set)
    """Indices of the workers that run a single episode."""
    _changed: Condition = field(default_factory=Condition)
    _sent: Counter[Worker] = field(default_factory=Counter)
    """Episodes that each worker was given and has not given back."""

    def __post_init__(self) -> None:
        self._worker_config = share_of_worker(self.config)
        self._slots_alone = anyio.Semaphore(self.config.rollout.workers)

    async def run(
        self, task: Task, seed: int, group_seed: int | None, call_log: CallLog | None, defaults: SamplingDefaults
    ) -> Outcome:
        """Make one attempt at one task, in as many workers as it takes.

        Args:
            task: The task.
            seed: The episode's.
            group_seed: The one that the episodes of its group share, or None.
            call_log: Where its model calls are kept as they happen, or None.
            defaults: How a request is sampled that does not say.

        Raises:
            WorkerError: No worker can be started any more.
        """
        started_at, started = time.time(), time.perf_counter()

        def failed(error: str) -> Outcome:
            duration_s = time.perf_counter() - started
            return Outcome(status=EndReason.WORKER, error=error, started_at=started_at, duration_s=duration_s)

        if not is_json(task):
            return failed(unsendable("the task", task))
        assert call_log is None or isinstance(call_log, EpisodeCallLog)
        calls, suspicion, reasons = EpisodeCalls(call_log), 0, list[str]()
        while suspicion < FAILED_FROM:
            frame = Run(next(self._numbers), task, seed, group_seed, defaults, calls.recorded())
            alone = suspicion >= ALONE_FROM
            try:
                async with self._new_worker() if alone else self._least_busy() as worker:
                    try:
                        return await worker.run(frame, calls)
                    except WorkerLostError as lost:
                        suspicion += worker.suspicion.get(frame.episode, 0)
                        reasons.append(str(lost))
            except FrameTooLargeError as error:
                return failed(f"the episode cannot be sent to a worker: {error}")
            except WorkerError as error:
                if not alone:
                    raise
                return failed(f"no worker of its own could be started for the episode: {error}")
        return failed(f"the episode lost its worker {len(reasons)} times, the last time alone in it: {reasons[-1]}")

    async def keep_running(self, index: int) -> None:
        """Have a worker of this index, a new one whenever it is lost."""
        failed_starts = 0
        while failed_starts < MAX_FAILED_STARTS:
            try:
                async with self._open(index) as worker:
                    failed_starts = 0
                    self.workers[index] = worker
                    self._changed.notify_all()
                    await worker.lost.wait()
                    del self.workers[index]
            except AgentRLError as error:
                failed_starts += 1
                if not self.workers_lost or failed_starts == MAX_FAILED_STARTS:
                    self.failure = error
                    self.say(f"worker {index} is given up: {error}")
                    self._changed.notify_all()
                    return
            await anyio.sleep(RESTART_AFTER_S)

    async def until_started(self) -> None:
        """Wait for all workers. Raises what kept one from starting."""
        while len(self.workers) < self.config.rollout.workers:
            await self._next_change()

    def metrics(self) -> dict[str, float]:
        """Workers lost, and the sums of what the workers measure."""
        total: dict[str, float] = {"workers_lost": self.workers_lost}
        for metrics in (*self._past_metrics, *(worker.metrics for worker in self.workers.values())):
            for name, value in metrics.items():
                before = total.get(name, 0.0)
                total[name] = max(before, value) if "_max_" in name else before + value
        return total

    @asynccontextmanager
    async def _least_busy(self) -> AsyncIterator[Worker]:
        most = self.config.cluster.episodes_per_worker if self.config.cluster.address else None
        while not self.workers or (most and all(self._sent[one] >= most for one in self.workers.values())):
            await self._next_change()
        worker = min(self.workers.values(), key=lambda worker: self._sent[worker])
        self._sent[worker] += 1
        try:
            yield worker
        finally:
            self._sent[worker] -= 1
            if not self._sent[worker]:
                del self._sent[worker]
            self._changed.notify_all()

    @asynccontextmanager
    async def _new_worker(self) -> AsyncIterator[Worker]:
        async with self._slots_alone:
            index = next(i for i in itertools.count(self.config.rollout.workers) if i not in self._alone)
            self._alone.add(index)
            try:
                async with self._open(index) as worker:
                    yield worker
            finally:
                self._alone.remove(index)

    @asynccontextmanager
    async def _open(self, index: int) -> AsyncIterator[Worker]:
        log = self.logs / f"worker-{index}.log"
        name = f"worker {index}"
        async with (
            self.open_host("RolloutWorker", name) as host,
            open_worker(name, host, self._worker_config, self.engine, log, training=self.training) as worker,
        ):
            try:
                yield worker
            finally:
                self._past_metrics.append(worker.metrics)
                if worker.lost.is_set():
                    self.workers_lost += 1
                    reason = worker.reason.partition("\n")[0]
                    self.say(f"{reason}; its {worker.interrupted} episodes go on elsewhere")

    async def _next_change(self) -> None:
        if self.failure is not None:
            raise self.failure
        await self._changed.wait()


@dataclass(frozen=True)
class WorkerRunner:
    """Runs episodes in a pool of workers. It is `agentrl.rollout.run_episode.Runner`."""

    pool: WorkerPool
    defaults: SamplingDefaults

    async def run(
        self, task: Task, seed: int, group_seed: int | None = None, call_log: CallLog | None = None
    ) -> Outcome:
        """Make one attempt at one task; see `Runner.run`."""
        return await self.pool.run(task, seed, group_seed, call_log, self.defaults)

    def with_defaults(self, defaults: SamplingDefaults) -> WorkerRunner:
        """Return the same workers with other defaults of sampling."""
        return WorkerRunner(self.pool, defaults)

    def metrics(self) -> dict[str, float]:
        """Return sums since the run began."""
        return self.pool.metrics()


@asynccontextmanager
async def open_workers(
    config: RunConfig,
    engine: SGLangEngine,
    *,
    training: bool,
    logs: Path,
    say: Callable[[str], None],
    open_host: OpenHost = on_this_machine,
) -> AsyncIterator[WorkerRunner]:
    """Yield a runner over `rollout.workers` processes, started, for the length of the context.

    Args:
        config: The run.
        engine: The one whose servers answer the model calls of their episodes.
        training: Whether what these record is to be trained on.
        logs: Directory of their logs, `worker-N.log`.
        say: Is told of each worker that is lost.
        open_host: Opens the machine of each.

    Raises:
        WorkerError: One cannot be started.
        UsageError: A worker meets it, such as a workflow that cannot be imported.
    """
    rollout = config.rollout
    async with background_tasks() as tasks:
        pool = WorkerPool(config, engine, training, logs, say, open_host)
        for index in range(rollout.workers):
            tasks.start_soon(pool.keep_running, index)
        await pool.until_started()
        defaults = SamplingDefaults(temperature=rollout.temperature, top_p=rollout.top_p, max_tokens=rollout.max_tokens)
        yield WorkerRunner(pool, defaults)


def share_of_worker(config: RunConfig) -> RunConfig:
    """Return the configuration of one worker: it has its share of the run's sandboxes.

    Of those to grade with it has two at least, one for a program and one for test code.
    """
    workers, sandbox = config.rollout.workers, config.sandbox
    graders = sandbox.graders or max(2, len(os.sched_getaffinity(0)))
    leases = sandbox.leases or config.rollout.max_concurrent
    own = {"graders": max(2, math.ceil(graders / workers)), "leases": math.ceil(leases / workers)}
    return config.model_copy(update={"sandbox": sandbox.model_copy(update=own)})
