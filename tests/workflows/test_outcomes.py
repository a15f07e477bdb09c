"""What counts as a test that has passed: every way in which pytest ends one, as SWE-bench's own grading counts it."""

from __future__ import annotations

import pytest

from agentrl.sandboxes import BackendName, open_sandbox
from agentrl.workflows.hidden_tests import HiddenTests, run_hidden_tests
from agentrl.workflows.repository import pack

pytestmark = pytest.mark.anyio
UNDER_TEST = "import pytest\ndef fail():\n    raise ValueError\ndef expect():\n    pytest.xfail('no')\ndef skip():\n    pytest.skip('no')\n"
HIDDEN = """
import unittest
import pytest
from under import expect, fail, skip

@pytest.fixture
def broken():
    raise RuntimeError

@pytest.fixture
def broken_after():
    yield
    raise RuntimeError

def good_passes(): pass
def good_in_class(): pass
@pytest.mark.xfail
def good_fails_by_its_mark(): fail()
@pytest.mark.xfail(raises=ValueError, reason="reason: known")
def good_fails_by_its_mark_with_a_reason(): fail()
@pytest.mark.xfail(strict=True)
def good_fails_by_its_strict_mark(): fail()
@pytest.mark.parametrize("given", ["plain", "a b", "a c", "x[", "y] z", "(1, 2)"])
def good_with(given): pass

class GoodCases(unittest.TestCase):
    @unittest.expectedFailure
    def good_fails_as_expected(self): fail()

def bad_fails(): fail()
def bad_in_a_fixture(broken): pass
def bad_in_a_fixture_afterwards(broken_after): pass
def bad_is_skipped(): skip()
@pytest.mark.skip
def bad_is_skipped_by_its_mark(): pass
def bad_calls_xfail(): expect()
@pytest.mark.xfail(False, reason="off")
def bad_calls_xfail_under_a_mark_that_is_off(): expect()
@pytest.mark.xfail
def bad_passes_against_its_mark(): pass
@pytest.mark.xfail(strict=True)
def bad_passes_against_its_strict_mark(): pass
@pytest.mark.xfail(raises=KeyError)
def bad_fails_in_another_way(): fail()
@pytest.mark.parametrize("given", ["m n", "m o"])
def bad_with(given): assert given == "m n"

class BadCases(unittest.TestCase):
    @unittest.expectedFailure
    def bad_passes_unexpectedly(self): pass
    def bad_calls_xfail(self): expect()
    def bad_in_a_part(self):
        for part in range(3):
            with self.subTest(part=part):
                self.assertNotEqual(part, 1)
"""
TESTS = HIDDEN.replace("def good_", "def test_good_").replace("def bad_", "def test_bad_")
PARAMETERS = ("good_with[plain]", "good_with[x[]", "good_with[a", "good_with[y]", "good_with[(1,", "bad_with[m")
"""As a data set has them whose harness reads lines of a report up to the next space: some of them cut."""


def ids(kind: str) -> list[str]:
    names, case = [], ""
    for line in HIDDEN.splitlines():
        if line.startswith(("class", "def")):
            case = line.split()[1].partition("(")[0] + "::" if line.startswith("class") else ""
        name = line.strip().removeprefix("def ").partition("(")[0]
        if line.strip().startswith(f"def {kind}_") and not name.endswith("_with"):
            names.append(f"{case}test_{name}")
    return [
        f"test_it.py::{name}" for name in [*names, *(f"test_{name}" for name in PARAMETERS if name.startswith(kind))]
    ]


async def test_every_way_to_end_a_test_counts_as_in_swe_bench(bubblewrap: BackendName) -> None:
    start = pack({"under.py": UNDER_TEST})
    missing = ["test_it.py::test_missing", "test_it.py::test_good_with[q", "test_broken.py::test_one"]
    files = {"test_it.py": TESTS, "test_broken.py": "import nothing_there\ndef test_one(): pass\n"}
    for must_pass, passed in ((ids("good"), True), ([*ids("bad"), *missing], False)):
        async with open_sandbox(backend=bubblewrap) as sandbox:
            tests = HiddenTests(files=files, must_pass=must_pass)
            result = await run_hidden_tests(sandbox, start, start, tests)
        assert len(must_pass) > 9
        assert (result.passed, result.total) == (len(must_pass) * passed, len(must_pass))
        assert bool(result.not_passed) is not passed


async def test_tests_that_do_not_pass_are_named_and_those_that_are_not_there_told_apart(
    bubblewrap: BackendName,
) -> None:
    tests = HiddenTests(
        files={"test_it.py": "def test_bad(): assert 0\ndef test_good(): pass\n"},
        must_pass=["test_it.py::test_bad", "test_it.py::test_good", "test_it.py::test_gone"],
    )
    start = pack({"a.py": ""})
    async with open_sandbox(backend=bubblewrap) as sandbox:
        result = await run_hidden_tests(sandbox, start, start, tests)
    assert (result.passed, result.total) == (1, 3)
    assert result.not_passed == ["test_it.py::test_bad", "test_it.py::test_gone (there is no such test)"]
