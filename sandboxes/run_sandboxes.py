"""The sandboxes of a run as its episodes ask for them: `episode.sandbox()`, `episode.container()` and `episode.grade()`.

Graded programs and leased sandboxes have slots of their own, so that a workflow that holds a sandbox and asks for a verdict never
waits for itself. Each image and each set of limits is a pool of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

from agentrl.sandboxes.choose import AUTO_ORDER, BackendName, choose_backend
from agentrl.sandboxes.container import Container, ContainerSpec, open_container
from agentrl.sandboxes.grading.grade import grade
from agentrl.sandboxes.grading.tests import PYTHON, Language, Test
from agentrl.sandboxes.grading.verdict import Verdict
from agentrl.sandboxes.pool import PoolMetrics, SandboxPool, Slots, default_size, open_slots
from agentrl.sandboxes.sandbox import Backend, Limits, Sandbox, SandboxSpec


@dataclass(frozen=True, kw_only=True)
class RunSandboxes:
    """The sandboxes of a run. Open it with `open_sandboxes`."""

    backend: str | Backend
    order: Sequence[BackendName]
    spec: SandboxSpec
    """What they are made of where an episode does not say."""
    graders: Slots
    leases: Slots
    containers: Slots
    _pools: dict[tuple[Slots, SandboxSpec], SandboxPool] = field(default_factory=dict)
    _opening: dict[SandboxSpec, anyio.Lock] = field(default_factory=lambda: defaultdict(anyio.Lock))

    @asynccontextmanager
    async def container(self, spec: ContainerSpec) -> AsyncIterator[Container]:
        """Yield a container. See `Episode.container`.

        Raises:
            SandboxError: None could be had within `wait_timeout_s`, or none can be started.
        """
        spec = replace(spec, image=spec.image or self.spec.image)
        async with self.containers.occupy(1), open_container(spec) as container:
            yield container

    @asynccontextmanager
    async def sandbox(self, image: str | None, limits: Limits | None, *, first: bool) -> AsyncIterator[Sandbox]:
        """Yield a sandbox, as new. See `Episode.sandbox`.

        Args:
            image: Docker image; None: the run's.
            limits: What a program may use; None: the run's.
            first: Whether the caller holds no other. Those who hold one wait for nobody: what they hold comes back.

        Raises:
            SandboxError: None could be had within `wait_timeout_s`, or none can be started.
        """
        pool = await self._pool(self.leases, image, limits)
        async with pool.take(slots=1 if first else 0) as (sandbox,):
            yield sandbox

    async def grade(
        self,
        source: str,
        tests: Sequence[Test],
        *,
        image: str | None = None,
        limits: Limits | None = None,
        language: Language | None = None,
        **options: Any,
    ) -> Verdict:
        """Run a program against tests in a sandbox, with the options of `grade`. See `Episode.grade`.

        Raises:
            ConfigError: The tests make no sense.
            SandboxError: None could be had within `wait_timeout_s`, or none can be started.
        """
        pool = await self._pool(self.graders, image, limits)
        return await grade(source, tests, pool=pool, language=language or PYTHON, **options)

    def metrics(self) -> dict[str, float]:
        """Return sums since the run began, or nothing while no sandbox has been used."""
        totals = vars(self.graders.metrics)
        return {f"sandbox_{name}": value for name, value in totals.items()} if totals["taken"] else {}

    async def _pool(self, slots: Slots, image: str | None, limits: Limits | None) -> SandboxPool:
        spec = replace(self.spec, image=image or self.spec.image, limits=limits or self.spec.limits)
        async with self._opening[spec]:  # one kind waits for no image of another
            if (slots, spec) not in self._pools:
                backend = await choose_backend(self.backend, spec, self.order)
                self._pools[slots, spec] = SandboxPool(slots, backend, spec)
        return self._pools[slots, spec]


@asynccontextmanager
async def open_sandboxes(
    spec: SandboxSpec | None = None,
    *,
    backend: str | Backend = "auto",
    order: Sequence[BackendName] = AUTO_ORDER,
    graders: int | None = None,
    leases: int | None = None,
    wait_timeout_s: float = 600.0,
) -> AsyncIterator[RunSandboxes]:
    """Yield the sandboxes of a run.

    Args:
        spec: What they are made of where an episode does not say.
        backend: The backend, or its name.
        order: What "auto" tries, in this order.
        graders: How many grade at the same time. Default: one a core.
        leases: How many episodes hold sandboxes at the same time, and how many containers are open. Default: one a core.
        wait_timeout_s: Bound of waiting for one.
    """
    metrics, leases = PoolMetrics(), leases or default_size()
    async with (
        open_slots(graders or default_size(), wait_timeout_s, metrics) as grading,
        open_slots(leases, wait_timeout_s, metrics) as leased,
        open_slots(leases, wait_timeout_s, metrics) as containers,
    ):
        spec = spec or SandboxSpec()
        yield RunSandboxes(
            backend=backend, order=order, spec=spec, graders=grading, leases=leased, containers=containers
        )
