"""A machine on which a run starts processes: this one, or one that is reached otherwise."""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Protocol, Required, TypedDict, Unpack

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


class Host(Protocol):
    """A machine on which a run starts processes."""

    name: str
    address: str
    """Where servers that are started there are reached."""
    python: str
    scratch: Path | None
    """A directory there for what processes write; None on this machine, where they write in place."""
    package: Path
    """Where agentrl itself is there."""
    work: Path | None
    """Where the workflow's file is there, with what lies beside it; None on this machine, where it is in place."""

    def child_process(
        self, name: str, command: Sequence[str], **options: Unpack[ProcessOptions]
    ) -> AbstractAsyncContextManager[Child]:
        """Run a command there for the length of the context; see `agentrl.system.child_process.child_process`."""

    async def free_port(self) -> int:
        """Return a port that is free there."""

    async def bring(self, directory: Path, *, weights: bool = True) -> Path:
        """Have a directory of this machine there; return where it is. Without `weights`, files of a model's weights may be missing."""

    async def fetch(self, directory: Path, to: Path, *, for_servers: bool = False) -> None:
        """Copy a directory from there into a new one here. With `for_servers`, the machines of the engine's servers will have it brought next."""

    async def remove(self, directory: Path) -> None:
        """Delete what was brought or written there."""


class ThisMachine:
    """The machine that the main process runs on. `pass_fds`: descriptors that stay open in every process started."""

    name, address, python = "this machine", "127.0.0.1", sys.executable
    scratch: Path | None = None
    package = Path(agentrl.__file__).parent
    work: Path | None = None

    def __init__(self, pass_fds: Sequence[int] = ()) -> None:
        self._pass_fds = pass_fds

    def child_process(
        self, name: str, command: Sequence[str], **options: Unpack[ProcessOptions]
    ) -> AbstractAsyncContextManager[Child]:
        """Run a command for the length of the context."""
        return child_process(name, command, pass_fds=self._pass_fds, **options)

    async def free_port(self) -> int:
        """Return a port that is free."""
        return await in_thread(free_port, self.address)

    async def bring(self, directory: Path, *, weights: bool = True) -> Path:
        """Return the directory: it is here."""
        return directory

    async def fetch(self, directory: Path, to: Path, *, for_servers: bool = False) -> None:
        """Copy a directory into a new one."""
        await in_thread(shutil.copytree, directory, to)

    async def remove(self, directory: Path) -> None:
        """Leave what was brought: it is the original."""


def free_port(address: str = "127.0.0.1") -> int:
    """Return a free port of this machine's `address`."""
    with socket.create_server((address, 0)) as server:
        return int(server.getsockname()[1])


OpenHost = Callable[[str, str], AbstractAsyncContextManager[Host]]
"""Opens a machine for one process, for the length of a context. It is told the process's role, which says what it needs, and its name."""


def on_this_machine(role: str, name: str) -> AbstractAsyncContextManager[Host]:
    """Return this machine, for every kind of process. It is an `OpenHost`."""
    return nullcontext(ThisMachine())
