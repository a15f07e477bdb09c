"""The values of a sandbox and its seams: what is asked for, what a run came to, what a backend has to do.

Sandboxes ─► SandboxPool ─► Sandbox ─► Link ─► first_process (process 1 of the sandbox) ─► programs
                                    └─ made by a Backend: Docker, bubblewrap
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from agentrl.errors import ConfigError
from agentrl.sandboxes.checked_fields import AboveZero, WholeAboveZero, check_fields

if TYPE_CHECKING:
    from agentrl.sandboxes.sandbox import Sandbox

MB = 2**20
WORK = "/sandbox"
"""The folder of the user's files, and where programs run."""
DEFAULT_IMAGE = "agentrl/sandbox"
"""Built from `images/Dockerfile` where it is missing."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a program. `Limits(timeout_s=2).changed(memory_mb=64)` changes some. Raises ConfigError for nonsense."""

    timeout_s: AboveZero = 10.0
    """Wall-clock time of one run."""
    cpu_s: AboveZero | None = None
    """CPU seconds of one run, all its processes together. Default: no bound but the wall clock's."""
    memory_mb: WholeAboveZero = 512
    """Memory of each process, and with Docker of all processes together."""
    disk_mb: WholeAboveZero = 64
    """Size of each writable folder: /sandbox, /tmp and /dev/shm. They are in memory."""
    file_mb: WholeAboveZero = 64
    """Size of one file."""
    output_mb: AboveZero = 4
    """Standard output and error of one run, together."""
    processes: WholeAboveZero = 64
    """Processes and threads at the same time."""
    open_files: WholeAboveZero = 128
    """File descriptors of one process."""

    def __post_init__(self) -> None:
        check_fields(self)

    def check_within(self, sandbox: Limits) -> None:
        """Check that these ask for no more than a sandbox with the limits `sandbox` has.

        Raises:
            ConfigError: They ask for more.
        """
        for name in ("memory_mb", "disk_mb", "processes"):
            wanted, there = getattr(self, name), getattr(sandbox, name)
            if wanted > there:
                raise ConfigError(
                    f"{name} = {wanted} is more than the {there} of the sandbox; ask for less, or make the sandbox with more (sandbox.memory_mb of a run)"
                )

    def changed(self, **changes: Any) -> Limits:
        """Return these limits with some changed; None leaves one as it is."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})


@dataclass(frozen=True, kw_only=True)
class SandboxSpec:
    """A kind of sandbox, with one core and no network. Sandboxes of one spec are interchangeable."""

    image: str = DEFAULT_IMAGE
    """Docker image; it needs a `python3` of 3.10 or later. bubblewrap shows this machine's own /usr instead."""
    limits: Limits = field(default_factory=Limits)
    runtime: str | None = None
    """OCI runtime of Docker, such as `runsc`."""

    def __post_init__(self) -> None:
        check_fields(self)


class EndReason(StrEnum):
    """The reason why a run ended."""

    EXIT = "exit"
    """By itself; see exit_code."""
    SIGNAL = "signal"
    """By a signal that was not one of the limits'."""
    TIMEOUT = "timeout"
    """By timeout_s or cpu_s."""
    OUT_OF_MEMORY = "out_of_memory"
    OUTPUT_LIMIT = "output_limit"
    KILLED = "killed"
    """By `Process.kill`."""


@dataclass(frozen=True, kw_only=True)
class ExecResult:
    r"""The result of a run.

    ExecResult(end_reason=EndReason.EXIT, exit_code=0, stdout=b"42\n", duration_s=0.011, ...)
    """

    end_reason: EndReason
    exit_code: int | None = None
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    duration_s: float = 0.0
    """Wall-clock time from start to end, inside the sandbox."""
    cpu_s: float = 0.0
    """CPU time of all its processes."""
    peak_memory_bytes: int = 0
    """Resident memory of its largest process."""

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with exit code 0."""
        return self.end_reason is EndReason.EXIT and self.exit_code == 0


class Link(Protocol):
    """Bytes to and from the first process of a sandbox."""

    async def send(self, data: bytes) -> None:
        """Send all of it.

        Raises:
            SandboxLostError: The sandbox is gone.
        """
        ...

    async def receive(self) -> bytes:
        """Return some bytes, at least one.

        Raises:
            SandboxLostError: There are no more; it says what the sandbox said last.
        """
        ...


class Backend(Protocol):
    """A source of sandboxes."""

    name: str

    async def prepare(self, spec: SandboxSpec) -> None:
        """Get ready for sandboxes of this kind: fetch the image, remove what a crashed run left.

        Raises:
            SandboxError: The backend does not work here, cannot do what `spec` asks for, or has no such image.
        """
        ...

    def start(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        """Return a new sandbox, destroyed at the end of the context: `LinkedSandbox` makes one of a link.

        Raises:
            SandboxError: It does not start.
        """
        ...
