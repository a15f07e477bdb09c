"""Tests that nobody can pass are their own fault; a candidate's failure stays its own, however it fails."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import pytest

from agentrl.sandboxes import AssertTest, BackendName, SandboxPool, Status, Test, TestFile, grade, open_pool
from agentrl.sandboxes.inside.own_faults import own_fault
from tests.sandboxes.rings import gate

pytestmark = pytest.mark.anyio

HONEST = "def f(): return 1"
UNITTEST = "\nimport unittest\nclass T(unittest.TestCase):\n    def test(self): "
FAULTS: dict[str, tuple[Test, str]] = {
    "a module": (TestFile(code="from solution import f\nimport nosuch\ndef test(): assert f() == 1"), "'nosuch'"),
    "a name": (TestFile(code="from solution import f\nfrom os import nosuch\ndef test(): assert f() == 1"), "'os'"),
    "in a test": (TestFile(code="from solution import f\ndef test():\n    import nosuch.a\n    f()"), "'nosuch.a'"),
    "another name of the candidate's": (
        TestFile(code="from mine import f\ndef test(): f()"),
        "'solution'), nor beside",
    ),
    "a relative import": (TestFile(code="from .other import g\nfrom solution import f\ndef test(): f()"), "package"),
    "unittest": (
        TestFile(code=f"from solution import f\nimport nosuch{UNITTEST}f()", framework="unittest"),
        "No module named 'nosuch'",
    ),
    "in a unittest": (
        TestFile(code=f"from solution import f{UNITTEST}import nosuch; f()", framework="unittest"),
        "'nosuch'",
    ),
    "beside": (
        TestFile(code="from a import *\nfrom solution import f\ndef test(): f()", files={"a.py": "import nosuch"}),
        "'nosuch'",
    ),
    "below": (
        TestFile(code="import a.b\nfrom solution import f\ndef test(): f()", files={"a/b.py": "import nosuch"}),
        "'nosuch'",
    ),
    "assertions": (AssertTest(code="import nosuch\nassert f() == 1"), "'nosuch'"),
    "a prelude": (AssertTest(code="assert f() == 1", prelude="import nosuch"), "'nosuch'"),
    "check": (AssertTest(code="def check(f):\n    import nosuch\n    assert f() == 1", entry_point="f"), "'nosuch'"),
    "a fixture": (TestFile(code="from solution import f\ndef test(nosuch): assert f() == 1"), "the fixture 'nosuch'"),
}
ESCAPES = {
    "raises when loaded": "raise ImportError('nosuch', name='nosuch')",
    "imports when loaded": "import nosuch",
    "is without the name": "def g(): return 1",
    "raises when called": "def f(*a): raise ModuleNotFoundError(\"No module named 'nosuch'\", name='nosuch')",
    "imports when called": "def f(*a): import nosuch",
    "imports in a file that lies as the tests' do": "exec(compile('def f(*a): import nosuch', '<tests>', 'exec'))",
    "has attributes that raise": "def __getattr__(name): raise ImportError(name)",
    "gives an error to raise": "def f(*a): return ImportError('attempted relative import with no known parent package')",
    "raises when its name is imported": (
        "import sys, types\nf = 1\nclass M(types.ModuleType):\n    @property\n    def f(self):\n"
        "        raise ImportError('attempted relative import with no known parent package')\n"
        "sys.modules[__name__].__class__ = M"
    ),
    "says that a fixture is missing": "class FixtureLookupError(Exception): argname = 'x'\ndef f(*a): raise FixtureLookupError",
}
TRAPS: dict[str, Test] = {
    "pytest": TestFile(code="from solution import f\ndef test():\n    got = f()\n    import os\n    assert got == 1"),
    "pytest at collection": TestFile(code="from solution import f\ngot = f()\ndef test(): assert got == 1"),
    "a fixture": TestFile(
        code="import pytest\nfrom solution import f\n@pytest.fixture\ndef got(): return f()\ndef test(got): assert got == 1"
    ),
    "unittest": TestFile(
        code=f"from solution import f{UNITTEST}self.assertEqual(f(), 1)",
        framework="unittest",
    ),
    "a file beside": TestFile(
        code="from a import got\ndef test(): assert got == 1", files={"a.py": "from solution import f\ngot = f()"}
    ),
    "a file beside that forgives": TestFile(
        code="from a import f\ndef test(): assert f() == 1",
        files={"a.py": "try:\n    from solution import f\nexcept ImportError: pass"},
    ),
    "assertions": AssertTest(code="import os\nassert f() == 1"),
    "what it gives is raised": AssertTest(code="got = f()\nif got != 1:\n    raise got"),
    "a callback": AssertTest(code="def back(g):\n    import os\n    return g()\nassert f(back) == 1 or f() == 1"),
}


@pytest.fixture(scope="module")
async def pool(bubblewrap: BackendName) -> AsyncIterator[SandboxPool]:
    """Whose fault it is, is found by the test code's process, which is the same in every sandbox."""
    async with open_pool(backend=bubblewrap, size=2) as pool:
        yield pool


async def test_what_the_tests_lack_is_their_own_fault(pool: SandboxPool) -> None:
    verdict = await grade(HONEST, [test for test, _ in FAULTS.values()], pool=pool)
    for (name, (_, said)), result in zip(FAULTS.items(), verdict.results, strict=True):
        assert (result.status, said in result.message) == (Status.CHECKER_ERROR, True), (name, result)


@pytest.mark.soak
async def test_an_honest_candidate_passes_every_trap(pool: SandboxPool) -> None:
    verdict = await grade("def f(*a): return 1", list(TRAPS.values()), pool=pool)
    assert verdict.passed, verdict.results


@pytest.mark.parametrize("escape", gate("imports in a file that lies as the tests' do", of=ESCAPES))
async def test_no_candidate_makes_its_failure_the_tests_own(pool: SandboxPool, escape: str) -> None:
    verdict = await grade(ESCAPES[escape], list(TRAPS.values()), pool=pool)
    for trap, result in zip(TRAPS, verdict.results, strict=True):
        assert result.status in (Status.RUNTIME_ERROR, Status.WRONG_ANSWER), (trap, result)


async def test_an_import_that_the_tests_can_do_without_is_no_fault(pool: SandboxPool) -> None:
    code = (
        "import pytest\nfrom solution import f\ntry:\n    import nosuch\nexcept ImportError:\n    nosuch = None\n"
        "def test(): assert f() == 1\ndef test_skipped(): pytest.importorskip('nosuch')\n"
        "def test_raises():\n    with pytest.raises(ImportError):\n        import nosuch\n"
    )
    assert (await grade(HONEST, [TestFile(code=code)], pool=pool)).passed


async def test_pytest_may_be_missing(pool: SandboxPool) -> None:
    """As in an environment, or an image, that nobody has installed it in: here, a module beside the tests makes it fail."""
    files = {"pytest.py": "raise ImportError('no pytest')"}
    test = TestFile(code="from solution import f\ndef test(): assert f() == 1", files=files)
    (result,) = (await grade(HONEST, [test], pool=pool)).results
    assert result.status is Status.CHECKER_ERROR
    assert "the tests need pytest" in result.message


@pytest.mark.parametrize("error", [RecursionError(), MemoryError(), OSError("too many open files")])
async def test_what_a_candidate_may_exhaust_is_not_the_tests_own(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    class Exhausted:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "nosuch":
                raise error

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Exhausted()])
    with pytest.raises(type(error)) as raised:
        exec(compile("import nosuch", "<tests>", "exec"), {})
    assert own_fault(raised.value, "solution", (), ()) is None
    missing = ModuleNotFoundError("nosuch").with_traceback(raised.value.__traceback__)
    assert "nosuch" in (own_fault(missing, "solution", (), ()) or "")
