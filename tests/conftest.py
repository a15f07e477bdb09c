"""Shared fixtures. Everything real: the nano model, an embedded server in a process of its own, loopback HTTP."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from _pytest.terminal import TerminalReporter
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, settings
from safetensors.torch import load_file, save_file
from xdist.scheduler import LoadScopeScheduling

from agentrl.models import NANO
from agentrl.proxy import ChatFormat, load_chat_format
from agentrl.sandboxes import BackendName
from tests.real_sandboxes import working_backend
from tests.real_sglang import sglang_command

torch.set_num_threads(1)  # the models are tiny, and threads that spin slow down whatever else runs here
# Time is bounded for each test, and not for each example. The gate tries the same examples each time, the soak new ones.
settings.register_profile("gate", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("soak", settings.get_profile("gate"), derandomize=False)
START_TIMEOUT_S = 60
collect_ignore = ["workflows/terminal_tasks"]
"""Task folders, whose tests run in sandboxes."""
OF_DOCKER = (
    "cli/test_doctor",
    "sandboxes/backends/test_docker_backend",
    "sandboxes/test_docs",
)
"""Files whose tests use a Docker engine, beside those that have one as a parameter."""
OF_SGLANG = (
    "engine/test_broadcast",
    "engine/test_real_sglang",
    "engine/test_sglang_server",
    "engine/test_unfinished_replies",
    "proxy/test_images",
)
"""Files whose tests start SGLang's servers, beside those that have one as a parameter."""
OF_SANDBOXES = ("backend", "bubblewrap", "docker")
"""Fixtures of tests that open sandboxes."""
OF_SERVERS = ("server_url", "sglang_url", "any_server_url", "own_server")
"""Fixtures of tests that need a server of the engine, which every process would start for itself."""
SLOWEST = 10
"""How many tests, and files, are listed at the end."""
_SCRATCH: dict[int, str] = {}
"""The temporary directories of running servers, by their process."""


def shared_with(nodeid: str) -> str | None:
    """What a test shares with others, which cannot use it at the same time: a Docker engine, or SGLang's servers."""
    file, _, name = nodeid.partition("::")
    parameters = name.partition("[")[2]
    place = file.removeprefix("tests/").removesuffix(".py")
    if "docker" in parameters or place in OF_DOCKER:
        return "Docker"
    return "SGLang" if "sglang" in parameters or place in OF_SGLANG else None


class Scheduling(LoadScopeScheduling):
    """Give tests one by one to the processes that share the suite, but those of Docker all to one, as a test kills the engine, and
    those of SGLang all to one, as servers of more than one would find no time."""

    def _split_scope(self, nodeid: str) -> str:
        return shared_with(nodeid) or nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what starts servers or sandboxes, which `make test-fast` leaves out, and begin with what one process has for
    itself: at the end none is left with it while the others wait."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if shared_with(item.nodeid) or not {*OF_SANDBOXES, *OF_SERVERS}.isdisjoint(fixtures):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: shared_with(item.nodeid) is None)


_RUNNING: set[str] = set()
"""The tests that are running now, as the process that shares them out knows it."""


def pytest_runtest_logstart(nodeid: str) -> None:
    _RUNNING.add(nodeid)


def pytest_runtest_logfinish(nodeid: str) -> None:
    _RUNNING.discard(nodeid)


def pytest_configure(config: pytest.Config) -> None:
    """Choose the examples of property tests, and say at SIGTERM, which scripts/run_tests.py sends after the time limit of all tests,
    which of them were running."""
    settings.load_profile("soak" if config.option.markexpr == "soak" else "gate")

    def stop(*_: object) -> None:
        pytest.exit(f"the time is over; running: {', '.join(sorted(_RUNNING)) or 'no test'}", returncode=1)

    signal.signal(signal.SIGTERM, stop)


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """List the files that took longest, as pytest lists the tests."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration  # type: ignore[assignment]
    if not seconds:
        return
    terminalreporter.section(f"slowest {SLOWEST} files")
    for file, duration in seconds.most_common(SLOWEST):
        terminalreporter.line(f"{duration:.1f}s {file}")


def pytest_collection_finish() -> None:
    """Leave what imports and collection made out of every later search for garbage: each would take most of a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


PRODUCT = ["agentrl", *(f"agentrl.{folder}" for folder in ("envs", "sandboxes", "trainer", "workflows"))]
"""The packages of the product: blockbuster goes by the folder of each, and four lie beside the first."""


@pytest.fixture(autouse=True)
def no_blocking_call_in_the_event_loop() -> Iterator[None]:
    """A call of agentrl that blocks the event loop fails the test."""
    with blockbuster_ctx(PRODUCT):
        yield


@pytest.fixture
def dead_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that names proxies, of which nothing answers, and some clients cannot even be made."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "socks5://127.0.0.1:9")


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """A search for garbage is of all threads, and comes to the one that is measured as chance has it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def nano_format() -> ChatFormat:
    return load_chat_format(NANO)


def start_server(model_path: Path, *flags: str, kind: str = "embedded") -> tuple[subprocess.Popen[str], str]:
    """A server and its URL. It ends when its standard input closes."""
    if kind == "embedded":
        command = [sys.executable, "-m", "agentrl.engine.embedded", f"--model-path={model_path}"]
        command += ["--exit-with-stdin"]
    else:
        command = sglang_command(model_path)
    scratch = tempfile.mkdtemp(prefix="agentrl-test-")
    process = subprocess.Popen(
        [*command, *flags],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "TMPDIR": scratch},
    )
    _SCRATCH[process.pid] = scratch
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("listening on "), f"the {kind} server did not start"
    return process, f"http://127.0.0.1:{line.split()[-1]}"


def stop_server(process: subprocess.Popen[str]) -> int:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    code = process.wait(timeout=40)
    process.stdout.close()
    shutil.rmtree(_SCRATCH.pop(process.pid, ""), ignore_errors=True)
    return code


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """The embedded server."""
    process, url = start_server(NANO)
    yield url
    assert stop_server(process) == 0


@pytest.fixture(scope="session")
def sglang_url() -> Iterator[str]:
    """A real SGLang server."""
    process, url = start_server(NANO, kind="sglang")
    yield url
    stop_server(process)


@pytest.fixture(scope="session", params=["embedded", pytest.param("sglang", marks=pytest.mark.soak)])
def any_server_url(request: pytest.FixtureRequest) -> str:
    """Each kind of server in turn."""
    url: str = request.getfixturevalue("server_url" if request.param == "embedded" else "sglang_url")
    return url


@pytest.fixture(scope="session", params=["bubblewrap", pytest.param("docker", marks=pytest.mark.soak)])
def backend(request: pytest.FixtureRequest) -> BackendName:
    """Each backend in turn."""
    return working_backend(request.param)


@pytest.fixture(scope="session")
def docker() -> BackendName:
    return working_backend("docker")


@pytest.fixture(scope="session")
def bubblewrap() -> BackendName:
    return working_backend("bubblewrap")


@pytest.fixture(scope="session")
def versions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Weights of versions 0 to 3: the nano model, and three that differ from it in every parameter."""
    base = load_file(NANO / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    paths = []
    for version in range(4):
        path = tmp_path_factory.mktemp(f"v{version}")
        noise = 0.02 * version
        tensors = {
            name: tensor.float() * (1 + noise * torch.randn(tensor.shape, generator=generator))
            for name, tensor in base.items()
        }
        save_file(tensors, path / "model.safetensors")
        paths.append(path)
    return paths
