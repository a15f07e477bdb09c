"""A program may answer whatever it likes on the wire: that is its own failure, never a pass and never the tests' fault."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentrl.sandboxes import AssertTest, BackendName, Limits, SandboxPool, SandboxSpec, TestFile, grade, open_pool

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.soak]

LIAR = """
import sys
class V:
    def __init__(self, x=0): self.x = x
def f(*args): return 0
frame = sys._getframe()
while not hasattr(frame.f_locals.get("self"), "_answers"): frame = frame.f_back
candidate = frame.f_locals["self"]
honest = candidate.answer
def lie(request):
    answer = honest(request)
    return {lie!r} if request["op"] in {ops!r} and request.get("name") != "f" else answer
candidate.answer = lie
"""
PART = {"item": [-1, 0, [1]]}
OF_ARGUMENTS: dict[str, Any] = {
    "a list that holds itself": {"ok": None, "changed": [[-1, {"item": [-1, 0, [PART]]}]]},
    "another kind": {"ok": None, "changed": [[-1, {"item": [-1, 0, {"dict": []}]}]]},
    "a part of nothing": {"ok": None, "changed": [[-1, {"item": [-9, 0, []]}]]},
    "no content": {"ok": None, "changed": [[-1, {"item": [-1]}]]},
    "no pairs": {"ok": None, "changed": [1]},
    "numbers of nothing": {"ok": [], "mirrored": [], "dropped": [[]]},
    "what nobody has": {"ok": {"known": 99}},
    "a method of nothing": {"ok": [{"method": [{"builtin": "int"}, "x"]}], "mirrored": 5},
    "a fraction of a million digits": {"ok": {"fraction": ["1" * 999_000, "3" * 999_000]}},
    "a logger of many parts": {"ok": 0, "logged": [["a." * 60_000, 50, "m", True, None]]},
    "what it has and has not": {"ok": {"item": [{}, [], []]}},
}
OF_CLASSES: dict[str, Any] = {
    "nonsense": {"ok": None, "class": 7},
    "nothing": {},
    "an error": {"raised": {"error": {"error": 1}, "classes": ["E"], "text": ""}},
    "a fault": {"fault": "no"},
    "a need": {"needs": [1, "x"]},
    "a logger of many parts": {"ok": None, "class": {}, "logged": [["a." * 60_000, 50, "m", True, None]]},
}
METACLASS = """
class M(type):
    @property
    def __name__(cls): raise {error}
class V(metaclass=M):
    def __init__(self, x=0): self.x = x
"""
FAILURES = {"wrong_answer", "runtime_error", "time_limit", "output_limit"}


@pytest.fixture(scope="module")
async def pool(bubblewrap: BackendName) -> AsyncIterator[SandboxPool]:
    async with open_pool(SandboxSpec(limits=Limits(timeout_s=2, memory_mb=300)), backend=bubblewrap, size=2) as pool:
        yield pool


async def test_lies_of_arguments_and_values(pool: SandboxPool) -> None:
    code = "import pytest\nxs = [1]\nwith pytest.raises((AttributeError, LookupError, TypeError, ValueError)): f(xs)"
    for name, answer in OF_ARGUMENTS.items():
        source = (
            LIAR.replace("{lie!r}", repr(answer))
            .replace("{ops!r}", "['call']")
            .replace(' and request.get("name") != "f"', "")
        )
        tests = [AssertTest(code=code), AssertTest(code=code, in_place=True)]
        verdict = await grade(source, tests, pool=pool)
        assert {result.status.value for result in verdict.results} <= FAILURES, (name, verdict.results)


async def test_lies_of_classes(pool: SandboxPool) -> None:
    liars = {
        name: LIAR.replace("{lie!r}", repr(answer)).replace("{ops!r}", "['class']")
        for name, answer in OF_CLASSES.items()
    }
    errors = {error: METACLASS.replace("{error}", error) for error in ("ValueError", "SystemExit")}
    for name, source in {**liars, **errors}.items():
        tests = [
            TestFile(code="from solution import V\ndef test(): assert V(1).x == 3"),
            TestFile(
                code="import unittest\nfrom solution import V\nclass T(unittest.TestCase):\n def test(self): self.assertEqual(V(1).x, 3)",
                framework="unittest",
            ),
            AssertTest(code="assert V(1).x == 3"),
        ]
        verdict = await grade(source, tests, pool=pool)
        assert {result.status.value for result in verdict.results} <= FAILURES, (name, verdict.results)


async def test_what_cannot_be_told_is_no_error_that_a_program_may_catch(pool: SandboxPool) -> None:
    source = "def f(g):\n    x = []\n    x.append(x)\n    try: g(x)\n    except TypeError: return 1"
    verdict = await grade(source, [AssertTest(code="assert f(lambda x: 0) == 1")], pool=pool)
    assert verdict.status in FAILURES, verdict.results
