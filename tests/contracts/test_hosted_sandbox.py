"""The contract of a hosted sandbox: `start`, `run`, `read`, `write`, `close`, and the sandboxes that agentrl makes of them.

Run it on a service of yours: AGENTRL_HOSTED_SERVICE=my_package:MyService python -m pytest tests/contracts/test_hosted_sandbox.py
Without that it runs on folders of this machine, whose programs run in plain processes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrl.errors import ConfigError, SandboxError, SandboxLostError
from agentrl.sandboxes import (
    EndReason,
    ExecResult,
    HostedSandbox,
    HostedService,
    IOTest,
    Limits,
    SandboxPool,
    SandboxSpec,
    TestFile,
    grade,
    open_pool,
    open_sandbox,
)
from agentrl.sandboxes.backends.hosted import Hosted
from agentrl.system.tasks import in_thread

pytestmark = pytest.mark.anyio
SPEC = SandboxSpec(limits=Limits(timeout_s=20))


class LocalFolder:
    """A hosted sandbox that is none: a folder in the place of /sandbox, and plain processes."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="hosted-")

    def _here(self, text: str) -> str:
        return text.replace("/sandbox", f"{self.folder}/sandbox").replace("/tmp/agentrl", f"{self.folder}/agentrl")

    async def run(
        self, argv: Sequence[str], *, stdin: bytes, env: Mapping[str, str], cwd: str, limits: Limits
    ) -> ExecResult:
        started = time.monotonic()
        # /tmp is this machine's: it is not to be emptied.
        words = [self._here(word).replace(" /tmp -mindepth", " -mindepth") for word in argv]

        def call() -> subprocess.CompletedProcess[bytes]:
            Path(self._here("/sandbox")).mkdir(exist_ok=True)
            options: dict[str, Any] = {"env": dict(env), "cwd": self._here(cwd), "timeout": limits.timeout_s}
            return subprocess.run(words, input=stdin, capture_output=True, **options)

        try:
            done = await in_thread(call)
        except subprocess.TimeoutExpired:
            return ExecResult(end_reason=EndReason.TIMEOUT, duration_s=time.monotonic() - started)
        except OSError as error:
            return ExecResult(end_reason=EndReason.EXIT, exit_code=127, stderr=str(error).encode())
        code = done.returncode
        return ExecResult(
            end_reason=EndReason.EXIT if code >= 0 else EndReason.SIGNAL,
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            stdout=done.stdout,
            stderr=done.stderr,
            duration_s=time.monotonic() - started,
        )

    async def read(self, path: str) -> bytes:
        try:
            return await anyio.Path(self._here(path)).read_bytes()
        except OSError as error:
            raise SandboxError(str(error)) from error

    async def write(self, path: str, data: bytes) -> None:
        target = anyio.Path(self._here(path))
        await target.parent.mkdir(parents=True, exist_ok=True)
        await target.write_bytes(data)

    async def close(self) -> None:
        await in_thread(lambda: shutil.rmtree(self.folder, ignore_errors=True))


class LocalFolders:
    name = "folders"

    async def start(self, spec: SandboxSpec) -> HostedSandbox:
        return await in_thread(LocalFolder)


@pytest.fixture(scope="module")
def service() -> HostedService:
    module, _, name = os.environ.get("AGENTRL_HOSTED_SERVICE", "").partition(":")
    return getattr(import_module(module), name)() if name else LocalFolders()  # type: ignore[no-any-return]


@pytest.fixture
async def hosted(service: HostedService) -> AsyncIterator[HostedSandbox]:
    sandbox = await service.start(SPEC)
    try:
        yield sandbox
    finally:
        await sandbox.close()


@pytest.fixture
async def pool(service: HostedService) -> AsyncIterator[SandboxPool]:
    async with open_pool(SPEC, backend=Hosted(service), size=2) as pool:
        yield pool


async def run(hosted: HostedSandbox, script: str, stdin: bytes = b"", **limits: Any) -> ExecResult:
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "A": "b c"}
    return await hosted.run(
        ["sh", "-c", script], stdin=stdin, env=env, cwd="/sandbox", limits=SPEC.limits.changed(**limits)
    )


async def test_a_run_is_what_the_program_did(hosted: HostedSandbox) -> None:
    done = await run(hosted, "cat; echo $A; echo oh >&2; exit 3", b"hi\n")
    assert (done.end_reason, done.exit_code) == (EndReason.EXIT, 3)
    assert (done.stdout, done.stderr) == (b"hi\nb c\n", b"oh\n")
    done = await run(hosted, "kill -SEGV $$")
    assert (done.end_reason, done.signal) == (EndReason.SIGNAL, 11)
    done = await run(hosted, "sleep 100", timeout_s=0.5)
    assert done.end_reason is EndReason.TIMEOUT
    data = bytes(range(256)) * 4096
    assert (await run(hosted, "cat", data)).stdout == data


async def test_files_are_bytes_and_come_back_as_they_went(hosted: HostedSandbox) -> None:
    await hosted.write("/sandbox/deep/a.bin", bytes(range(256)))
    assert await hosted.read("/sandbox/deep/a.bin") == bytes(range(256))
    assert (await run(hosted, "wc -c < deep/a.bin")).stdout.strip() == b"256"
    with pytest.raises(SandboxError):
        await hosted.read("/sandbox/missing")


async def test_what_a_program_prints_beyond_its_limit_is_left_out_and_said(pool: SandboxPool) -> None:
    async with pool.take() as (sandbox,):
        done = await sandbox.run(["sh", "-c", "yes | head -c 3000000"], limits=SPEC.limits.changed(output_mb=1))
        assert (done.end_reason, len(done.stdout)) == (EndReason.OUTPUT_LIMIT, 2**20)


async def test_each_user_of_a_pool_has_an_empty_sandbox(pool: SandboxPool) -> None:
    for _ in range(2):
        async with pool.take() as (sandbox,):
            assert (await sandbox.run(["ls"])).stdout == b""
            await sandbox.write("left/x.sh", "echo run")
            snapshot = await sandbox.snapshot()
            assert (await sandbox.run(["ls"], only_files={})).stdout == b""
            await sandbox.restore(snapshot)
            assert (await sandbox.run(["sh", "left/x.sh"])).stdout == b"run\n"
            with pytest.raises(SandboxError, match="more than max_bytes = 2"):
                await sandbox.read("left/x.sh", max_bytes=2)
            code = "import sys; from agentrl.sandboxes.inside.inbox import HEADER; print(input(), sys.argv[1:], HEADER.size)"
            assert (await sandbox.run_python(code=code, args=["b"], stdin=b"a")).stdout == b"a ['b'] 9\n"
    assert pool.metrics.lost == 0


async def test_programs_are_graded(pool: SandboxPool) -> None:
    tests = [IOTest(stdin=f"{n}\n", stdout=f"{2 * n}\n") for n in range(3)]
    assert (await grade("print(2 * int(input()))", tests, pool=pool)).passed
    assert not (await grade("print(3)", tests, pool=pool)).passed
    code = "import unittest, solution\nclass Test(unittest.TestCase):\n    def test(self): self.assertEqual(solution.f(2), 4)"
    inside = TestFile(code=code, framework="unittest", trust="inside")
    verdicts = [await grade(f"def f(x): return x * {n}", [inside], pool=pool) for n in (2, 3)]
    assert [verdict.status for verdict in verdicts] == ["passed", "wrong_answer"]


async def test_a_program_cannot_be_talked_to(service: HostedService) -> None:
    async with open_sandbox(backend=Hosted(service)) as sandbox:
        with pytest.raises(SandboxLostError, match="cannot talk to one"):
            await sandbox.start(["cat"])


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with an entry point, as an installer puts it where Python finds it."""
    facts = tmp_path / "agentrl_hosted-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: agentrl_hosted\nVersion: 1.0\n")
    points = (
        "hosted = tests.contracts.test_hosted_sandbox:LocalFolders",
        "none = nosuch:Service",
        "wrong = builtins:dict",
    )
    (facts / "entry_points.txt").write_text("[agentrl.sandboxes]\n" + "\n".join(points))
    monkeypatch.syspath_prepend(str(tmp_path))


async def test_a_service_is_found_by_its_entry_point(installed: None) -> None:
    async with open_sandbox(backend="hosted") as sandbox:
        assert (await sandbox.run(["echo", "fine"])).stdout == b"fine\n"
    for name, complaint in (
        ("none", r"\(nosuch:Service\) cannot be loaded: ModuleNotFoundError"),
        ("wrong", "no attribute 'name'; it is to be a class .* `async def start"),
        ("other", "use one of auto, docker, bubblewrap, UNSAFE_no_isolation, hosted, none, wrong"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            async with open_sandbox(backend=name):
                pass
