"""The pools of a run: one for each kind of sandbox and purpose, opened when it is asked for, closed when others need the room."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import anyio
from anyio.abc import TaskGroup, TaskStatus

from agentrl.concurrency.background import background_tasks
from agentrl.sandboxes.choose import AUTO_ORDER, BackendName
from agentrl.sandboxes.pool import PoolMetrics, SandboxPool, default_size, open_pool
from agentrl.sandboxes.seams import Backend, SandboxSpec

Purpose = Literal["grade", "lease"]
_Key = tuple[SandboxSpec, Purpose, int]


class Sandboxes:
    """The pools of a run, each opened when it is first asked for: for each kind of sandbox one to grade with and one to lease to workflows.

    They are two, so that a workflow that holds a sandbox and asks for a verdict never waits for itself; and who holds n leased ones gets the
    next from pools that belong to n. So those who hold most wait for nobody, and what they hold comes back.

    A run may have an image for each task. So when a pool is opened, those that nobody has used for longest are closed, until no more
    sandboxes stand idle than may be in use of one kind.

    Open it with `open_sandboxes`.
    """

    def __init__(
        self,
        tasks: TaskGroup,
        backend: str | Backend,
        order: Sequence[BackendName],
        sizes: Mapping[Purpose, int | None],
        wait_timeout_s: float,
    ) -> None:
        self._tasks = tasks
        self._backend = backend
        self._order = order
        self._sizes = sizes
        self._wait_timeout_s = wait_timeout_s
        self._most_idle = sum(size or default_size() for size in sizes.values())
        self._pools: dict[_Key, tuple[SandboxPool, anyio.CancelScope]] = {}
        """The one that was used last is last."""
        self._opening: dict[_Key, anyio.Lock] = {}
        self._open: list[SandboxPool] = []
        """Also those that are being closed."""
        self._past = PoolMetrics()
        """Of pools that are closed."""

    async def pool(self, spec: SandboxSpec, purpose: Purpose, held: int = 0) -> SandboxPool:
        """Return the pool of this kind of sandbox, for those who hold so many leased ones.

        Who waits for anything before it is used has it be `in_use()`.

        Raises:
            SandboxError: No backend works here, or the first sandbox of its pool cannot be started.
        """
        key = (spec, purpose, held)
        if key not in self._pools:
            async with self._opening.setdefault(key, anyio.Lock()):  # one kind waits for no image of another
                if key not in self._pools:
                    self._close_idle()
                    self._pools[key] = await self._tasks.start(
                        self._keep_open, spec, self._sizes[purpose], 1 if held else None
                    )
        self._pools[key] = found = self._pools.pop(key)
        return found[0]

    def metrics(self) -> PoolMetrics:
        """Return those of all pools together."""
        total = PoolMetrics()
        for metrics in (self._past, *(pool.metrics for pool in self._open)):
            total.add(metrics)
        return total

    def _close_idle(self) -> None:
        idle = {key: pool.idle_sandboxes for key, (pool, _) in self._pools.items()}
        too_many = sum(idle.values()) - self._most_idle
        for key, sandboxes in idle.items():
            if sandboxes and too_many > 0:
                too_many -= sandboxes
                _, scope = self._pools.pop(key)
                scope.cancel()

    async def _keep_open(
        self,
        spec: SandboxSpec,
        size: int | None,
        ahead: int | None,
        *,
        task_status: TaskStatus[tuple[SandboxPool, anyio.CancelScope]],
    ) -> None:
        with anyio.CancelScope() as scope:
            async with open_pool(
                spec,
                backend=self._backend,
                size=size,
                wait_timeout_s=self._wait_timeout_s,
                order=self._order,
                ahead=ahead,
            ) as pool:
                self._open.append(pool)
                task_status.started((pool, scope))
                await anyio.sleep_forever()
        self._open.remove(pool)
        self._past.add(pool.metrics)


@asynccontextmanager
async def open_sandboxes(
    *,
    backend: str | Backend = "auto",
    order: Sequence[BackendName] = AUTO_ORDER,
    graders: int | None = None,
    leases: int | None = None,
    wait_timeout_s: float = 600.0,
) -> AsyncIterator[Sandboxes]:
    """Yield the sandboxes of a run; `graders` and `leases` bound the sandboxes of each kind for either purpose (default: one a core)."""
    async with background_tasks() as tasks:
        yield Sandboxes(tasks, backend, order, {"grade": graders, "lease": leases}, wait_timeout_s)
