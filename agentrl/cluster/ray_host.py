"""A node of the cluster as a `Host`, and a process there as a `Child`: both speak to one `NodeProcess`, a Ray actor."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream
from ray.exceptions import RayError

from agentrl.cluster.answers import COPY_TIMEOUT_S, answered
from agentrl.cluster.brought import Brought
from agentrl.concurrency.child_process import STOP_TIMEOUT_S, end_of_log
from agentrl.concurrency.condition import Condition
from agentrl.concurrency.host import Child
from agentrl.concurrency.threads import in_thread
from agentrl.errors import AgentRLError, ClusterError, error_line, one_line
from agentrl.machine.privacy import open_private

MAX_WAITING_BYTES = 2**22
"""So much may wait for an actor; then whoever sends waits."""
LINES_KEPT = 2**16
LOST = -9
"""The exit status of a process whose actor, or node, is gone: it ends as if it were killed."""


@dataclass(eq=False)
class RayHost:
    """The node of an actor. It is `agentrl.concurrency.host.Host`."""

    name: str
    actor: Any
    node: str
    address: str
    python: str
    scratch: Path | None
    package: Path
    work: Path | None
    """The working directory of its processes, where the workflow's file is, and what lies beside it."""
    brought: Brought

    @asynccontextmanager
    async def child_process(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        error: type[AgentRLError],
        env: Mapping[str, str] | None = None,
        stream: bool = False,
    ) -> AsyncIterator[Child]:
        """Run a command there for the length of the context. Of `env` it gets what differs from this process's environment."""
        own = {key: value for key, value in (env or {}).items() if os.environ.get(key) != value}
        try:
            start = self.actor.start.remote(name, list(command), own, stream)
            await answered(start, f"the {name} cannot be started on {self.name}")
        except ClusterError as failure:
            raise error(str(failure)) from failure
        child = RayChild(name, self, log, error, stream)
        # No task group: who ends a server may be another task than who started it, which no cancel scope allows.
        tasks = [asyncio.create_task(child.take_events()), asyncio.create_task(child.give())]
        try:
            yield child
        finally:
            with anyio.CancelScope(shield=True):
                with suppress(ClusterError):
                    if child.status is None:
                        await answered(self.actor.stop.remote(), f"the {name} does not end", 2 * STOP_TIMEOUT_S)
                        with anyio.move_on_after(STOP_TIMEOUT_S):
                            await child.wait()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def free_port(self) -> int:
        """Return a port that is free there."""
        return await answered(self.actor.free_port.remote(self.address), f"{self.name} names no free port")

    async def bring(self, directory: Path, *, weights: bool = True) -> Path:
        """Have a directory of this machine there, once for all processes of the node. Without `weights`, without those of a model."""
        return await self.brought.bring(self, directory, weights=weights)

    async def fetch(self, directory: Path, to: Path) -> None:
        """Copy a directory from there into a new one here.

        Raises:
            ClusterError: The node is gone, or has no such directory.
        """
        await in_thread(lambda: to.mkdir(parents=True))
        try:
            with anyio.fail_after(COPY_TIMEOUT_S):
                async for piece in self.actor.fetch.remote(str(directory)):
                    await in_thread(_append, to, *(await piece))
        except TimeoutError:
            raise ClusterError(f"{directory} of {self.name} did not arrive within {COPY_TIMEOUT_S:g} s") from None
        except RayError as error:
            raise ClusterError(f"{directory} of {self.name} cannot be fetched: {one_line(error)}") from error

    async def remove(self, directory: Path) -> None:
        """Delete what was brought, once nobody else on the node has use for it, or what was written there."""
        if self.brought.let_go(self, directory):
            await answered(self.actor.remove.remote(str(directory)), f"{directory} of {self.name} cannot be removed")


def _append(directory: Path, name: str, content: bytes) -> None:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(content)


@dataclass(eq=False)
class _Stream(ByteStream):
    """Our end of the stream that a process there was given."""

    child: RayChild
    arrived: bytearray = field(default_factory=bytearray)
    ended: bool = False
    changed: Condition = field(default_factory=Condition)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await anyio.lowlevel.checkpoint()
        while not self.arrived:
            if self.ended:
                raise anyio.EndOfStream
            await self.changed.wait()
        content = bytes(self.arrived[:max_bytes])
        del self.arrived[:max_bytes]
        self.changed.notify_all()
        return content

    async def send(self, item: bytes) -> None:
        await self.child.send(item)

    async def send_eof(self) -> None:
        """Nothing: it ends with the process."""

    async def aclose(self) -> None:
        self.end()
        await anyio.lowlevel.checkpoint()

    def end(self) -> None:
        self.ended = True
        self.changed.notify_all()


class RayChild:
    """A process on a node. It is `agentrl.concurrency.host.Child`."""

    def __init__(self, name: str, host: RayHost, log: Path, error: type[AgentRLError], stream: bool) -> None:
        self.stream = _Stream(self) if stream else None
        self.status: int | None = None
        self._name = name
        self._host = host
        self._log = log
        self._error = error
        self._lines: list[str] = []
        self._to_give: tuple[list[str], bytearray] = ([], bytearray())
        self._changed = Condition()

    async def write_line(self, line: str) -> None:
        """Send one line."""
        if self.status is not None:
            raise await self._died()
        self._to_give[0].append(line)
        self._changed.notify_all()
        await anyio.lowlevel.checkpoint()

    async def send(self, content: bytes) -> None:
        """Send bytes over the stream: all of them or, cancelled, none.

        Raises:
            BrokenResourceError: The process has ended.
        """
        await anyio.lowlevel.checkpoint()
        while len(self._to_give[1]) > MAX_WAITING_BYTES and self.status is None:
            await self._changed.wait()
        if self.status is not None:
            raise anyio.BrokenResourceError
        self._to_give[1].extend(content)
        self._changed.notify_all()

    async def read_line(self, timeout_s: float) -> str:
        """Return the next line. Raises the child's error when it ends, or says nothing for `timeout_s`."""
        try:
            with anyio.fail_after(timeout_s):
                while not self._lines:
                    if self.status is not None:
                        raise await self._died()
                    await self._changed.wait()
                return self._lines.pop(0)
        except TimeoutError:
            raise self._error(f"the {self._name} said nothing for {timeout_s:g} s; its log is {self._log}") from None

    async def wait(self) -> int:
        """Wait until the process has ended; its exit status, negative for a signal."""
        while self.status is None:
            await self._changed.wait()
        return self.status

    def signal(self, number: int) -> None:
        """Send a signal to the process, if it runs."""
        self._host.actor.signal.remote(number)

    def kill(self) -> None:
        """Kill the process and all that it started."""
        self._host.actor.kill.remote()

    async def take_events(self) -> None:
        """Take what comes from the process, until it has ended or its actor is gone."""
        status = LOST
        try:
            async for ref in self._host.actor.events.options(_generator_backpressure_num_objects=16).remote():
                for kind, content in await ref:
                    if kind == "end":
                        status = content
                    else:
                        await self._take(kind, content)
        except RayError as error:
            lost = f"\nagentrl: {self._host.name} lost the {self._name}: {one_line(error)}\n"
            await self._take("log", lost.encode())
        self.status = status
        if self.stream is not None:
            self.stream.end()
        self._changed.notify_all()

    async def _take(self, kind: str, content: Any) -> None:
        if kind == "log":
            await in_thread(_write_log, self._log, content)
        elif kind == "line":
            self._lines = [*self._lines[-LINES_KEPT:], content]
            self._changed.notify_all()
        elif self.stream is not None:
            while len(self.stream.arrived) > MAX_WAITING_BYTES and not self.stream.ended:
                await self.stream.changed.wait()
            self.stream.arrived.extend(content)
            self.stream.changed.notify_all()

    async def give(self) -> None:
        """Give the process what waits for it, all in one call, as long as it takes anything."""
        taken = True
        while taken:
            while not any(self._to_give):
                await self._changed.wait()
            (lines, content), self._to_give = self._to_give, ([], bytearray())
            self._changed.notify_all()
            try:
                taken = await self._host.actor.give.remote(lines, bytes(content))
            except RayError:
                return  # `take_events` says so

    async def _died(self) -> AgentRLError:
        said = error_line(await in_thread(end_of_log, self._log)) or "nothing in its log"
        return self._error(f"the {self._name} on {self._host.name} ended: {said}; its log is {self._log}")


def _write_log(log: Path, content: bytes) -> None:
    with open_private(log, "ab") as file:
        file.write(content)
