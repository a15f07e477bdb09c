"""What is rewarded passes in plain Python too: the tests' stand-ins give no program more than its own objects would."""

from __future__ import annotations

from collections.abc import AsyncIterator
from textwrap import dedent

import pytest

from agentrl.sandboxes import (
    AssertTest,
    BackendName,
    Limits,
    SandboxPool,
    SandboxSpec,
    TestFile,
    Verdict,
    grade,
    grade_partial,
    open_pool,
)
from agentrl.sandboxes.grading.last_look import FAILS
from tests.sandboxes.plain_python import passes_in_plain_python
from tests.sandboxes.rings import gate

pytestmark = pytest.mark.anyio

WRONG: dict[str, tuple[str, str]] = {
    "a listener that is looked for by `is`": (
        """
        class Bus:
            def __init__(self): self.seen = []
            def on(self, f): self.seen.append(f)
            def off(self, f): self.seen = [g for g in self.seen if g is not f]
            def fire(self, x): [f(x) for f in self.seen]
        """,
        """
        from solution import Bus
        def test():
            got, bus = [], Bus()
            bus.on(got.append); bus.off(got.append); bus.fire(1)
            assert got == []
        """,
    ),
    "a decorator that does not keep the name": (
        """
        def log(f):
            def wrapper(*args): return f(*args)
            return wrapper
        @log
        def greet(name): return "hi " + name
        """,
        'from solution import greet\ndef test(): assert greet.__name__ == "greet" and greet("x") == "hi x"',
    ),
    "what the test has set on a function": (
        "def square(x):\n square.computed += 1\n return x * x\nsquare.computed = 0",
        """
        from solution import square
        def test():
            square.computed = 0
            assert square(4) == square(4) == 16
            assert square.computed <= 1
        """,
    ),
    "a private attribute that is shown": (
        "def to_dict(o): return dict(vars(o))",
        """
        from solution import to_dict
        class User:
            def __init__(self): self.name, self._password = "bob", "x"
        def test(): assert to_dict(User()) == {"name": "bob"}
        """,
    ),
    "a snapshot that is no copy": (
        """
        class Caretaker:
            def __init__(self): self.saved = []
            def save(self, editor): self.saved.append(editor.lines)
            def restore(self, editor): editor.lines = self.saved.pop()
        """,
        """
        from solution import Caretaker
        class Editor:
            def __init__(self): self.lines = []
        def test():
            editor, caretaker = Editor(), Caretaker()
            editor.lines.append("a"); caretaker.save(editor); editor.lines.append("b"); caretaker.restore(editor)
            assert editor.lines == ["a"]
        """,
    ),
    "a class of the test's that is marked": (
        "def tagged(cls):\n cls.tag = 'x'\n return cls",
        """
        from solution import tagged
        class Plain: pass
        def test():
            tagged(Plain)
            assert not hasattr(Plain, "tag")
        """,
    ),
    "an attribute of the test's exception that is not looked at": (
        "def wait(f):\n try: f()\n except Exception as error: return getattr(error, '_retry_after', None)",
        """
        from solution import wait
        class Limited(Exception):
            def __init__(self): self._retry_after = 5
        def fails(): raise Limited()
        def test(): assert wait(fails) is None
        """,
    ),
    "an exception that ends all tests": (
        """
        class Bus:
            def __init__(self): self.seen = []
            def on(self, f): self.seen.append(f)
            def off(self, f):
                if not any(g is f for g in self.seen): raise KeyboardInterrupt
        """,
        "from solution import Bus\ndef test():\n got, bus = [], Bus()\n bus.on(got.append); bus.off(got.append)",
    ),
    "a name that the program does not give": (
        "__all__ = ['other']\ndef f(): return 1",
        "from solution import *\ndef test(): assert f() == 1",
    ),
    "what it has bound at its import": (
        "import sys\ndef greet(name, out=sys.stdout): print('hi', name, file=out, flush=True)",
        "from solution import greet\ndef test(capsys):\n greet('x')\n assert capsys.readouterr().out == 'hi x\\n'",
    ),
}
"""Programs that a test finds wrong in plain Python, and stand-ins alone might not."""
RIGHT: dict[str, tuple[str, str]] = {
    "parameters of the program's own": (
        "import enum\nclass Color(enum.Enum):\n RED = 1\n BLUE = 2\ndef name(c): return c.name.lower()",
        """
        import pytest
        from solution import Color, name
        @pytest.mark.parametrize("color", list(Color))
        def test(color): assert name(color) == color.name.lower()
        """,
    ),
    "a test that is skipped, and one that is expected to fail": (
        "def f(): return 1",
        """
        import pytest
        from solution import f
        @pytest.mark.skip
        def test_a(): assert f() == 2
        @pytest.mark.xfail
        def test_b(): assert f() == 2
        def test_c(): assert f() == 1
        """,
    ),
}
FORGERS: dict[str, str] = {
    "ends its process": "os._exit(0)",
    "says nonsense by its secret": "[os.write(fd, found() + b'{}\\n') for fd in range(3, 20) if is_open(fd)]",
    "writes lines without end": "fds = [fd for fd in range(3, 20) if is_open(fd)]\n    while True: [os.write(fd, b'\\n' * 60_000) for fd in fds]",
    "writes what is no end": "[os.write(fd, b'x' * 2**22) for fd in range(3, 20) if is_open(fd)]",
    "hangs": "time.sleep(1000)",
    "raises what ends a process": "raise SystemExit(0)",
}
"""What a program does where its tests are in its process."""
FORGER = """
import os, sys, time
def is_open(fd):
    try: os.fstat(fd)
    except OSError: return False
    return True
def found():
    frame = sys._getframe()
    while "secret" not in frame.f_locals: frame = frame.f_back
    return frame.f_locals["secret"]
if any("one_process" in name for name in sys.modules):
    {}
def add(a, b): return a + b
"""


@pytest.fixture(scope="module")
async def pool(bubblewrap: BackendName) -> AsyncIterator[SandboxPool]:
    async with open_pool(SandboxSpec(limits=Limits(timeout_s=5, memory_mb=300)), backend=bubblewrap, size=2) as pool:
        yield pool


async def graded(pool: SandboxPool, source: str, code: str) -> Verdict:
    return await grade(dedent(source), [TestFile(code=dedent(code))], pool=pool)


@pytest.mark.soak
@pytest.mark.timeout(120)
def test_the_cases_are_what_plain_python_says() -> None:
    cases = {**WRONG, **RIGHT}
    found = passes_in_plain_python((dedent(source), dedent(code)) for source, code in cases.values())
    assert dict(zip(cases, found, strict=True)) == {**dict.fromkeys(WRONG, False), **dict.fromkeys(RIGHT, True)}


@pytest.mark.parametrize("name", gate("a listener that is looked for by `is`", of=WRONG))
async def test_who_fails_in_plain_python_is_not_rewarded(pool: SandboxPool, name: str) -> None:
    verdict = await graded(pool, *WRONG[name])
    assert not verdict.passed, verdict.results
    assert verdict.results[0].status == "wrong_answer"


@pytest.mark.parametrize("name", gate("parameters of the program's own", of=RIGHT))
async def test_who_passes_in_plain_python_keeps_its_pass(pool: SandboxPool, name: str) -> None:
    verdict = await graded(pool, *RIGHT[name])
    assert verdict.passed, verdict.results


@pytest.mark.parametrize("what", gate("ends its process", of=FORGERS))
async def test_a_program_that_tells_the_process_apart_gains_nothing(pool: SandboxPool, what: str) -> None:
    source = FORGER.format(FORGERS[what])
    tests = [
        TestFile(code="from solution import add\ndef test(): assert add(1, 2) == 3"),
        AssertTest(code="assert add(1, 2) == 3"),
    ]
    verdict = await grade(source, tests, pool=pool, deadline_s=20)
    assert not any(result.passed for result in verdict.results), verdict.results
    honest = await grade("def add(a, b): return a + b", tests, pool=pool)
    assert honest.passed, "the next user is unharmed"


@pytest.mark.soak
@pytest.mark.timeout(120)
async def test_no_name_of_the_programs_shadows_what_the_test_has_from_elsewhere(pool: SandboxPool) -> None:
    source = "from math import *\ndef isclose(a, b): return False\ndef half(x): return x / 2"
    code = "from math import isclose\nfrom solution import *\ndef test(): assert isclose(half(1), 0.5)"
    assert (await graded(pool, source, code)).passed


async def test_only_the_tests_that_fail_there_are_lost(pool: SandboxPool) -> None:
    source, code = (dedent(text) for text in WRONG["a decorator that does not keep the name"])
    more = code + '\ndef test_greeting(): assert greet("y") == "hi y"\n'
    verdict = await grade_partial(source, [TestFile(code=more)], pool=pool)
    assert [(result.name.partition("::")[2], result.passed) for result in verdict.results] == [
        ("test", False),
        ("test_greeting", True),
    ]
    assert verdict.results[0].message.startswith(FAILS)
    assert "'wrapper'" in verdict.results[0].message, "it says what the test found"


@pytest.mark.soak
@pytest.mark.timeout(120)
async def test_what_a_failed_test_does_is_done_for_the_others(pool: SandboxPool) -> None:
    source = "items = []\ndef put(x):\n items.append(x)\n return len(items) + 5\ndef get(): return items[-1]"
    code = "from solution import get, put\ndef test_put(): assert put(7) == 1\ndef test_get(): assert get() == 7"
    verdict = await grade_partial(source, [TestFile(code=code)], pool=pool)
    assert [result.passed for result in verdict.results] == [False, True]


@pytest.mark.soak
@pytest.mark.timeout(120)
@pytest.mark.parametrize("ends", ["import os; os._exit(0)", "while True: pass"])
async def test_a_failed_test_that_ends_or_hangs_the_process_costs_no_other(pool: SandboxPool, ends: str) -> None:
    code = "from solution import f, g\ndef test_a(): f()\ndef test_b(): assert g() == 1"
    source = f"def f():\n {ends}\ndef g(): return 1"
    verdict = await grade(source, [TestFile(code=code)], pool=pool, limits=Limits(timeout_s=0.5, memory_mb=300))
    assert [result.passed for result in verdict.results] == [False, True]


@pytest.mark.soak
@pytest.mark.timeout(120)
async def test_what_a_class_of_tests_finds_at_its_end_counts(pool: SandboxPool) -> None:
    source, _ = WRONG["a decorator that does not keep the name"]
    code = """
        import unittest
        from solution import greet
        class Tests(unittest.TestCase):
            _tests = 3
            @classmethod
            def tearDownClass(cls): assert greet.__name__ == "greet"
            def test_greeting(self): self.assertEqual(greet("x"), "hi x")
    """
    verdict = await grade(dedent(source), [TestFile(code=dedent(code), framework="unittest")], pool=pool)
    assert not verdict.passed
    right = "def greet(name): return 'hi ' + name"
    assert (await grade(right, [TestFile(code=dedent(code), framework="unittest")], pool=pool)).passed


async def test_a_unittest_file_is_looked_at_too(pool: SandboxPool) -> None:
    source, _ = WRONG["a decorator that does not keep the name"]
    code = """
        import unittest
        from solution import greet
        class Tests(unittest.TestCase):
            def test_name(self): self.assertEqual(greet.__name__, "greet")
            def test_greeting(self): self.assertEqual(greet("x"), "hi x")
    """
    verdict = await grade(dedent(source), [TestFile(code=dedent(code), framework="unittest")], pool=pool)
    assert {result.name.rpartition(".")[2]: result.passed for result in verdict.results} == {
        "test_name": False,
        "test_greeting": True,
    }


@pytest.mark.soak
@pytest.mark.timeout(120)
@pytest.mark.soak
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("source", "test", "passes"),
    [
        ("class Solution:\n def f(self, x): return x + 1", AssertTest(code="def check(c): assert c(1) == 2", entry_point="Solution().f"), True),
        ("n = 0\ndef up():\n global n\n n += 1", AssertTest(code="up()\nassert n == 1\nup()\nassert n == 2"), True),
        ("n = 0\ndef up():\n global n\n n += 1", AssertTest(code="def look(): return n\nup()\nassert look() == 1"), True),
        ("def sum(xs): return 7", AssertTest(code="assert sum([]) == 7", candidate_names=("sum",)), True),
        ("def sum(xs): return 7\ndef f(): return 1", AssertTest(code="assert sum([]) == 0 and f() == 1"), True),
        ("def area(r): return 3 * r", AssertTest(code="assert math.isclose(area(1), 3)", prelude="import math"), True),
        ("def sum(xs): return 7", AssertTest(code="def check(c): assert c([]) == 7 and sum([]) == 0", entry_point="sum"), True),
        ("f = lambda: 1", AssertTest(code="assert f.__name__ == 'f'"), False),
    ],
)  # fmt: skip
async def test_assertions_share_the_programs_names_as_they_are(
    pool: SandboxPool, source: str, test: AssertTest, passes: bool
) -> None:
    verdict = await grade(source, [test], pool=pool)
    assert verdict.passed == passes, verdict.results


@pytest.mark.soak
@pytest.mark.timeout(120)
async def test_a_forged_report_of_long_texts_costs_the_host_no_memory(pool: SandboxPool) -> None:
    source = """
import os, sys
if any("one_process" in name for name in sys.modules):
    frame = sys._getframe()
    while "secret" not in frame.f_locals: frame = frame.f_back
    names = [f"test_solution.py::test[{i}]" for i in range(100)]
    failed = ", ".join(f'"{name}": "' + "x" * 9_000 + '"' for name in names)
    os.write(frame.f_locals["report"], frame.f_locals["secret"] + b'{"passed": [], "broken": null, "failed": {' + failed.encode() + b"}}\\n")
def f(x): return x
"""
    code = "import pytest\nfrom solution import f\n@pytest.mark.parametrize('x', range(100))\ndef test(x): assert f(x) == x"
    verdict = await grade(source, [TestFile(code=code)], pool=pool)
    assert not any(result.passed for result in verdict.results)
    assert max(len(result.message) for result in verdict.results) < 3_000


@pytest.mark.soak
@pytest.mark.timeout(120)
async def test_a_forged_report_of_many_items_is_not_read(pool: SandboxPool) -> None:
    source = """
import os, sys
if any("one_process" in name for name in sys.modules):
    frame = sys._getframe()
    while "secret" not in frame.f_locals: frame = frame.f_back
    failed = ",".join(f'"{i:x}":[]' for i in range(90_000))
    line = frame.f_locals["secret"] + b'{"passed": [], "broken": null, "failed": {' + failed.encode() + b"}}\\n"
    while line: line = line[os.write(frame.f_locals["report"], line) :]
    os._exit(0)
def f(x): return x
"""
    verdict = await grade(source, [TestFile(code="from solution import f\ndef test(): assert f(1) == 1")], pool=pool)
    assert "nonsense" in verdict.results[0].message, "what would hold the event loop for 0.1 s is not looked into"


@pytest.mark.soak
@pytest.mark.timeout(120)
async def test_the_limits_of_a_test_are_those_of_both(pool: SandboxPool) -> None:
    code = "from solution import f\ndef test(): assert f() == 200"
    source = "def f(): return len([open('/dev/null') for _ in range(200)])"
    verdict = await grade(source, [TestFile(code=code)], pool=pool, limits=Limits(memory_mb=300, open_files=400))
    assert verdict.passed, verdict.results


@pytest.mark.soak
@pytest.mark.timeout(120)
async def test_what_both_need_of_memory_together_is_not_counted_against_the_program(pool: SandboxPool) -> None:
    source = "held = bytearray(120 * 2**20)\nfor at in range(0, len(held), 4096): held[at] = 1\ndef f(): return 1"
    code = """
        from solution import f
        more = bytearray(170 * 2**20)
        for at in range(0, len(more), 4096): more[at] = 1
        def test(): assert f() == 1
    """
    verdict = await graded(pool, source, code)
    assert verdict.passed, verdict.results
