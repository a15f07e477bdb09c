"""The sandboxes of a run as its episodes ask for them: `episode.sandbox()` and `episode.grade()`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import anyio

from agentrl.errors import SandboxError
from agentrl.sandboxes.container import Container, open_container
from agentrl.sandboxes.container_engine import ContainerSpec
from agentrl.sandboxes.grading.grade import grade
from agentrl.sandboxes.grading.partial_credit import Baseline
from agentrl.sandboxes.grading.tests import PYTHON, Language, Test
from agentrl.sandboxes.grading.verdict import Verdict
from agentrl.sandboxes.pool import Lease, SandboxPool
from agentrl.sandboxes.pools_of_run import Purpose, Sandboxes
from agentrl.sandboxes.seams import Limits, SandboxSpec


@dataclass(frozen=True)
class RunSandboxes:
    """The sandboxes of a run, and what they are made of where an episode does not say."""

    sandboxes: Sandboxes
    image: str
    runtime: str | None
    limits: Limits
    containers: anyio.Semaphore
    """How many containers may be open at the same time."""
    wait_timeout_s: float

    @asynccontextmanager
    async def container(self, spec: ContainerSpec) -> AsyncIterator[Container]:
        """Yield a container. See `Episode.container`.

        Raises:
            SandboxError: None could be had within `wait_timeout_s`, or none can be started.
        """
        try:
            with anyio.fail_after(self.wait_timeout_s):
                await self.containers.acquire()
        except TimeoutError as error:
            raise SandboxError(
                f"no container was free within sandbox.wait_timeout_s = {self.wait_timeout_s:g}; raise it, or sandbox.leases"
            ) from error
        try:
            async with open_container(
                replace(spec, image=spec.image or self.image, runtime=spec.runtime or self.runtime)
            ) as container:
                yield container
        finally:
            self.containers.release()

    async def acquire(
        self,
        *,
        image: str | None,
        limits: Limits | None,
        cpus: float,
        network: bool,
        folders: Mapping[str, str],
        held: int = 0,
    ) -> Lease:
        """Return a sandbox, as new, that is the caller's until it is released. See `Episode.sandbox`.

        Args:
            image: As in `Episode.sandbox`, like all but the last.
            limits: What a program may use.
            cpus: CPUs of its programs together.
            network: Whether they reach the network.
            folders: What they see of this machine.
            held: How many the caller holds. Each number has pools of its own, so that nobody waits for one who waits for the same pool.

        Raises:
            SandboxError: None could be had within the pool's `wait_timeout_s`, or none can be started.
        """
        pool = await self._pool("lease", image, limits, cpus, network, folders, held)
        (lease,) = await pool.acquire()  # which counts as used at once
        return lease

    async def grade(
        self,
        source: str,
        tests: Sequence[Test],
        *,
        language: Language | None,
        image: str | None,
        limits: Limits | None,
        fail_fast: bool,
        partial: bool | Baseline,
        deadline_s: float | None,
    ) -> Verdict:
        """Run a program against tests in a sandbox. See `Episode.grade`.

        Raises:
            ConfigError: Both `partial` and `fail_fast` are asked for, or the tests make no sense.
            SandboxError: None could be had within the pool's `wait_timeout_s`, or none can be started.
        """
        pool = await self._pool("grade", image, limits, cpus=1.0, network=False, folders={})
        with pool.in_use():
            return await grade(
                source,
                tests,
                pool=pool,
                language=language or PYTHON,
                limits=limits,
                fail_fast=fail_fast,
                partial=partial,
                deadline_s=deadline_s,
            )

    def metrics(self) -> dict[str, float]:
        """Return sums since the run began, or nothing while no sandbox has been used."""
        totals = vars(self.sandboxes.metrics())
        return {f"sandbox_{name}": value for name, value in totals.items()} if totals["taken"] else {}

    async def _pool(
        self,
        purpose: Purpose,
        image: str | None,
        limits: Limits | None,
        cpus: float,
        network: bool,
        folders: Mapping[str, str],
        held: int = 0,
    ) -> SandboxPool:
        spec = SandboxSpec(
            image=image or self.image,
            limits=limits or self.limits,
            cpus=cpus,
            network=network,
            runtime=self.runtime,
            folders=tuple(sorted(folders.items())),
        )
        return await self.sandboxes.pool(spec, purpose, held)
