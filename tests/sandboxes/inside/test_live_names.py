"""The names of the program's module are live: what the tests set and what the program sets are one."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from agentrl.sandboxes import AssertTest, BackendName, Limits, SandboxPool, SandboxSpec, TestFile, grade, open_pool
from tests.sandboxes.inside import live_names
from tests.sandboxes.plain_python import passes_in_plain_python

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.soak]


@pytest.fixture(scope="module")
async def pool(bubblewrap: BackendName) -> AsyncIterator[SandboxPool]:
    async with open_pool(SandboxSpec(limits=Limits(timeout_s=5, memory_mb=300)), backend=bubblewrap, size=2) as pool:
        yield pool


@pytest.fixture(scope="module")
def plain() -> dict[str, bool]:
    """Whether each file of tests passes in plain Python, by name."""
    files = live_names.files()
    found = passes_in_plain_python((source, code) for source, code, _ in files.values())
    return dict(zip(files, found, strict=True))


@pytest.mark.parametrize("name", live_names.files())
async def test_a_test_file_reads_what_is_there_now(pool: SandboxPool, plain: dict[str, bool], name: str) -> None:
    source, code, passes = live_names.files()[name]
    assert plain[name] == passes
    verdict = await grade(source, [TestFile(code=code)], pool=pool)
    assert verdict.passed == passes, verdict.results
    assert "checker_error" not in {result.status.value for result in verdict.results}, verdict.results


@pytest.mark.parametrize("name", live_names.assertions())
async def test_assertions_that_share_the_program_s_names_read_what_is_there_now(pool: SandboxPool, name: str) -> None:
    source, code, passes = live_names.assertions()[name]
    space: dict[str, object] = {}
    exec(source, space)
    try:
        exec(code, space)
        assert passes
    except AssertionError:
        assert not passes
    verdict = await grade(source, [AssertTest(code=code)], pool=pool)
    assert verdict.passed == passes, verdict.results


FORGETS = "def send(to): raise OSError\nclass F:\n def __getattr__(self, name): return lambda *a, **k: None\n"
REPLACED = {
    "patch": "from unittest.mock import patch\nimport solution\ndef test_it():\n with patch('solution.send'):\n  solution.notify('bob')\n"
    "  solution.send.assert_called_once_with('bob', 'hello bob')",
    "monkeypatch": "from unittest.mock import Mock\nimport solution\ndef test_it(monkeypatch):\n monkeypatch.setattr(solution, 'send', Mock())\n"
    " solution.notify('bob')\n solution.send.assert_called_once_with('bob', 'hello bob')",
    "an attribute": "from unittest.mock import Mock\nfrom solution import V\ndef test_it():\n v = V()\n v.dep = Mock()\n v.run(5)\n"
    " v.dep.assert_called_once_with(5, 'hello')",
}


ANSWERS_BY = {
    "an object": "F()",
    "a class": "S",
    "a bound method": "S().m",
    "an object of a class that the test names": "V()",
}


@pytest.mark.parametrize("by", ANSWERS_BY)
async def test_nothing_of_the_program_s_answers_for_a_mock(pool: SandboxPool, by: str) -> None:
    cheat = FORGETS + (
        "class S:\n @staticmethod\n def assert_called_once_with(*a, **k): pass\n def m(self): pass\n"
        " m.assert_called_once_with = lambda *a, **k: None\n"
        "class V:\n def __getattr__(self, name): return lambda *a, **k: None\n"
        f"def notify(to):\n global send\n send = {ANSWERS_BY[by]}"
    )
    code = REPLACED["patch"] + "\ndef test_v(): assert isinstance(solution.V(), solution.V)"
    verdict = await grade(cheat, [TestFile(code=code)], pool=pool)
    assert verdict.status == "wrong_answer", verdict.results


@pytest.mark.parametrize("name", REPLACED)
async def test_no_program_answers_for_a_mock_that_it_has_put_out_of_the_way(pool: SandboxPool, name: str) -> None:
    cheat = FORGETS + "def notify(to):\n global send\n send = F()\nclass V:\n def run(self, x): self.dep = F()"
    honest = "def send(to): raise OSError\ndef notify(to): send(to, 'hello ' + to)\nclass V:\n def run(self, x): self.dep(x, 'hello')"
    test = TestFile(code=REPLACED[name])
    assert (await grade(honest, [test], pool=pool)).passed
    assert (await grade(cheat, [test], pool=pool)).status == "wrong_answer"


SKIPPED_AND_FAILED = {
    "a subtest skips, and the test fails": "import pytest, solution\ndef test_a(subtests):\n with subtests.test('x'): pytest.skip()\n assert solution.f(1) == 100\n"
    "def test_b(): assert solution.f(1) == 1",
    "a subtest skips, and another fails": "import pytest, solution\ndef test_a(subtests):\n with subtests.test('x'): pytest.skip()\n"
    " with subtests.test('y'): assert solution.f(1) == 100\ndef test_b(): assert solution.f(1) == 1",
    "a fixture fails after a skip": "import pytest, solution\n@pytest.fixture\ndef checked():\n yield\n assert solution.f(1) == 100\n"
    "def test_a(checked): pytest.skip()\ndef test_b(): assert solution.f(1) == 1",
    "tearDown fails after a skip": "import unittest, solution\nclass T(unittest.TestCase):\n def tearDown(self): self.assertEqual(solution.f(1), 100)\n"
    " def test_a(self): self.skipTest('no')\nclass U(unittest.TestCase):\n def test_b(self): self.assertEqual(solution.f(1), 1)",
}


@pytest.mark.parametrize("name", SKIPPED_AND_FAILED)
async def test_a_failure_outweighs_a_skip(pool: SandboxPool, name: str) -> None:
    code = SKIPPED_AND_FAILED[name]
    test = TestFile(code=code, framework="unittest" if "unittest" in code else "pytest")
    verdict = await grade("def f(x): return x", [test], pool=pool)
    assert not verdict.passed, verdict.results


async def test_a_test_of_which_a_part_is_skipped_passes(pool: SandboxPool) -> None:
    code = "import pytest, solution\ndef test_a(subtests):\n with subtests.test('x'): pytest.skip()\n assert solution.f(1) == 1"
    verdict = await grade("def f(x): return x", [TestFile(code=code)], pool=pool)
    assert verdict.passed, verdict.results


async def test_a_handler_may_ask_while_an_answer_is_awaited(pool: SandboxPool) -> None:
    code = (
        "import signal\nhits = []\nsignal.signal(signal.SIGALRM, lambda *_: hits.append(f(1)))\nsignal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)\n"
        "i = 0\nwhile len(hits) < 3 or i < 300:\n i += 1\n assert f(i) == i\nsignal.setitimer(signal.ITIMER_REAL, 0)"
    )
    verdict = await grade("def f(x): return x", [AssertTest(code=code)], pool=pool, deadline_s=30)
    assert verdict.passed, verdict.results


async def test_a_program_imports_what_lies_beside_it(pool: SandboxPool) -> None:
    test = TestFile(
        code="from solution import limit\ndef test_limit(): assert limit() == 5",
        files={"figures.py": "LIMIT = 5\n"},
        shared=["figures.py"],
    )
    verdict = await grade("from figures import LIMIT\ndef limit(): return LIMIT", [test], pool=pool)
    assert verdict.passed, verdict.results


async def test_no_name_of_the_program_s_makes_its_module_a_package(pool: SandboxPool) -> None:
    """Python would import the tests' own reference, or its library, from a module that has a `__path__`."""
    source = (
        "import sys\nframe = sys._getframe()\nwhile not hasattr(frame.f_locals.get('self'), '_answers'): frame = frame.f_back\n"
        "candidate = frame.f_locals['self']\nhonest = candidate.answer\n"
        "def lie(request):\n answer = honest(request)\n"
        " if request['op'] == 'load': answer['names']['__path__'] = 'value'\n"
        f" if request.get('name') == '__path__': return {{'ok': ['', '.', {os.path.dirname(os.__file__)!r}]}}\n"
        " return answer\n"
        "candidate.answer = lie\nimport types\n"
        "me = sys.modules['agentrl.sandboxes.inside.candidate']\n"
        "me.is_told = lambda *args: True\n__path__ = ['', '.']"
    )
    test = TestFile(
        code="from solution import reference\ndef test_it(): assert reference.add(1, 2) == 3",
        files={"reference.py": "def add(a, b): return a + b"},
    )
    verdict = await grade(source, [test], pool=pool)
    assert verdict.status == "runtime_error", verdict.results
