"""What a program does with objects and exceptions of the tests' own classes is what it does in plain Python."""

from __future__ import annotations

import pytest

from agentrl.sandboxes import BackendName, TestFile, grade, open_pool
from tests.sandboxes.inside.tests_object_cases import pairs
from tests.sandboxes.plain_python import passes_in_plain_python


@pytest.mark.soak
def test_the_cases_are_decided_so_in_one_process() -> None:
    cases = pairs()
    for at in (0, 1):
        passed = passes_in_plain_python((case[at], case[2]) for case in cases.values())
        assert dict(zip(cases, passed, strict=True)) == dict.fromkeys(cases, at == 0)


@pytest.mark.soak
@pytest.mark.anyio
async def test_right_programs_pass_and_faulty_ones_do_not(bubblewrap: BackendName) -> None:
    async with open_pool(backend=bubblewrap, size=2) as pool:
        for name, (right, faulty, code) in pairs().items():
            verdict = await grade(right, [TestFile(code=code)], pool=pool)
            assert verdict.passed, (name, verdict.results)
            assert not (await grade(faulty, [TestFile(code=code)], pool=pool)).passed, name


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("source", "made"),
    [
        pytest.param(
            "import copy\ndef f(a, b): return copy.deepcopy([a, b])", "class Own: pass", marks=pytest.mark.soak
        ),
        ("def f(a, b): a.__dict__['_x'] = 1", "class Own: pass"),
        pytest.param(
            "import copy\ndef f(a, b): return copy.copy(a)",
            "import threading\nOwn = threading.Event",
            marks=pytest.mark.soak,
        ),
    ],
)
async def test_what_cannot_be_copied_or_set_ends_the_test(bubblewrap: BackendName, source: str, made: str) -> None:
    code = f"from solution import f\n{made}\ndef test():\n    f(Own(), Own())\n    assert True"
    async with open_pool(backend=bubblewrap, size=2) as pool:
        verdict = await grade(source, [TestFile(code=code)], pool=pool)
    assert verdict.status.value == "checker_error", verdict.results
