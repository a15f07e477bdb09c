"""Warm sandboxes, leased and made as new in between.

    take() ── waits in line for a slot ──► an idle sandbox, or a new one ──► user ──► released ──► reset ──► idle
                                                                                          └── lost, or cannot be reset: ended

A task keeps each sandbox: it leases it, resets it when it is released, and ends it when it is lost. So however its user ends, a
sandbox goes back, and there are never more in use than slots. The pools of a run share slots, and what stands idle of all of them: no
more than there are slots, those that were used last.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus

from agentrl.concurrency.background import background_tasks
from agentrl.concurrency.condition import Condition
from agentrl.errors import ConfigError, SandboxError, one_line
from agentrl.reporting.logger import logger
from agentrl.sandboxes.choose import choose_backend
from agentrl.sandboxes.sandbox import Sandbox
from agentrl.sandboxes.seams import Backend, SandboxSpec

log = logger(__name__)

PATIENCE_S = 60.0
"""How long an engine that has started sandboxes may start none, while it is restarted say, before those who wait get its error."""
RETRY_INTERVAL_S = 0.25


def default_size() -> int:
    """One sandbox a core, and two at least: some verdicts take two."""
    return max(2, len(os.sched_getaffinity(0)))


@dataclass
class PoolMetrics:
    """Sums since the pool was opened; times in seconds."""

    taken: int = 0
    wait_s: float = 0.0
    """For a slot, and for a sandbox where a new one is started."""
    wait_max_s: float = 0.0
    runs: int = 0
    run_s: float = 0.0
    resets: int = 0
    reset_s: float = 0.0
    started: int = 0
    lost: int = 0
    """Sandboxes that went away, or could not be reset."""


class Lease:
    """A sandbox while somebody holds it, or while it is idle."""

    def __init__(self, sandbox: Sandbox, slots: int) -> None:
        self.sandbox = sandbox
        self.slots = slots
        """How many it occupies while somebody holds it."""
        self.released = anyio.Event()
        """Set when it is to be reset, or when it is lost; of an idle one, when it is to end."""


class Slots:
    """Room for so many sandboxes in use at the same time, first come, first served, and those that stand idle."""

    def __init__(self, tasks: TaskGroup, size: int, wait_timeout_s: float, metrics: PoolMetrics) -> None:
        self.tasks = tasks
        self.size = size
        self.metrics = metrics
        self.idle: list[Lease] = []
        """The sandbox that was used last is last."""
        self.resetting: Counter[SandboxSpec] = Counter()
        """How many sandboxes of each kind are being reset."""
        self.closed = False
        self._wait_timeout_s = wait_timeout_s
        self._in_use = 0
        self._turn = anyio.Lock()
        """Of those who wait."""
        self.changed = Condition()

    async def occupy(self, count: int) -> None:
        """Wait until so many slots are free, and occupy them.

        Raises:
            SandboxError: They were not free within `wait_timeout_s`.
        """
        if not count:
            return  # who holds a sandbox stands in no line
        with anyio.move_on_after(self._wait_timeout_s):
            async with self._turn:
                await self.changed.wait_for(lambda: self._in_use + count <= self.size)
                self._in_use += count
                return
        raise SandboxError(f"no sandbox was free within {self._wait_timeout_s:g} s, of {self.size} at the same time")

    def free(self, count: int) -> None:
        """Leave slots to those who wait."""
        self._in_use -= count
        self.changed.notify_all()

    def add_idle(self, lease: Lease) -> None:
        """Have a sandbox wait for its next user, and end those that have waited for longest where they are too many."""
        self.idle.append(lease)
        waiting = [lease for lease in self.idle if not lease.released.is_set()]
        for oldest in waiting[: -self.size]:
            oldest.released.set()


class SandboxPool:
    """Warm sandboxes of one kind. Open it with `open_pool`."""

    def __init__(self, slots: Slots, backend: Backend, spec: SandboxSpec) -> None:
        self.backend = backend
        self.spec = spec
        self.size = slots.size
        self.metrics = slots.metrics
        self.baselines: dict[bytes, Any] = {}
        """What programs that do nothing pass of tests that were graded here, by a digest of the tests."""
        self.measuring: dict[bytes, anyio.Lock] = defaultdict(anyio.Lock)
        self._slots = slots

    @asynccontextmanager
    async def take(self, count: int = 1, *, slots: int = 1) -> AsyncIterator[Sequence[Sandbox]]:
        """Yield `count` sandboxes as new, first come, first served. They go back at the end of the context.

        Args:
            count: How many.
            slots: How many slots each occupies. 0 is for those who hold one: they wait for nobody, so that what they hold comes back.

        Raises:
            ConfigError: The pool is smaller.
            SandboxError: The pool is closed, none was free within its wait_timeout_s, or none can be started.
        """
        if count > self.size:
            raise ConfigError(
                f"{count} sandboxes at once from a pool of {self.size}, as test code needs them; open_pool(size={count}), or `sandbox.graders` = {count}"
            )
        if self._slots.closed:
            raise SandboxError("this pool of sandboxes is closed; use it within `async with open_pool()`")
        started = anyio.current_time()
        await self._slots.occupy(count * slots)
        leases: list[Lease] = []
        try:
            while len(leases) < count:
                leases.append(await self._idle_or_new(slots))
            waited_s = anyio.current_time() - started
            self.metrics.taken += count
            self.metrics.wait_s += waited_s
            self.metrics.wait_max_s = max(self.metrics.wait_max_s, waited_s)
            yield [lease.sandbox for lease in leases]
        finally:
            self._slots.free((count - len(leases)) * slots)
            for lease in leases:
                lease.released.set()

    async def _idle_or_new(self, slots: int) -> Lease:
        given_up_at, tried = anyio.current_time() + PATIENCE_S, False
        while True:
            for lease in reversed(self._slots.idle):
                if lease.sandbox.spec == self.spec and not lease.released.is_set():
                    self._slots.idle.remove(lease)
                    lease.slots = slots
                    return lease
            if self._slots.resetting[self.spec]:  # which takes less time than a start
                await self._slots.changed.wait()
                continue
            try:
                new: Lease = await self._slots.tasks.start(self._keep, slots)
            except SandboxError as error:
                if not self.metrics.started or anyio.current_time() > given_up_at:
                    raise
                if not tried:
                    log.warning("no sandbox can be started; trying for %g s: %s", PATIENCE_S, one_line(error, 200))
                tried = True
                await anyio.sleep(RETRY_INTERVAL_S)
            else:
                return new

    async def _keep(self, slots: int, *, task_status: TaskStatus[Lease]) -> None:
        """Start a sandbox, and lease and reset it until it is lost, or too many are idle. Reports started with its first lease.

        Raises:
            SandboxError: It cannot be started.
        """
        async with self.backend.start(self.spec) as sandbox:
            self.metrics.started += 1
            lease = Lease(sandbox, slots)
            task_status.started(lease)
            while True:
                sandbox.on_lost = lease.released.set
                await lease.released.wait()
                if lease in self._slots.idle:
                    self._slots.idle.remove(lease)
                    self.metrics.lost += sandbox.lost is not None
                    return
                self._slots.resetting[self.spec] += 1
                was_reset = await self._reset(sandbox)
                self._slots.resetting[self.spec] -= 1
                self._slots.free(lease.slots)
                if was_reset:
                    lease = Lease(sandbox, slots=0)
                    self._slots.add_idle(lease)
                else:
                    self.metrics.lost += not self._slots.closed
                    return

    async def _reset(self, sandbox: Sandbox) -> bool:
        """Make a sandbox as new; return whether that worked."""
        self.metrics.runs += sandbox.runs
        self.metrics.run_s += sandbox.run_s
        sandbox.runs, sandbox.run_s = 0, 0.0
        started = anyio.current_time()
        try:
            await sandbox.reset()
        except SandboxError:
            return False
        self.metrics.resets += 1
        self.metrics.reset_s += anyio.current_time() - started
        return True


@asynccontextmanager
async def open_pool(
    spec: SandboxSpec | None = None,
    *,
    backend: str | Backend = "auto",
    size: int | None = None,
    wait_timeout_s: float = 600.0,
) -> AsyncIterator[SandboxPool]:
    """Yield a pool of at most `size` sandboxes (default: one a core), each started when it is first waited for.

    Raises:
        SandboxError: The backend cannot be used.
        ConfigError: The size is below 1.
    """
    if size is not None and size < 1:
        raise ConfigError(f"a pool of {size} sandboxes: it needs one at least")
    spec = spec or SandboxSpec()
    chosen = await choose_backend(backend, spec)
    async with open_slots(size or default_size(), wait_timeout_s, PoolMetrics()) as slots:
        yield SandboxPool(slots, chosen, spec)


@asynccontextmanager
async def open_slots(size: int, wait_timeout_s: float, metrics: PoolMetrics) -> AsyncIterator[Slots]:
    """Yield slots for sandboxes, which end with the context."""
    async with background_tasks() as tasks:
        slots = Slots(tasks, size, wait_timeout_s, metrics)
        try:
            yield slots
        finally:
            slots.closed = True
