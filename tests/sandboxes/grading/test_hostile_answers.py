"""Answers made to be slow or large cost their candidate the test, and the host next to nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agentrl.sandboxes import AssertTest, BackendName, Limits, SandboxPool, SandboxSpec, Status, grade, open_pool
from tests.sandboxes.grading.hostile_answers import (
    ANSWERS,
    OUTPUTS,
    WIDE,
    answering,
    call_tests,
    measured,
    output_tests,
    printing,
)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300), pytest.mark.soak]

LARGEST_STALL_S = 0.05
LARGEST_MEMORY = 100 << 20
THEIR_OWN_FAULT = {Status.WRONG_ANSWER, Status.RUNTIME_ERROR, Status.OUTPUT_LIMIT, Status.MEMORY_LIMIT}


@pytest.fixture
async def pool(bubblewrap: BackendName) -> AsyncIterator[SandboxPool]:
    async with open_pool(SandboxSpec(limits=Limits(timeout_s=2)), backend=bubblewrap, size=2) as pool:
        await grade("def f(): return 0", list(call_tests().values()), pool=pool)  # what is imported and cached once
        yield pool


async def test_what_a_call_is_answered_with_costs_the_host_nothing(pool: SandboxPool) -> None:
    """Each answer as that of a call with a long expected value, and of another kind of test, in turn."""
    kinds = call_tests()
    for index, (name, answer) in enumerate(ANSWERS.items()):
        tests = [kinds["call, long"], [*kinds.values()][index % len(kinds)]]
        with measured() as cost:
            verdict = await grade(answering(answer), tests, pool=pool)
        assert {result.status for result in verdict.results} <= THEIR_OWN_FAULT, (name, verdict)
        assert cost.stall_s < LARGEST_STALL_S, (name, cost)
        assert cost.memory_bytes < LARGEST_MEMORY, (name, cost)


LONG = """b'{"raised": {"classes": ["E"], "text": "' + '\u00e9'.encode() * 4_100_000 + b'"}}\\n'"""
HOSTILE_PROGRAMS = {
    "it says too much when it is loaded": f"{answering(LONG)}\nf()\nimport os\nos._exit(0)",
    "the name of its class is too long": "class A:\n def __lt__(s, o): return 1\nA.__name__ = '\u00e9' * 1_380_000\ndef f(*a): return A()",
}


async def test_what_is_quoted_of_a_program_is_short(pool: SandboxPool) -> None:
    kinds = call_tests()
    compared = AssertTest(code="assert f() < 3")
    for name, source in HOSTILE_PROGRAMS.items():
        for test in (kinds["assert"], kinds["unittest"], kinds["call"], compared):
            with measured() as cost:
                verdict = await grade(source, [test], pool=pool)
            assert not verdict.passed, (name, verdict)
            assert cost.stall_s < LARGEST_STALL_S, (name, cost)
            assert cost.memory_bytes < LARGEST_MEMORY, (name, cost)


async def test_what_a_program_prints_costs_the_host_nothing(pool: SandboxPool) -> None:
    kinds = list(output_tests().values())
    for index, (name, output) in enumerate(OUTPUTS.items()):
        with measured() as cost:
            verdict = await grade(printing(output), [kinds[index % len(kinds)]], pool=pool)
        assert {result.status for result in verdict.results} <= THEIR_OWN_FAULT, (name, verdict)
        assert cost.stall_s < LARGEST_STALL_S, (name, cost)
        assert cost.memory_bytes < LARGEST_MEMORY, (name, cost)
        verdict.results[0].message.encode()


async def test_a_long_answer_that_is_right_passes(pool: SandboxPool) -> None:
    tests = call_tests()
    assert (await grade("def f(): return list(range(20_000))", [tests["call, long"]], pool=pool)).passed
    wrong = await grade("def f(): return list(range(19_999)) + [0]", [tests["call, long"]], pool=pool)
    assert wrong.status == "wrong_answer"
    assert wrong.results[0].message.startswith(f"{WIDE!r}"[:200])
    printed = await grade(printing("b'1 2 3\\n' * 10_000"), [output_tests()["exact"]], pool=pool)
    assert printed.passed
