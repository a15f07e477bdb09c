"""A machine on which a run starts processes: this one, or one that is reached otherwise."""

from __future__ import annotations

import random
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from pathlib import Path
from typing import Required, TypedDict, Unpack

import agentrl
from agentrl.errors import AgentRLError
from agentrl.system.child_process import Child, child_process
from agentrl.system.tasks import in_thread


class ProcessOptions(TypedDict, total=False):
    """The options of a process on any machine."""

    log: Required[Path]
    error: Required[type[AgentRLError]]
    env: Mapping[str, str] | None
    stream: bool


class Host:
    """A machine on which a run starts processes: this one. A node of a cluster is a subclass."""

    name = "this machine"
    address = "127.0.0.1"
    """Where servers that are started there are reached."""
    python = sys.executable
    scratch: Path | None = None
    """A directory there for what processes write; None on this machine, where they write in place."""
    package = Path(agentrl.__file__).parent
    """Where agentrl itself is there."""
    work: Path | None = None
    """Where the workflow's file is there, with what lies beside it; None on this machine, where it is in place."""
    pass_fds: Sequence[int] = ()
    """Descriptors that stay open in every process that is started on this machine."""

    def child_process(
        self, name: str, command: Sequence[str], **options: Unpack[ProcessOptions]
    ) -> AbstractAsyncContextManager[Child]:
        """Run a command there for the length of the context; see `agentrl.system.child_process.child_process`."""
        return child_process(name, command, pass_fds=self.pass_fds, **options)

    async def free_port(self) -> int:
        """Return a port that is free there."""
        return await in_thread(free_port, self.address)

    async def bring(self, directory: Path, *, weights: bool = True) -> Path:
        """Have a directory of this machine there; return where it is. Without `weights`, files of a model's weights may be missing."""
        return directory

    def path_of(self, directory: Path) -> Path:
        """Return where a process there writes what is to be at `directory` on this machine."""
        return directory if self.scratch is None else self.scratch.joinpath(*directory.parts[1:])

    async def fetch(self, directory: Path, to: Path, *, for_servers: bool = False) -> None:
        """Copy a directory from there into a new one here. With `for_servers`, the machines of the engine's servers will have it brought next."""

    async def remove(self, directory: Path) -> None:
        """Delete what was brought or written there: on this machine nothing, where what was brought is the original."""


PORTS = range(20_000, 32_768)
"""Ports below those that Linux gives to connections."""


def free_port(address: str = "127.0.0.1") -> int:
    """Return a free port of this machine's `address`. No connection takes it before the process that is to listen there does.

    Raises:
        AgentRLError: None is found.
    """
    for port in random.SystemRandom().sample(PORTS, 100):
        with suppress(OSError), socket.create_server((address, port)):
            return port
    raise AgentRLError(f"none of 100 ports of {address} can be listened on; is it an address of this machine?")


OpenHost = Callable[[str, str], AbstractAsyncContextManager[Host]]
"""Opens a machine for one process, for the length of a context. It is told the process's role, which says what it needs, and its name."""


def on_this_machine(role: str, name: str) -> AbstractAsyncContextManager[Host]:
    """Return this machine, for every kind of process. It is an `OpenHost`."""
    return nullcontext(Host())
