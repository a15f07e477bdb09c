"""Tests that need more of a program than its functions run inside, as plain Python; tricks that models learn are no pass there."""

from __future__ import annotations

import sys
from dataclasses import replace
from textwrap import dedent

import pytest

from agentrl.sandboxes import AssertTest, Limits, SandboxPool, TestFile, Verdict, grade
from agentrl.sandboxes.grading import runs
from agentrl.sandboxes.grading.trust import Trust
from agentrl.sandboxes.inside.frameworks import import_framework
from tests.sandboxes.rings import gate

pytestmark = pytest.mark.anyio


PROGRAM = """
import asyncio, dataclasses, json, sys

class Stack:
    def __init__(self, items=()): self.items = list(items)
    def push(self, item): self.items.append(item); return self
    def __len__(self): return len(self.items)
    def __eq__(self, other): return isinstance(other, Stack) and self.items == other.items
    def __hash__(self): return hash(tuple(self.items))

@dataclasses.dataclass
class Point:
    x: int
    y: int = 0

class Base:
    def name(self): raise NotImplementedError
    def greet(self): return f"hello {self.name()}"

async def double(n):
    await asyncio.sleep(0)
    return 2 * n

def fetch(): return "the network"
def use(): return fetch().upper()
def save(path, value):
    with open(path, "w") as file: json.dump(value, file)
def shout(text, times=1): print(text.upper() * times)

if __name__ == "__main__": print(sum(map(int, sys.stdin.read().split())))
"""
UNITTEST = "import unittest\n"
HONEST = {
    "tmp_path": "from solution import save\ndef test(tmp_path):\n save(tmp_path / 'a', [1])\n assert (tmp_path / 'a').read_text() == '[1]'",
    "asyncio.run": "import asyncio\nfrom solution import double\ndef test(): assert asyncio.run(double(2)) == 4",
    "a subclass": "from solution import Base\nclass Own(Base):\n def name(self): return 'me'\ndef test(): assert Own().greet() == 'hello me'",
    "asdict": "import dataclasses\nfrom solution import Point\ndef test(): assert dataclasses.asdict(Point(1)) == {'x': 1, 'y': 0}",
    "a signature": "import inspect, solution\ndef test(): assert list(inspect.signature(solution.shout).parameters) == ['text', 'times']",
    "a source": "import inspect, solution\ndef test(): assert 'upper' in inspect.getsource(solution.shout)",
    "pickle": "import pickle\nfrom solution import Stack\ndef test(): assert pickle.loads(pickle.dumps(Stack([1]))) == Stack([1])",
    "another name": "import solution as pkg\ndef test(): assert len(pkg.Stack().push(1)) == 1",
    "a program": (
        "import subprocess, sys\ndef test():\n"
        " done = subprocess.run([sys.executable, 'solution.py'], input='1 2', capture_output=True, text=True)\n assert done.stdout == '3\\n'"
    ),
    "a patch": "from unittest.mock import patch\nimport solution\ndef test():\n with patch('solution.fetch', return_value='a'): assert solution.use() == 'A'",
    "monkeypatch": "import solution\ndef test(monkeypatch):\n monkeypatch.setattr(solution, 'fetch', lambda: 'a')\n assert solution.use() == 'A'",
    "capsys": "from solution import shout\ndef test(capsys):\n shout('a', 2)\n assert capsys.readouterr().out == 'AA\\n'",
    "an exception of the library's": "import pytest\nfrom solution import Base\ndef test():\n with pytest.raises(NotImplementedError): Base().greet()",
    "a skip of the tests'": "import pytest, solution\ndef test_a(): pytest.skip('no')\ndef test_b(): assert len(solution.Stack()) == 0",
}
UNITTESTS = {
    "async methods": (
        "from solution import double\nclass T(unittest.IsolatedAsyncioTestCase):\n async def test(self): self.assertEqual(await double(2), 4)"
    ),
    "setUp and a class": (
        "from solution import Stack\nclass T(unittest.TestCase):\n def setUp(self): self.stack = Stack([1])\n"
        " def test(self): self.assertEqual(self.stack.push(2).items, [1, 2])"
    ),
    "a skipped class": (
        "from solution import Stack\nclass T(unittest.TestCase):\n @classmethod\n def setUpClass(cls): raise unittest.SkipTest('no')\n"
        " def test_a(self): pass\nclass U(unittest.TestCase):\n def test_b(self): self.assertEqual(len(Stack()), 0)"
    ),
    "tests that are none": (
        "from solution import Stack\nclass T(unittest.TestCase):\n def test(self): self.assertEqual(len(Stack()), 0)\n"
        "class TestHelper:\n __test__ = False\n def test_nothing(self): pass"
    ),
    "a base of tests": (
        "from solution import Stack\nclass Base(unittest.TestCase):\n kind = Stack\n def test(self): self.assertEqual(len(self.kind()), 0)\n"
        "class Own(Base): pass"
    ),
}
FILES = {name: TestFile(code=code) for name, code in HONEST.items()}
FILES |= {name: TestFile(code=UNITTEST + code, framework="unittest") for name, code in UNITTESTS.items()}
FILES |= {
    "a package's name": TestFile(
        code="import two_fer as pkg\ndef test(): assert len(pkg.Stack()) == 0", module="two_fer"
    ),
    "files beside": TestFile(
        code="from solution import Stack\nfrom shapes import made\ndef test(made_by): assert made == 1 and made_by == 2 and len(Stack()) == 0",
        files={"shapes.py": "made = 1", "conftest.py": "import pytest\n@pytest.fixture\ndef made_by(): return 2"},
    ),
    "a file shared": TestFile(
        code="import solution\nfrom solution import Stack\ndef test(): assert open('a.txt').read() == 'b'",
        files={"a.txt": "b"},
        trust="inside",
    ),
}


@pytest.mark.parametrize(
    "name", gate("tmp_path", "asyncio.run", "a patch", "a program", "async methods", "files beside", of=FILES)
)
async def test_honest_tests_pass_as_in_plain_python(pool: SandboxPool, name: str) -> None:
    verdict = await grade(PROGRAM, [FILES[name]], pool=pool)
    assert verdict.passed, verdict.results
    assert verdict.trust is Trust.INSIDE


NODE = "class Node:\n    def __init__(self, value): self.value = value\n"
VALUE = "def value(node): return node.value"
EQUAL = TestFile(code="from solution import Node\ndef test(): assert Node(1) == Node(1) and Node(1) != Node(2)")
LIBRARY = "with open('library.py', 'w') as file: file.write('class Any:\\n def __eq__(self, other): return True')\nimport library\n"
HONEST_PROGRAMS: dict[str, tuple[str, AssertTest | TestFile]] = {
    "compares what others lack": (f"class Node:\n    value = None\n{NODE.partition(chr(10))[2]}    def __eq__(self, other): return self.value == getattr(other, 'value', None)", EQUAL),
    "compares its slots": ("class Node:\n    __slots__ = ('value',)\n    def __init__(self, value): self.value = value\n    def __eq__(self, other): return getattr(self, 'value', None) == getattr(other, 'value', None)", EQUAL),
    "has a flag": (f"{NODE}    wild = False\n    def __eq__(self, other): return self.wild or self.value == other.value", EQUAL),
    "is called like a test": (f"{NODE}def test_node(node): return node.value", TestFile(code="from solution import Node, test_node\ndef test(): assert test_node(Node(1)) == 1")),
    "a library has a wild card": (LIBRARY + NODE + VALUE, TestFile(code="from solution import *\ndef test(): assert value(Node(1)) == 1")),
    "compares fields": (f"{NODE}    def __eq__(self, other): return self.__dict__ == other.__dict__", EQUAL),
    "compares its own": (f"{NODE}    def __eq__(self, other): return all(getattr(other, k, 0) == v for k, v in vars(self).items())", EQUAL),
    "compares a remainder": ("class Node(int):\n    def __eq__(self, other): return int(self) % 2 == int(other) % 2", EQUAL),
    "compares items": ("class Node(list):\n    def __init__(self, *a): self += a\n    def __eq__(self, o): return all(map(int.__eq__, self, o))", EQUAL),
    "a class for a setup": (NODE + VALUE, AssertTest(code="assert value(root) == 1", prelude="root = Node(1)")),
    "objects of the tests'": (VALUE, AssertTest(code="def check(f): assert f(Node(1)) == 1", prelude=NODE, entry_point="value")),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST_PROGRAMS)
async def test_an_honest_program_is_paid(pool: SandboxPool, name: str) -> None:
    source, test = HONEST_PROGRAMS[name]
    verdict = await grade(source, [test], pool=pool)
    assert (verdict.status, verdict.trust) == ("passed", Trust.INSIDE), verdict.results


CLASS = "from solution import Add\n"
ASSERTS = AssertTest(code="assert Add().sum(1, 2) == 3\nassert Add().sum(2, 2) == 4")
PYTEST = TestFile(code=f"{CLASS}def test_a(): assert Add().sum(1, 2) == 3\ndef test_b(): assert Add().sum(2, 2) == 4")
UNIT = TestFile(
    framework="unittest",
    code=f"{UNITTEST}{CLASS}class T(unittest.TestCase):\n def test_a(self): self.assertEqual(Add().sum(1, 2), 3)\n"
    " def test_b(self): self.assertTrue(Add().sum(2, 2) == 4)",
)
SUM = "\nclass Add:\n    def sum(self, a, b): return 0\n"
FORGED = '{"results": [["test_a", "passed", ""], ["test_b", "passed", ""]], "functions": ["test_a", "test_b"]}'
STOPPED = {
    "leaves when it is loaded": "import os\nos._exit(0)",
    "leaves in a call": "import os\nclass Add:\n    def sum(self, a, b): os._exit(0)",
    "raises SystemExit when it is loaded": "raise SystemExit(0)",
    "raises SystemExit in a call": "import sys\nclass Add:\n    def sum(self, a, b): sys.exit(0)",
    "is equal to everything": "class Any:\n    def __eq__(self, other): return True\nclass Add:\n    def sum(self, a, b): return Any()",
    "is an int equal to everything": (
        "class Any(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\nclass Add:\n    def sum(self, a, b): return Any()"
    ),
    "patches unittest": (
        "import unittest\nfor name in dir(unittest.TestCase):\n    if name.startswith('assert'): setattr(unittest.TestCase, name, lambda *a: None)"
        + SUM
    ),
    "patches the code of unittest": (
        "import unittest\ndef quiet(self, *args, **kwargs): pass\nunittest.TestCase.assertEqual.__code__ = quiet.__code__\n"
        "unittest.TestCase.assertTrue.__code__ = quiet.__code__" + SUM
    ),
    "patches pytest": "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None" + SUM,
    "patches builtins": "import builtins\nbuiltins.AssertionError = type('Quiet', (Exception,), {})\nbuiltins.isinstance = lambda *a: True"
    + SUM,
    "reports at exit": f"import atexit, os\natexit.register(lambda: os.write(1, {FORGED!r}.encode()))\nraise SystemExit(0)",
    "writes a report to every descriptor": (
        f"import os\nfor fd in range(1, 30):\n    try: os.write(fd, {FORGED!r}.encode() + b'\\n')\n    except OSError: pass\nos._exit(0)"
    ),
    "is equal to every int": (
        "class Any:\n    def __eq__(self, other): return isinstance(other, int)\nclass Add:\n    def sum(self, a, b): return Any()"
    ),
    "patches the report": "import sys\nsys.modules['agentrl.sandboxes.inside.report'].Report.status_of = lambda *a: 'passed'"
    + SUM,
    "patches json": "import json\nwrite = json.dumps\njson.dumps = lambda *a: write(*a).replace('wrong_answer', 'passed')"
    + SUM,
    "says that it is to fail": "import pytest\nclass Add:\n    def sum(self, a, b): pytest.xfail('no')",
    "skips the tests": "import unittest\nclass Add:\n    def sum(self, a, b): raise unittest.SkipTest('no')",
    "brings a conftest": (
        "open('conftest.py', 'w').write('import pytest\\n@pytest.hookimpl\\ndef pytest_pyfunc_call(pyfuncitem): return True')"
        + SUM
    ),
    "brings a configuration": "open('pytest.ini', 'w').write('[pytest]\\naddopts = --collect-only')" + SUM,
    "forks, and the child leaves": "import os, sys\nif os.fork() == 0: os._exit(0)\nos.wait()" + SUM,
    "never ends": "class Add:\n    def sum(self, a, b):\n        while True: pass",
}
KNOWN_TO_PASS = {
    "returns unittest's ANY": "from unittest.mock import ANY\nclass Add:\n    def sum(self, a, b): return ANY",
    "the frames of the test runner": """
        import sys
        class Add:
            def sum(self, a, b):
                frame = sys._getframe()
                while frame is not None and "report" not in frame.f_locals: frame = frame.f_back
                report = frame.f_locals["report"]
                report.end = lambda name, function, *rest: (report.functions.add(function), report.results.append((name, "passed", "")))
                return 0
    """,
    "a metaclass that hides __eq__": """
        class Hides(type):
            def __getattribute__(cls, name): return object.__eq__ if name == "__eq__" else type.__getattribute__(cls, name)
        class Any(metaclass=Hides):
            def __eq__(self, other): return True
        class Add:
            def sum(self, a, b): return Any()
    """,
    "a class that names another module": """
        class Any:
            __module__ = "elsewhere"
            def __eq__(self, other): return True
        class Add:
            def sum(self, a, b): return Any()
    """,
    "a class made in another module's name": """
        space = {"__name__": "elsewhere"}
        exec("class Any:\\n    def __eq__(self, other): return True", space)
        class Add:
            def sum(self, a, b): return space["Any"]()
    """,
    "a MagicMock": """
        from unittest.mock import MagicMock
        class Add:
            def sum(self, a, b): return MagicMock(__eq__=lambda *_: True)
    """,
    "the test file": """
        class Add:
            def sum(self, a, b): return int(open("test_solution.py").read().partition(f"sum({a}, {b}) == ")[2][0])
    """,
}


async def tried(pool: SandboxPool, source: str, tests: list[AssertTest | TestFile]) -> Verdict:
    return await grade(source, tests, pool=pool, limits=Limits(timeout_s=0.5))


@pytest.mark.parametrize(
    "name",
    gate(
        "leaves in a call", "is equal to everything", "patches unittest", "patches pytest", "patches json", of=STOPPED
    ),
)
async def test_a_trick_that_models_learn_is_no_pass(pool: SandboxPool, name: str) -> None:
    verdict = await tried(pool, STOPPED[name], [ASSERTS, PYTEST, UNIT])
    assert not any(result.passed for result in verdict.results), verdict.results


KIND = "class Any({0}):\n    def __eq__(self, other): return isinstance(other, {0})\nclass Add:\n    def sum(self): return Any()"
CLOSE = "import math\nmath.isclose = lambda *a: True\nclass Add:\n    def sum(self): return 0"
CHECKS = {
    KIND.format("str"): "Add().sum() == 'a'",
    KIND.format("list"): "Add().sum() == [1]",
    CLOSE: "math.isclose(Add().sum(), 3)",
}


@pytest.mark.parametrize(("source", "check"), CHECKS.items(), ids=["text", "list", "math"])
async def test_what_stands_for_any_value_is_no_pass(pool: SandboxPool, source: str, check: str) -> None:
    verdict = await tried(pool, source, [AssertTest(code=f"assert {check}")])
    assert verdict.status == "wrong_answer", verdict.results


ADD = "class Add:\n    def sum(self, a, b):\n        {}\n        return a + b"
LEAVES = {
    "unittest's": "import unittest\n" + ADD.format("if a == 2: raise unittest.SkipTest('no')"),
    "pytest's": "import pytest\n" + ADD.format("if a == 2: pytest.skip('no')"),
}


@pytest.mark.parametrize("name", LEAVES)
async def test_a_program_that_skips_one_test_of_two_has_failed_it(pool: SandboxPool, name: str) -> None:
    for test in (PYTEST, UNIT):
        verdict = await tried(pool, LEAVES[name], [test])
        assert [result.status.value for result in verdict.results] == ["passed", "runtime_error"], verdict.results


OWN = {
    "tests": "def test_mine(): pass",
    "a test case": "import unittest\nclass TestMine(unittest.TestCase):\n    def test_mine(self): pass",
    "a fixture": "import pytest\n@pytest.fixture(autouse=True)\ndef patched(monkeypatch): monkeypatch.setattr(Add, 'sum', lambda self, a, b: a + b)",
    "a mark": "import pytest\npytestmark = pytest.mark.skip",
}


@pytest.mark.parametrize("name", OWN)
async def test_what_a_program_brings_for_pytest_counts_for_nothing(pool: SandboxPool, name: str) -> None:
    for test in (PYTEST, UNIT):
        starred = replace(test, code=test.code.replace(CLASS, "from solution import *\n"))
        verdict = await tried(pool, SUM + OWN[name], [starred])
        assert {result.name.rpartition("::")[2]: result.status.value for result in verdict.results} == {
            "test_a": "wrong_answer",
            "test_b": "wrong_answer",
        }


@pytest.mark.soak
@pytest.mark.parametrize("name", KNOWN_TO_PASS)
async def test_what_is_known_to_pass_inside(pool: SandboxPool, name: str) -> None:
    """A program that looks for the test runner, or hides what its objects are, forges a pass: docs/grading.md says so."""
    assert (await tried(pool, dedent(KNOWN_TO_PASS[name]), [PYTEST])).passed


async def test_code_that_no_exception_ends_is_killed_when_its_time_is_over(pool: SandboxPool) -> None:
    file = TestFile(code="from solution import Add\ndef test_a(): assert Add().sum() == 1")
    verdict = await tried(pool, "class Add:\n    def sum(self): return sum(range(10**12))", [file])
    assert verdict.status == "time_limit"


async def test_a_program_that_blocks_every_signal_is_ended_with_its_time_limit(
    pool: SandboxPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "SILENCE_S", 0.5)
    source = "import signal, time\nclass Add:\n    def sum(self, a, b):\n        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n        time.sleep(1000)"
    verdict = await grade(source, [PYTEST], pool=pool, limits=Limits(timeout_s=0.5), deadline_s=60)
    assert [result.status.value for result in verdict.results] == ["time_limit"]


async def test_some_tests_pass_and_some_do_not(pool: SandboxPool) -> None:
    file = TestFile(
        code="import solution\ndef test_a(): assert solution.Add().sum(1, 1) == 2\ndef test_b(): assert solution.Add().sum(1, 2) == 3"
    )
    source = "class Add:\n    def sum(self, a, b):\n        while b == 2: pass\n        return a + b"
    verdict = await tried(pool, source, [file])
    assert [result.status.value for result in verdict.results] == ["passed", "time_limit"]


async def test_a_test_that_did_not_run_is_no_pass(pool: SandboxPool) -> None:
    """One of four passes, and the next ends the run: that is no half of them."""
    code = "import solution\n" + "".join(f"def test_{n}(): assert solution.Add().sum({n}) == {n}\n" for n in range(4))
    source = "class Add:\n    def sum(self, n):\n        if n: raise KeyboardInterrupt\n        return n"
    verdict = await tried(pool, source, [TestFile(code=code)])
    assert [result.status.value for result in verdict.results] == ["passed", "runtime_error", *["not_run"] * 3]


@pytest.mark.soak
async def test_each_test_of_a_file_has_time_of_its_own(pool: SandboxPool) -> None:
    file = TestFile(
        code="import pytest\nfrom solution import Add\n@pytest.mark.parametrize('n', range(14))\ndef test(n): assert Add().sum() == 1"
    )
    verdict = await tried(pool, "import time\nclass Add:\n    def sum(self): time.sleep(1); return 1", [file])
    assert verdict.passed, verdict.results


@pytest.mark.parametrize(
    ("test", "message"),
    [
        (
            TestFile(code="import pytest, solution\npytest.skip('no', allow_module_level=True)\ndef test(): pass"),
            "no tests",
        ),
        (AssertTest(code="assert ("), "SyntaxError"),
        (TestFile(code="import solution\nimport no_such_module\ndef test(): pass"), "no_such_module"),
        (TestFile(code="import unittest, solution, no_such_module", framework="unittest"), "no_such_module"),
        (TestFile(code="x = 1"), "the test code has no tests"),
        (AssertTest(code="def verify(candidate): pass", entry_point="f"), "no check"),
        (TestFile(code="from solution import f\nasync def test(): assert await f()"), "pytest_plugins = ["),
        (TestFile(code="from solution import f\ndef test(mocker): assert f()"), "pytest_plugins = ["),
    ],
)
async def test_tests_that_cannot_run_are_nobody_s_fault(
    pool: SandboxPool, test: AssertTest | TestFile, message: str
) -> None:
    (result,) = (await grade("def f(): pass", [test], pool=pool)).results
    assert result.status == "checker_error", result
    assert message in result.message


def test_a_sandbox_without_pytest_is_told_from_a_program_that_lacks_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "_pytest.config", None)
    with pytest.raises(ImportError, match="the sandbox has no pytest, which these tests need: install it in the image"):
        import_framework("pytest", [])


async def test_what_the_program_lacks_is_its_own_fault(pool: SandboxPool) -> None:
    lacks = [
        TestFile(code="from solution import Stack\ndef test(): assert Stack()"),
        AssertTest(code="assert Stack().x"),
    ]
    for source in ("def f(): pass", "import no_such_module", "x = ("):
        verdict = await grade(source, lacks, pool=pool)
        assert {result.status.value for result in verdict.results} == {"runtime_error"}, verdict.results


async def test_time_is_up_where_no_exception_can_be_raised(pool: SandboxPool) -> None:
    program = "import time\nclass Deaf:\n def __del__(self): time.sleep(0.2)\ndef f():\n while True: Deaf()"
    tests = TestFile(code="import os\nfrom solution import f\ndef test(): assert f() == os")
    verdict = await grade(program, [tests], pool=pool, limits=Limits(timeout_s=0.5))
    assert [result.status.value for result in verdict.results] == ["time_limit"]
