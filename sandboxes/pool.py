"""Warm sandboxes, leased and made as new in between.

    take() ── waits in line for a slot ──► an idle sandbox, or a new one ──► user ──► reset ──► idle
                                                                                └── lost, or cannot be reset: ended

A task keeps each sandbox open until it is found lost, or too many are idle. Whoever takes one holds a slot until it is reset, so that there are
never more in use than slots. The pools of a run share slots, and what stands idle of all of them: no more than there are slots, those that
were used last.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import anyio
from anyio.abc import TaskGroup

from agentrl.errors import ConfigError, SandboxError, one_line
from agentrl.sandboxes.checked_fields import check_argument
from agentrl.sandboxes.choose import choose_backend
from agentrl.sandboxes.sandbox import Backend, Sandbox, SandboxSpec
from agentrl.system.tasks import Lease, Resources, background_tasks

log = logging.getLogger(__name__)

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


class Slots:
    """Room for so many sandboxes, or containers, in use at the same time, first come, first served, and those that stand idle."""

    def __init__(self, tasks: TaskGroup, size: int, wait_timeout_s: float, metrics: PoolMetrics) -> None:
        self.tasks = tasks
        self.size = size
        self.metrics = metrics
        self.idle: list[Lease[Sandbox]] = []
        """The sandbox that was used last is last."""
        self.closed = False
        self._wait_timeout_s = wait_timeout_s
        self._free = anyio.Semaphore(size)
        self._line = anyio.Lock()

    @property
    def free(self) -> int:
        """Return how many are free, and waited for by none."""
        return self._free.value

    @asynccontextmanager
    async def occupy(self, count: int) -> AsyncIterator[None]:
        """Wait until so many slots are free, and occupy them for as long as the context lasts.

        Raises:
            SandboxError: They were not free within `wait_timeout_s`.
        """
        held = 0
        try:
            with anyio.move_on_after(self._wait_timeout_s):
                if count:  # else the caller holds a sandbox, and stands in no line
                    async with self._line:  # those who want two are not overtaken by those who want one
                        while held < count:
                            await self._free.acquire()
                            held += 1
            if held < count:
                raise SandboxError(
                    f"no sandbox or container was free within {self._wait_timeout_s:g} s, of {self.size} at the same time"
                )
            yield
        finally:
            for _ in range(held):
                self._free.release()

    def add_idle(self, lease: Lease[Sandbox]) -> None:
        """Have a sandbox wait for its next user, and end the one that has waited for longest where they are too many."""
        self.idle.append(lease)
        if len(self.idle) > self.size:
            self.tasks.start_soon(self.idle.pop(0).release)

    def end_lost(self, lease: Lease[Sandbox]) -> None:
        """End a sandbox that is lost."""
        self.metrics.lost += 1
        self.tasks.start_soon(lease.release)


class SandboxPool:
    """Warm sandboxes of one kind. Open it with `open_pool`."""

    def __init__(self, slots: Slots, backend: Backend, spec: SandboxSpec) -> None:
        self.backend = backend
        self.spec = spec
        self.size = slots.size
        self.metrics = slots.metrics
        self._slots = slots

    @property
    def free(self) -> int:
        """Return how many sandboxes may be taken without waiting."""
        return self._slots.free

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
                f"{count} sandboxes at once from a pool of {self.size}, as test code needs them; open_pool(size={count})"
            )
        if self._slots.closed:
            raise SandboxError("this pool of sandboxes is closed; use it within `async with open_pool()`")
        started = anyio.current_time()
        async with self._slots.occupy(count * slots), AsyncExitStack() as leases:
            sandboxes = [await leases.enter_async_context(self._lease()) for _ in range(count)]
            waited_s = anyio.current_time() - started
            self.metrics.taken += count
            self.metrics.wait_s += waited_s
            self.metrics.wait_max_s = max(self.metrics.wait_max_s, waited_s)
            yield sandboxes

    @asynccontextmanager
    async def _lease(self) -> AsyncIterator[Sandbox]:
        lease = await self._idle_or_new()
        sandbox = lease.value
        try:
            yield sandbox
        finally:
            self.metrics.runs += sandbox.runs
            self.metrics.run_s += sandbox.run_s
            sandbox.runs, sandbox.run_s = 0, 0.0
            started = anyio.current_time()
            with anyio.CancelScope(shield=True):
                try:
                    await sandbox.reset()
                except SandboxError as error:
                    sandbox.lose(str(error))
                    self._slots.end_lost(lease)
                else:
                    self.metrics.resets += 1
                    self.metrics.reset_s += anyio.current_time() - started
                    self._slots.add_idle(lease)

    async def _idle_or_new(self) -> Lease[Sandbox]:
        given_up_at, tried = anyio.current_time() + PATIENCE_S, False
        while True:
            for lease in reversed([lease for lease in self._slots.idle if lease.value.spec == self.spec]):
                self._slots.idle.remove(lease)
                if lease.value.lost is None:
                    return lease
                self._slots.end_lost(lease)
            try:
                new = await Resources(self._slots.tasks).hold(lambda: self.backend.start(self.spec))
            except SandboxError as error:
                if not self.metrics.started or anyio.current_time() > given_up_at:
                    raise
                if not tried:
                    log.warning("no sandbox can be started; trying for %g s: %s", PATIENCE_S, one_line(error, 200))
                tried = True
                await anyio.sleep(RETRY_INTERVAL_S)
            else:
                self.metrics.started += 1
                return new


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
        ConfigError: The size is below 1, or `spec` is no spec.
    """
    check_argument("spec", spec, SandboxSpec | None)
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
