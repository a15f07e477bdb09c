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


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_no_program_is_rewarded_or_harms_the_next(
    backend: BackendName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = tmp_path / "canary"
    canary.write_text("the host's own")
    monkeypatch.setenv("AGENTRL_SECRET", "the host's own")
    wrong: list[str] = []

    async def try_all(programs: deque[tuple[str, str, tuple[int, ...]]], pool: SandboxPool) -> None:
        while programs:
            name, source, kinds = programs.popleft()
            tests = all_kinds_of_tests()
            wrong.extend(await trial(name, source, [tests[kind] for kind in kinds], pool))
        honest = await grade(HONEST + CALLS_MAIN, all_kinds_of_tests(), pool=pool, limits=PATIENT)
        wrong.extend(f"at the end: {result}" for result in honest.results if not result.passed)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        places = against_the_place(port=listener.getsockname()[1], canary=str(canary))
        # benchmarks/attacks.py tries all programs with all kinds of tests.
        verdicts = enumerate(against_the_verdict().items())
        programs = deque([(name, source, (0, 1, 2, 3 + index % 3)) for index, (name, source) in verdicts])
        programs += [(name, source, (0, 1)) for name, source in places.items()]
        assert len(programs) >= 170
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


SOME = (
    "an object equal to everything",
    "leaving at once with 0",
    "the caller's frames",
    "forged lines on every descriptor",
    "daemons that outlive the call",
)
"""One of each way to be rewarded, and one that stays."""


async def test_some_programs_are_not_rewarded_and_harm_nobody(bubblewrap: BackendName) -> None:
    programs = {**against_the_verdict(), **against_the_place(port=1, canary="/none")}
    wrong: list[str] = []
    async with open_pool(SandboxSpec(limits=LIMITS), backend=bubblewrap, size=2) as pool:
        for index, name in enumerate(SOME):
            tests = all_kinds_of_tests()
            wrong += await trial(name, programs[name], [tests[0], tests[1], tests[2 + index % 4]], pool)
    assert not wrong, "\n".join(wrong)
