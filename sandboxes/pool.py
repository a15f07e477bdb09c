"""Sandboxes prepared ahead, leased one at a time, and made as new in between.

    take() ── waits in line ──► ready sandbox ──► user ──► released ──► reset ──► ready
                                                                └── lost, or cannot be reset: replaced

One task keeps each slot of the pool: it starts a sandbox, leases it, resets it, and starts another when the sandbox is lost. So there
are never more sandboxes than slots, and however its user ends, a sandbox goes back.
"""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus

from agentrl.concurrency.background import background_tasks
from agentrl.concurrency.condition import Condition
from agentrl.errors import ConfigError, SandboxError
from agentrl.sandboxes.checked_fields import AboveZero, check_argument
from agentrl.sandboxes.choose import AUTO_ORDER, BackendName, choose_backend, start_sandbox
from agentrl.sandboxes.sandbox import Sandbox
from agentrl.sandboxes.seams import Backend, SandboxSpec

PATIENCE_S = 60.0
"""How long an engine may start no sandbox, while it is restarted say, before those who wait are told."""
RETRY_INTERVAL_S = 0.25


def default_size() -> int:
    """One sandbox a core, and two at least: some verdicts take two."""
    return max(2, len(os.sched_getaffinity(0)))


@dataclass
class PoolMetrics:
    """Sums since the pool was opened; times in seconds."""

    taken: int = 0
    wait_s: float = 0.0
    wait_max_s: float = 0.0
    runs: int = 0
    run_s: float = 0.0
    resets: int = 0
    reset_s: float = 0.0
    started: int = 0
    """Sandboxes started, at first and as replacements."""
    lost: int = 0
    """Sandboxes that went away, or could not be reset."""

    def add(self, other: PoolMetrics) -> None:
        """Add those of another pool."""
        for name, value in vars(other).items():
            before = getattr(self, name)
            setattr(self, name, max(before, value) if name == "wait_max_s" else before + value)


class Lease:
    """A sandbox that somebody holds. `release` may be called from anywhere, and more than once."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._released = anyio.Event()

    @property
    def released(self) -> bool:
        """Whether it has been released."""
        return self._released.is_set()

    def release(self) -> None:
        """Note that the sandbox may be reset and leased to the next."""
        self._released.set()

    async def wait_released(self) -> None:
        """Wait until it has been released."""
        await self._released.wait()


class SandboxPool:
    """Warm sandboxes of one kind. Open it with `open_pool`."""

    def __init__(self, tasks: TaskGroup, backend: Backend, spec: SandboxSpec, size: int, wait_timeout_s: float) -> None:
        self.backend = backend
        self.spec = spec
        self.size = size
        self.closed = False
        """Whether its context has ended."""
        self.metrics = PoolMetrics()
        self.baselines: dict[bytes, Any] = {}
        """What programs that do nothing pass of tests that were graded here, by a digest of the tests."""
        self.measuring: dict[bytes, anyio.Lock] = defaultdict(anyio.Lock)
        self._tasks = tasks
        self._wait_timeout_s = wait_timeout_s
        self._slots = 0
        self._ready: deque[Lease] = deque()
        self._leased: set[Lease] = set()
        self._waiting = 0
        """Sandboxes that are waited for."""
        self._turn = anyio.Lock()
        """Of those who wait, first come, first served."""
        self._changed = Condition()
        self._failure: SandboxError | None = None
        """Why no sandbox can be started, for as long as none can."""
        self._users = 0

    @property
    def idle_sandboxes(self) -> int:
        """How many sandboxes it has, if it is not in use; else 0."""
        return 0 if self._users or self._waiting or self._in_use() else self._slots

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Have it count as used within the context, also between one lease and the next."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1

    @asynccontextmanager
    async def take(self, count: int = 1) -> AsyncIterator[Sequence[Sandbox]]:
        """Yield `count` sandboxes as new, first come, first served. They go back at the end of the context.

        Raises:
            SandboxError: None was free within the pool's wait_timeout_s, or none can be started.
        """
        leases = await self.acquire(count)
        try:
            yield [lease.sandbox for lease in leases]
        finally:
            for lease in leases:
                lease.release()

    async def acquire(self, count: int = 1) -> list[Lease]:
        """Like `take`, for sandboxes that are released by hand.

        Raises:
            ConfigError: The pool is smaller.
            SandboxError: The pool is closed, none was free within its wait_timeout_s, or none can be started.
        """
        if count > self.size:
            raise ConfigError(
                f"{count} sandboxes at once from a pool of {self.size}, as test code needs them; open_pool(size={count}), or `sandbox.graders` = {count}"
            )
        if self.closed:
            raise SandboxError("this pool of sandboxes is closed; use it within `async with open_pool()`")
        started = anyio.current_time()
        self._waiting += count
        self._grow(self._in_use() + self._waiting)
        try:
            with anyio.move_on_after(self._wait_timeout_s):
                async with self._turn:
                    await self._changed.wait_for(lambda: self._failure is not None or self._fresh() >= count)
                    if self._failure is not None:
                        raise self._failure
                    leases = [self._ready.popleft() for _ in range(count)]
                    self._leased.update(leases)
                    self._note_wait(count, anyio.current_time() - started)
                    return leases
        finally:
            self._waiting -= count
        raise SandboxError(
            f"no sandbox was free within {self._wait_timeout_s:g} s: {self._waiting} wait for {self.size} sandboxes"
        )

    def _fresh(self) -> int:
        self._ready = deque(lease for lease in self._ready if not lease.released)  # a lost one is released
        return len(self._ready)

    def _in_use(self) -> int:
        return sum(not lease.released for lease in self._leased)

    def _note_wait(self, count: int, waited_s: float) -> None:
        self.metrics.taken += count
        self.metrics.wait_s += waited_s
        self.metrics.wait_max_s = max(self.metrics.wait_max_s, waited_s)

    def _grow(self, slots: int) -> None:
        """Have so many sandboxes, or as many as the pool may have."""
        while self._slots < min(slots, self.size):
            self._tasks.start_soon(self._keep, self._slots)
            self._slots += 1

    async def start(self, ahead: int) -> None:
        """Start the first sandbox, and have so many started before anybody asks.

        Raises:
            SandboxError: The first sandbox cannot be started.
        """
        self._slots = 1
        await self._tasks.start(self._keep, 0)  # when it fails, so would the others
        self._grow(ahead)

    async def _keep(self, slot: int, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep one slot of the pool filled until cancelled. Reports started with its first sandbox.

        Raises:
            SandboxError: The first sandbox of the pool cannot be started.
        """
        started, working_at = False, anyio.current_time()
        while True:
            try:
                async with start_sandbox(self.backend, self.spec, core=slot) as sandbox:
                    self.metrics.started += 1
                    self._failure = None
                    if not started:
                        started = True
                        task_status.started()
                    while await self._lease(sandbox):
                        pass
                    self.metrics.lost += 1
                working_at = anyio.current_time()
            except SandboxError as error:
                if slot == 0 and not started:
                    raise
                if anyio.current_time() - working_at > PATIENCE_S:
                    self._failure = error
                    self._changed.notify_all()
                await anyio.sleep(RETRY_INTERVAL_S)

    async def _lease(self, sandbox: Sandbox) -> bool:
        """Lease a sandbox once and make it as new; return whether that worked."""
        lease = Lease(sandbox)
        sandbox.on_lost = lease.release
        self._ready.append(lease)
        self._changed.notify_all()
        await lease.wait_released()
        self._leased.discard(lease)
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
    order: Sequence[BackendName] = AUTO_ORDER,
    ahead: int | None = None,
) -> AsyncIterator[SandboxPool]:
    """Yield a pool of at most `size` sandboxes (default: one a core).

    `ahead` of them (default: as many as there are cores; one at least) are started at once, and more when somebody waits.

    Raises:
        SandboxError: They cannot be started.
        ConfigError: The size is below 1, or an argument is of the wrong type.
    """
    check_argument("spec", spec, SandboxSpec | None)
    check_argument("size", size, int | None)
    check_argument("wait_timeout_s", wait_timeout_s, AboveZero)
    if size is not None and size < 1:
        raise ConfigError(f"a pool of {size} sandboxes: it needs one at least")
    spec = spec or SandboxSpec()
    chosen = await choose_backend(backend, spec, order)
    async with background_tasks() as tasks:
        pool = SandboxPool(tasks, chosen, spec, size or default_size(), wait_timeout_s)
        await pool.start(default_size() if ahead is None else ahead)
        try:
            yield pool
        finally:
            pool.closed = True
