"""The contract of a sandbox backend: agentrl's own keep it, and each way to break it is found."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest

from agentrl.errors import CheckFailedError, SandboxLostError
from agentrl.sandboxes import Backend, BackendName, SandboxSpec
from agentrl.sandboxes.backends.no_isolation import NoIsolation
from agentrl.sandboxes.limit_check import LIMITS
from agentrl.sandboxes.seams import Link
from agentrl.testing import check_backend
from agentrl.testing.check_backend import _Contract

check = __import__("sys").modules["agentrl.testing.check_backend"]
pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:`sandbox.backend` = UNSAFE_no_isolation")]
UNTRIED = ("network = false", "read-only root", "no privileges", "processes = 16", "what nothing counts", "files")


@pytest.mark.soak
async def test_docker_keeps_it(docker: BackendName) -> None:
    """Bubblewrap is tried by `agentrl doctor --backend` (tests/cli/test_doctor.py), a package's backend by its own tests."""
    await check_backend(docker)


@pytest.mark.soak
async def test_no_isolation_keeps_what_it_says() -> None:
    await check_backend("UNSAFE_no_isolation", told_holes=UNTRIED)


class Faulty(NoIsolation):
    """A backend whose sandboxes are real, and whose links may be spoilt."""

    def __init__(self) -> None:
        self.kept = AsyncExitStack()

    def spoil(self, link: Link) -> Link:
        return link

    @asynccontextmanager
    async def start(self, spec: SandboxSpec, core: int | None = None) -> AsyncIterator[Any]:
        async with super().start(spec, core) as link:
            yield self.spoil(link)


class Spoilt:
    def __init__(self, link: Link) -> None:
        self.link = link

    def __getattr__(self, name: str) -> Any:
        return getattr(self.link, name)


class ChangesBytes(Faulty):
    def spoil(self, link: Link) -> Link:
        class Changed(Spoilt):
            async def send(self, data: bytes) -> None:
                await self.link.send(data.replace(b"\xc3\xc4", b"??"))

        return Changed(link)


class HidesALoss(Faulty):
    def spoil(self, link: Link) -> Link:
        class Silent(Spoilt):
            async def receive(self) -> bytes:
                try:
                    return await self.link.receive()
                except SandboxLostError:
                    await anyio.sleep_forever()
                    raise

        return Silent(link)


class GivesOneToAll(Faulty):
    def spoil(self, link: Link) -> Link:
        class Shared(Spoilt):
            work = "/tmp/agentrl-shared-by-all"

        return Shared(link)


class NeverEnds(Faulty):
    @asynccontextmanager
    async def start(self, spec: SandboxSpec, core: int | None = None) -> AsyncIterator[Any]:
        yield await self.kept.enter_async_context(NoIsolation().start(spec, core))


class SwallowsExceptions(Faulty):
    @asynccontextmanager
    async def start(self, spec: SandboxSpec, core: int | None = None) -> AsyncIterator[Any]:
        async with NoIsolation().start(spec, core) as link:
            try:
                yield link
            except Exception:
                return


class TurnsCancellationsIntoErrors(Faulty):
    @asynccontextmanager
    async def start(self, spec: SandboxSpec, core: int | None = None) -> AsyncIterator[Any]:
        async with NoIsolation().start(spec, core) as link:
            try:
                yield link
            except BaseException as error:
                raise RuntimeError("cleaned up") from error


class SaysNothing(Faulty):
    isolates: Mapping[str, str] = {"files": "a machine"}  # type: ignore[misc]


class EndsTheLiving(Faulty):
    def __init__(self) -> None:
        super().__init__()
        self.processes: list[Any] = []

    def spoil(self, link: Link) -> Link:
        self.processes.append(link.process)  # type: ignore[attr-defined]
        return link

    async def prepare(self, spec: SandboxSpec) -> None:
        for process in self.processes:
            await process.stdin.aclose()


class MakesNone(Faulty):
    @asynccontextmanager
    async def start(self, spec: SandboxSpec, core: int | None = None) -> AsyncIterator[Any]:
        await anyio.sleep_forever()
        yield


@pytest.fixture(autouse=True)
def no_blocking_call_in_the_event_loop() -> None:
    """Those of backends as they get ready take microseconds."""


FAULTS: dict[str, tuple[Callable[[], Faulty], str, str]] = {
    "bytes": (ChangesBytes, "large_data_arrives_whole", "other than they went from byte 195 on"),
    "loss": (HidesALoss, "a_loss_is_told", "said nothing for"),
    "shared": (GivesOneToAll, "many_at_once_are_apart", "that each wrote a file of one name read"),
    "left": (NeverEnds, "a_sandbox_ends_with_its_context", "is still there after"),
    "left by a cancellation": (NeverEnds, "a_cancellation_ends_a_sandbox", "is still there after"),
    "exceptions": (
        SwallowsExceptions,
        "a_sandbox_ends_with_its_context",
        "a KeyError of the block came out as NoneType",
    ),
    "cancellation": (TurnsCancellationsIntoErrors, "a_cancellation_ends_a_sandbox", "RuntimeError: cleaned up"),
    "isolates": (SaysNothing, "it_says_what_it_isolates", "no line for cpu, memory, network"),
    "prepare": (EndsTheLiving, "prepare_leaves_living_sandboxes_alone", "SandboxLostError"),
    "a limit": (Faulty, "limits_hold", "read-only root: a program that writes to /, /usr"),
    "no start": (MakesNone, "a_program_is_talked_to", "it took longer than"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend_class, case, says = FAULTS[fault]
    told = tuple(hole for hole in UNTRIED if hole != "read-only root")
    monkeypatch.setattr(check, "END_S", 0.5)
    monkeypatch.setattr(check, "LOSS_S", 1.0)
    monkeypatch.setattr(check, "TRIED", ("read-only root",))
    monkeypatch.setattr(check, "MEMORY", "")
    monkeypatch.setattr("agentrl.sandboxes.process.REPORT_GRACE_S", 1.0)
    monkeypatch.setattr(_Contract, "cases", lambda self: [getattr(self, case)])
    await anyio.Path("/tmp/agentrl-shared-by-all").mkdir(exist_ok=True)
    backend = backend_class()
    async with backend.kept:
        with pytest.raises(CheckFailedError, match=says):
            await check_backend(backend, told_holes=told, many=2, timeout_s=0.5 if fault == "no start" else 20)


async def test_what_is_left_at_a_service_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([1, 3])

    async def alive() -> int:
        return next(counts)

    monkeypatch.setattr(_Contract, "cases", lambda self: [self.it_says_what_it_isolates])
    with pytest.raises(CheckFailedError, match="2 sandboxes are left at the service"):
        await check_backend(Faulty(), alive=alive)


def test_every_case_of_the_contract_is_tried() -> None:
    backend: Backend = Faulty()  # the types of the seam are checked here
    tried = [case.__name__ for case in _Contract(backend, SandboxSpec(limits=LIMITS), 2, None, ()).cases()]
    written = [name for name, value in vars(_Contract).items() if inspect.iscoroutinefunction(value) and name[0] != "_"]
    assert tried == written
