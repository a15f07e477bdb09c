"""Answers made to be slow or large cost their candidate the test, and the host next to nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agentrl.sandboxes import BackendName, BoxSpec, Limits, SandboxPool, Status, judge, open_pool
from tests.sandboxes.hostile_answers import (
    ANSWERS,
    OUTPUTS,
    WIDE,
    answering,
    call_tests,
    measured,
    output_tests,
    printing,
)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

LARGEST_STALL_S = 0.05
LARGEST_MEMORY = 100 << 20
THEIR_OWN_FAULT = {Status.WRONG_ANSWER, Status.RUNTIME_ERROR, Status.OUTPUT_LIMIT, Status.MEMORY_LIMIT}


@pytest.fixture
async def pool(bubblewrap: BackendName) -> AsyncIterator[SandboxPool]:
    async with open_pool(BoxSpec(limits=Limits(timeout_s=2)), backend=bubblewrap, size=2) as pool:
        await judge("def f(): return 0", list(call_tests().values()), pool=pool)  # what is imported and cached once
        yield pool


async def test_what_a_call_is_answered_with_costs_the_host_nothing(pool: SandboxPool) -> None:
    """Each answer as that of a call with a long expected value, and of another kind of test, in turn."""
    kinds = call_tests()
    for index, (name, answer) in enumerate(ANSWERS.items()):
        tests = [kinds["call, long"], [*kinds.values()][index % len(kinds)]]
        with measured() as cost:
            verdict = await judge(answering(answer), tests, pool=pool)
        assert {result.status for result in verdict.results} <= THEIR_OWN_FAULT, (name, verdict)
        assert cost.stall_s < LARGEST_STALL_S, (name, cost)
        assert cost.memory_bytes < LARGEST_MEMORY, (name, cost)


async def test_what_a_program_prints_costs_the_host_nothing(pool: SandboxPool) -> None:
    kinds = list(output_tests().values())
    for index, (name, output) in enumerate(OUTPUTS.items()):
        with measured() as cost:
            verdict = await judge(printing(output), [kinds[index % len(kinds)]], pool=pool)
        assert {result.status for result in verdict.results} <= THEIR_OWN_FAULT, (name, verdict)
        assert cost.stall_s < LARGEST_STALL_S, (name, cost)
        assert cost.memory_bytes < LARGEST_MEMORY, (name, cost)
        verdict.results[0].message.encode()


async def test_a_long_answer_that_is_right_passes(pool: SandboxPool) -> None:
    tests = call_tests()
    assert (await judge("def f(): return list(range(20_000))", [tests["call, long"]], pool=pool)).passed
    wrong = await judge("def f(): return list(range(19_999)) + [0]", [tests["call, long"]], pool=pool)
    assert wrong.status == "wrong_answer"
    assert wrong.results[0].message.startswith(f"{WIDE!r}"[:200])
    printed = await judge(printing("b'1 2 3\\n' * 10_000"), [output_tests()["exact"]], pool=pool)
    assert printed.passed
