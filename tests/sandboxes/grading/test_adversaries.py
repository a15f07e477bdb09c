"""No program gets a reward it has not earned, and none harms the host or the next user of its sandbox."""

from __future__ import annotations

import socket
from collections import deque
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from agentrl.sandboxes import BackendName, SandboxPool, SandboxSpec, grade, open_pool
from tests.sandboxes.grading.adversaries import against_the_place, against_the_verdict
from tests.sandboxes.grading.trials import CALLS_MAIN, HONEST, LIMITS, PATIENT, all_kinds_of_tests, trial

pytestmark = pytest.mark.anyio

POOLS = 5
"""At once: most of their time the programs wait for a limit."""


async def test_no_program_is_paid_that_wants_to_be_taken_for_right(bubblewrap: BackendName) -> None:
    paid: list[str] = []

    async def one(name: str, source: str, file: int) -> None:
        tests = all_kinds_of_tests()
        verdict = await grade(source + CALLS_MAIN, [*tests[:3], tests[file]], pool=pool)
        paid.extend(f"{name}: {result}" for result in verdict.results if result.status in ("passed", "checker_error"))

    async with open_pool(SandboxSpec(limits=LIMITS), backend=bubblewrap, size=8) as pool:
        async with anyio.create_task_group() as group:
            for index, (name, source) in enumerate(against_the_verdict().items()):
                group.start_soon(one, name, source, 3 + index % 2)
    assert not paid, "\n".join(paid)


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_no_program_harms_the_host_or_the_next(
    backend: BackendName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = tmp_path / "canary"
    canary.write_text("the host's own")
    monkeypatch.setenv("AGENTRL_SECRET", "the host's own")
    wrong: list[str] = []

    async def try_all(programs: deque[tuple[str, str]], pool: SandboxPool) -> None:
        while programs:
            name, source = programs.popleft()
            wrong.extend(await trial(name, source, all_kinds_of_tests()[:3], pool))
        honest = await grade(HONEST + CALLS_MAIN, all_kinds_of_tests(), pool=pool, limits=PATIENT)
        wrong.extend(f"at the end: {result}" for result in honest.results if not result.passed)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        places = against_the_place(port=listener.getsockname()[1], canary=str(canary))
        programs = deque([*places.items(), *against_the_verdict().items()])
        assert len(programs) >= 95
        async with AsyncExitStack() as stack:
            spec = SandboxSpec(limits=LIMITS)
            pools = [await stack.enter_async_context(open_pool(spec, backend=backend, size=2)) for _ in range(POOLS)]
            async with anyio.create_task_group() as group:
                for pool in pools:
                    group.start_soon(try_all, programs, pool)
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody has come
            listener.accept()
    assert not wrong, "\n".join(wrong)
    assert canary.read_text() == "the host's own"
    assert list(tmp_path.iterdir()) == [canary]


async def test_daemons_that_outlive_a_call_are_gone_for_the_next(bubblewrap: BackendName) -> None:
    name = "daemons that outlive the call"
    source = against_the_place(port=1, canary="/none")[name]
    async with open_pool(SandboxSpec(limits=LIMITS), backend=bubblewrap, size=2) as pool:
        wrong = await trial(name, source, all_kinds_of_tests()[:3], pool)
    assert not wrong, "\n".join(wrong)
