"""A sandbox as its user sees it, and what a backend has to do. `linked_sandbox.py` and `backends/hosted.py` are sandboxes.

Sandboxes ─► SandboxPool ─► Sandbox ─► Link ─► first_process (process 1 of the sandbox) ─► programs
                                    └─ made by a Backend: Docker, bubblewrap
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, Unpack, get_type_hints

from typing_extensions import TypedDict

from agentrl.errors import ConfigError, SandboxError, SandboxLostError
from agentrl.sandboxes.checked_fields import AboveZero, Checked, WholeAboveZero, check_argument
from agentrl.system import traces

if TYPE_CHECKING:
    from agentrl.sandboxes.linked_sandbox import Process

MB = 2**20
WORK = "/sandbox"
"""The folder of the user's files, and where programs run."""
DEFAULT_IMAGE = "agentrl/sandbox"
"""Built from `images/Dockerfile` where it is missing."""
MAX_STDIN_BYTES = 64 * MB
MAX_SNAPSHOT_MB = 32
PACK = "find . -mindepth 1 -maxdepth 1 -print0 | tar -cf - --null -T -"
"""Without the folder itself, whose mode only its owner may restore."""


@dataclass(frozen=True, kw_only=True)
class Limits(Checked):
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
class SandboxSpec(Checked):
    """A kind of sandbox, with one core and no network. Sandboxes of one spec are interchangeable."""

    image: str = DEFAULT_IMAGE
    """Docker image; it needs a `python3` of 3.10 or later. bubblewrap shows this machine's own /usr instead."""
    limits: Limits = field(default_factory=Limits)


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


class RunOptions(TypedDict, total=False):
    """The options of each way to run a program."""

    stdin: bytes
    """Its whole input; of a program that is run to its end alone. Default: none."""
    timeout_s: float | None
    """Bound of its wall-clock time, in place of that of `limits`."""
    env: Mapping[str, str]
    """Variables besides the sandbox's own."""
    cwd: str
    """Where it runs, in place of `Sandbox.work`."""
    limits: Limits | None
    """Its limits, in place of the sandbox's."""
    only_files: Mapping[str, bytes] | None
    """The writable folders are emptied and these files written first, in the same message; `{}` only empties them."""
    silence_s: float | None
    """How long it may print nothing on its standard output, after the first time; services do not look. Default: as long as it may run."""


_OPTIONS = get_type_hints(RunOptions)


class Sandbox(ABC):
    r"""A locked-down place to run programs.

    Get one from `open_sandbox()`, a `SandboxPool` or `episode.sandbox()`.

        done = await sandbox.run(["python3", "-c", "print(6 * 7)"], timeout_s=2)
        assert done.ok and done.stdout == b"42\n"

    Files stay until `reset`. When the only running program ends, the processes that it left running are killed.
    """

    def __init__(self, spec: SandboxSpec, *, env: Mapping[str, str], work: str = WORK) -> None:
        self.spec = spec
        self.env = env
        """Variables of every program."""
        self.work = work
        """Where the user's files are, inside the sandbox."""
        self.lost: str | None = None
        """Why the sandbox is gone, when it is."""
        self.runs = 0
        self.run_s = 0.0

    async def run(self, argv: Sequence[str], **options: Unpack[RunOptions]) -> ExecResult:
        """Run a command to its end.

        Args:
            argv: The program and its arguments.
            options: See `RunOptions`.

        Raises:
            SandboxLostError: The sandbox was lost with it.
            ConfigError: The limits are more than the sandbox's, or an input has more than 64 MB.
            SandboxError: `argv` is no list of words.
        """
        program = {"argv": _words(argv)}
        return await traced(self.spec.image, self._run(program, self._checked(options), {"stdin": b"", **options}))

    async def run_python(
        self,
        script: str = "",
        *,
        code: str = "",
        args: Sequence[str] = (),
        framework: str | None = None,
        **options: Unpack[RunOptions],
    ) -> ExecResult:
        """Run a Python file of the sandbox, or `code`, to its end, in a process forked from an interpreter that is warm already.

        The same as `run(["python3", script, *args])`, without the 10 to 30 ms that an interpreter takes to start. With a `framework` of
        `inside/frameworks.py`, it has imported that; `code` may import from `agentrl.sandboxes.inside`.
        """
        program = {"script": script, "code": code, "args": list(args), "framework": framework}
        return await traced(self.spec.image, self._run(program, self._checked(options), {"stdin": b"", **options}))

    async def start(self, argv: Sequence[str], **options: Unpack[RunOptions]) -> Process:
        """Start a command, which is talked to, and go on."""
        return await self._start({"argv": _words(argv)}, self._checked(options), options)

    async def start_python(self, code: str, *, framework: str | None = None, **options: Unpack[RunOptions]) -> Process:
        """Start Python `code` as `run_python` does, and go on."""
        return await self._start({"code": code, "framework": framework}, self._checked(options), options)

    def _checked(self, options: RunOptions) -> Limits:
        """Check options, and return the limits of a program.

        Raises:
            TypeError: There is no such option.
            ConfigError: One has a wrong value.
        """
        for name, value in options.items():
            if name not in _OPTIONS:
                raise TypeError(f"a run has no option {name!r}; it may have {', '.join(_OPTIONS)}")
            check_argument(name, value, _OPTIONS[name])
        if len(options.get("stdin", b"")) > MAX_STDIN_BYTES:
            raise ConfigError(f"stdin has more than {MAX_STDIN_BYTES} bytes; write it to a file of the sandbox")
        limits = (options.get("limits") or self.spec.limits).changed(timeout_s=options.get("timeout_s"))
        limits.check_within(self.spec.limits)
        self.runs += 1
        return limits

    @abstractmethod
    async def _run(self, program: Mapping[str, Any], limits: Limits, options: RunOptions) -> ExecResult:
        """Run a program, which is `argv`, or `script` or `code` in Python, to its end."""

    @abstractmethod
    async def _start(self, program: Mapping[str, Any], limits: Limits, options: RunOptions) -> Process:
        """Start a program. Without `stdin`, its input is what is sent to it."""

    @abstractmethod
    async def write(self, path: str, data: bytes | str) -> None:
        """Write a file, and the folders above it; a relative path is under `work`."""

    @abstractmethod
    async def read(self, path: str, max_bytes: int = 16 * MB) -> bytes:
        """Read a regular file.

        Raises:
            SandboxError: It is missing or larger.
        """

    @abstractmethod
    async def reset(self) -> None:
        """Make the sandbox as new: kill every process of its user, and empty the writable folders.

        Raises:
            SandboxError: It cannot be made as new.
            SandboxLostError: It is gone, or did not answer.
        """

    async def snapshot(self) -> bytes:
        """Return everything under `work`, as a tar archive that `restore` takes: at most 32 MB, with holes in files written out.

        Raises:
            SandboxError: It is more, or something cannot be read.
        """
        return await self._tar(PACK, limits=self.spec.limits.changed(output_mb=MAX_SNAPSHOT_MB))

    async def restore(self, snapshot: bytes) -> None:
        """Empty the writable folders and put the files of a snapshot under `work`."""
        await self._tar("tar -xf -", stdin=snapshot, only_files={})

    async def _tar(self, command: str, **options: Unpack[RunOptions]) -> bytes:
        done = await self.run(["sh", "-c", command], **options)
        if not done.ok:
            raise SandboxError(f"tar ended by {done.end_reason}: {done.stderr[-500:].decode(errors='replace')}")
        return done.stdout

    def _check(self) -> None:
        if self.lost is not None:
            raise SandboxLostError(f"the sandbox is gone: {self.lost}")

    def lose(self, why: str) -> SandboxLostError:
        """Give the sandbox up, and return the error that says so."""
        self.lost = self.lost or why
        return SandboxLostError(f"the sandbox is gone: {self.lost}")


async def traced(image: str, run: Coroutine[Any, Any, ExecResult]) -> ExecResult:
    """Return the result of a program's run, which is recorded as a span."""
    with traces.sandbox_run(image) as span:
        done = await run
        span.set_attribute("agentrl.sandbox.end_reason", done.end_reason)
        if done.exit_code is not None:
            span.set_attribute("process.exit.code", done.exit_code)
    return done


def _words(argv: Sequence[str]) -> list[str]:
    if not argv or isinstance(argv, str) or not all(isinstance(word, str) and "\0" not in word for word in argv):
        raise SandboxError(f"argv = {argv!r} must be a list of words, the program first")
    return list(argv)


def as_bytes(text: str | bytes) -> bytes:
    """Return a text as a program reads it, and bytes as they are. A model's may hold half of a surrogate pair: no encoding has that, and Python takes it for an error."""
    return text.encode(errors="surrogatepass") if isinstance(text, str) else text


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
