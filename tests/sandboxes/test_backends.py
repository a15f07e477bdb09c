"""What Docker and bubblewrap both promise: limits hold, and each program gets its verdict."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agentrl.sandboxes import BackendName, Bubblewrap, IOTest, Language, SandboxPool, SandboxSpec, grade, open_pool
from agentrl.sandboxes.limit_check import LIMITS, PROBES, Probe, check_limits
from tests.real_sandboxes import as_an_ordinary_user, working_backend

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=["bubblewrap", "docker"])
def backend(request: pytest.FixtureRequest) -> BackendName:
    return working_backend(request.param)


@pytest.fixture(scope="module")
async def pool(backend: BackendName) -> AsyncIterator[SandboxPool]:
    async with open_pool(SandboxSpec(limits=LIMITS), backend=backend, size=1) as pool:
        yield pool


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: f"{probe.limit}, {probe.does}")
async def test_limits_hold(pool: SandboxPool, probe: Probe) -> None:
    counted = pool.backend.name == "docker" or not any("control group" in hole for hole in await Bubblewrap().holes())
    async with pool.take() as (sandbox,):
        done = await sandbox.run_python(code=probe.code, limits=probe.limits)
        assert probe.holds(done) is (counted or not probe.needs_control_group), done
        assert (await sandbox.run(["echo", "fine"])).stdout == b"fine\n"


@pytest.mark.soak
async def test_limits_hold_for_an_ordinary_user(bubblewrap: BackendName, monkeypatch: pytest.MonkeyPatch) -> None:
    as_an_ordinary_user(monkeypatch)
    observed = zip(PROBES, await check_limits(bubblewrap), strict=True)
    assert [
        (probe.does, done) for probe, done in observed if not probe.holds(done) and not probe.needs_control_group
    ] == []


ENDS = {
    "print(1)": "passed",
    "print(2)": "wrong_answer",
    "raise ValueError('no')": "runtime_error",
    "print(1)\nraise SystemExit(1)": "runtime_error",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": "runtime_error",
    "x = (": "runtime_error",
    "hoard = []\nwhile True: hoard.append(bytearray(b'x') * 2**20)": "memory_limit",
    "while True: print('x' * 1000)": "output_limit",
}


async def test_each_verdict_on_a_program(pool: SandboxPool) -> None:
    test = IOTest(stdout="1")
    limits = LIMITS.but(timeout_s=20)
    found = {source: (await grade(source, [test], pool=pool, limits=limits)).results[0] for source in ENDS}
    assert {source: result.status for source, result in found.items()} == ENDS
    assert "ValueError: no" in found["raise ValueError('no')"].message
    assert found["print(1)"].peak_memory_bytes > 2**20
    endless = await grade("while True: pass", [test], pool=pool, limits=LIMITS.but(timeout_s=0.3))
    assert endless.results[0].status == "time_limit"
    language = Language(file="main.sh", build=("sh", "-n", "main.sh"), run=("sh", "main.sh"))
    assert (await grade("echo 1", [test], pool=pool, language=language, limits=limits)).passed
    assert (await grade("if", [test], pool=pool, language=language, limits=limits)).status == "build_error"
