"""Tests that need what cannot be had say so before anything runs."""

from __future__ import annotations

from typing import Literal

import pytest

from agentrl.errors import ConfigError
from agentrl.sandboxes import AssertTest, BackendName, CallTest, TestFile, grade, open_pool
from agentrl.sandboxes.grading.needs import needs

REFUSED = {
    "inspect.getsource": "import inspect, solution\ndef test(): assert 'for' in inspect.getsource(solution.f)",
    "signatures": "from inspect import signature\nfrom solution import f\ndef test(): signature(f)",
    "importlib.reload": "import importlib, solution\ndef test(): importlib.reload(solution)",
    "derive its class Mine": "import solution\nclass Mine(solution.Base): pass\ndef test(): Mine()",
    "patch time.localtime": "from unittest.mock import patch\n@patch('time.localtime')\ndef test(localtime): pass",
    "patch solution.super": "from unittest.mock import patch\n@patch('solution.super', create=True)\ndef test(it): pass",
    "patch solution.vars": "import solution\ndef test(monkeypatch): monkeypatch.setattr(solution, 'vars', len)",
    "patch time.localtime,": "import time, solution\ndef test(monkeypatch): monkeypatch.setattr(time, 'localtime', len)",
    "tmp_path": "from solution import save\ndef test(tmp_path): save(tmp_path / 'x')",
    "async def test": "from solution import f\nasync def test(): await f()",
    "dataclasses.asdict": "from dataclasses import asdict\nfrom solution import P\ndef test(): asdict(P())",
    "to be Python": "def test(:",
    "isabstract": "import inspect\nfrom solution import Shape\ndef test(): assert inspect.isabstract(Shape)",
    "insides (solution.__all__)": "import solution\ndef test(): assert solution.__all__ == ['f']",
    "insides (Grid.Cell.__bases__)": "from solution import Grid\ndef test(): assert Grid.Cell.__bases__ == (object,)",
    "with autospec": "from unittest.mock import patch\n@patch('solution.Clock.now', autospec=True)\ndef test(now): pass",
    "create_autospec(Repo)": "import pytest\nfrom unittest.mock import create_autospec\nfrom solution import Repo\n"
    "def test():\n with pytest.raises(TypeError): create_autospec(Repo)(1, 2)",
    "patch solution.Service.__init__": "from unittest.mock import patch\n@patch('solution.Service.__init__')\ndef test(init): pass",
    "patch Repo.__len__": "from unittest.mock import patch\nfrom solution import Repo\n@patch.object(Repo, '__len__')\ndef test(it): pass",
    "package (import solution.models)": "from solution.models import f\ndef test(): f()",
    "(tmp_path) in a fixture": "import pytest\nfrom solution import Store\n@pytest.fixture\ndef store(tmp_path): return Store(tmp_path)\ndef test(store): store.save()",
    "(tmp_path_factory)": "from solution import write\ndef test(tmp_path_factory): write(tmp_path_factory.mktemp('d'))",
    "candidate (f.name)": "import tempfile\nfrom solution import count\ndef test():\n with tempfile.NamedTemporaryFile('w') as f: f.write('a')\n assert count(f.name) == 1",
    "candidate (path)": "import os, tempfile\nfrom solution import Store\ndef test():\n d = tempfile.mkdtemp()\n path = os.path.join(d, 'x')\n s = Store()\n s.save(path)",
    "candidate (self.path)": "import tempfile, unittest\nfrom solution import Store\nclass T(unittest.TestCase):\n def setUp(self): _, self.path = tempfile.mkstemp()\n"
    " def test(self): Store(self.path)",
    "candidate ('data.txt')": "from solution import count\ndef test():\n with open('data.txt', 'w') as f: f.write('a')\n assert count('data.txt') == 1",
    "a module of its own in the place": "import sys\nfrom unittest.mock import Mock, patch\nfrom solution import load\ndef test():\n with patch.dict(sys.modules, {'yaml': Mock()}): load()",
    "(sys.modules); patch the name": "import sys\nfrom solution import load\ndef test(monkeypatch): monkeypatch.setitem(sys.modules, 'yaml', None)",
    "that the candidate imports": "import sys\nfrom unittest.mock import MagicMock\nsys.modules['yaml'] = MagicMock()\nimport solution\ndef test(): solution.load()",
    "patch os.path.exists": "import os\nfrom unittest.mock import patch\nfrom solution import has\ndef test():\n with patch.multiple(os.path, exists=lambda p: True): assert has('x')",
    "patch os.path.isfile": "import os\nfrom solution import has\ndef test():\n os.path.isfile = lambda p: True\n assert has('x')",
    "patch os.fork": "import os\nfrom solution import can\ndef test(monkeypatch):\n monkeypatch.delattr(os, 'fork')\n assert not can()",
    "patch os.kill": "import os, pytest\nfrom solution import can\ndef test():\n with pytest.MonkeyPatch.context() as mp:\n  mp.setattr(os, 'kill', len)\n  can()",
    "programs (subprocess.call)": "import subprocess, sys\ndef test(): assert subprocess.call([sys.executable, 'solution.py']) == 0",
    "programs (subprocess.getoutput)": "import subprocess, sys\ndef test(): assert subprocess.getoutput(f'{sys.executable} solution.py') == 'hi'",
    "source (Path('solution.py'))": "from pathlib import Path\ndef test(): assert 'import os' not in Path('solution.py').read_text()",
    "source (doctest.testmod)": "import doctest, solution\ndef test(): assert doctest.testmod(solution).failed == 0",
    "pytest-mock": "import solution\ndef test(mocker): mocker.patch('solution.f')",
    "functions here (MethodType)": "from types import MethodType\nfrom solution import f\ndef test(): assert isinstance(f(), MethodType)",
    "(run_until_complete)": "import asyncio\nfrom solution import f\ndef test(): asyncio.new_event_loop().run_until_complete(f())",
    "dataclasses.replace": "from dataclasses import replace\nfrom solution import make\ndef test():\n it = make()\n assert replace(it, x=1)",
    "package (import .solution)": "from .solution import f\ndef test(): f()",
}
HAD = [
    "try:\n    from solution.models import f\nexcept ImportError:\n    from solution import f\ndef test(): f()",
    "from unittest.mock import patch\n@patch('solution.fetch')\ndef test(fetch): pass",
    "import solution\ndef test(monkeypatch, capsys): monkeypatch.setattr(solution, 'rate', 3)",
    "from unittest.mock import patch\nimport solution\ndef test():\n    with patch.object(solution, 'x', 1): pass",
    "from solution import f\nclass Own: pass\ndef test(): assert Own.__bases__ == (object,) and f.__name__ == 'f'",
    "from unittest.mock import patch\n@patch('solution.fetch', autospec=True)\n@patch('solution.time.sleep', autospec=True)\ndef test(*them): pass",
    "from unittest.mock import patch\n@patch('solution.Clock.now', autospec=False)\ndef test(now): pass",
    "import solution\ndef test(monkeypatch): monkeypatch.setattr(solution, '__version__', '9')",
    "from unittest.mock import create_autospec\nfrom solution import Repo\ndef test(): create_autospec(Repo, instance=True)",
    "from solution import Dog, Base\ndef test(): assert Base in Dog.__mro__ and Dog.__slots__ == ()",
    "from unittest.mock import create_autospec\nclass Own: pass\ndef test(): create_autospec(Own)",
    "from solution import Api\ndef test():\n api = Api()\n assert api.patch('/items/1', {'name': 'b'}) == {'name': 'b'}",
    "from solution import Doc, patch\ndef test(): assert Doc('abc').patch('b', 'x').t == 'axc' and patch('a', 'b') == 'ab'",
    "from solution import f\ndef patch(x): return x\ndef test(): assert f(patch('a.b')) == 2",
    "from solution import Router\nr = Router()\n@r.patch('/x')\ndef x(): return 1\ndef test(): assert r.r['/x']() == 1",
    "import pytest\nfrom unittest.mock import Mock\nfrom solution import App\n@pytest.fixture\ndef client(): return App(Mock()).client\n"
    "def test(client): assert client.patch('/users/1')",
    "from enum import Enum\nfrom solution import f\nclass MethodType(Enum):\n GET = 'GET'\ndef test(): assert f(MethodType.GET.value)",
    "import pytest\nfrom solution import f\n@pytest.fixture\ndef mocker(): return 3\ndef test(mocker): assert f(mocker) == 6",
    "import pytest\nfrom solution import f\n@pytest.mark.parametrize('benchmark,want', [(1, 2)])\ndef test(benchmark, want): assert f(benchmark) == want",
    "from solution import Loop\ndef test(): assert Loop().run_until_complete([]) == 3",
    "from dataclasses import dataclass, asdict, replace\nfrom solution import f\n@dataclass\nclass Case:\n x: int\ndef test():\n c = Case(1)\n assert f(asdict(replace(c, x=2)))",
    "import inspect\nfrom solution import f\ndef own(): pass\ndef test(): assert inspect.isfunction(own)",
    "import subprocess, sys\nfrom solution import f\ndef test(): assert f(subprocess.run([sys.executable, '-c', 'print(1)']))",
    "import sys\nfrom unittest.mock import patch\nfrom solution import f\ndef test():\n with patch.object(sys.modules['solution'], 'dep'): f()\n"
    " with patch.object(sys.modules[f.__module__], 'dep'): f()",
    "import json, tempfile\nfrom solution import f\ndef test():\n with tempfile.TemporaryFile('w+') as file:\n  json.dump([1], file)\n  file.seek(0)\n  data = json.load(file)\n assert f(data)",
    "from unittest.mock import DEFAULT, patch\nfrom solution import both\ndef test():\n with patch.multiple('solution', a=DEFAULT): both()",
    "import time\nfrom unittest.mock import Mock\nfrom solution import wait\ndef test():\n time.sleep = Mock()\n wait()",
    "import pytest\nfrom solution import *\nclass TestIt:\n    def test(self): assert f() == 1",
]


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_had_is_named(what: str) -> None:
    found = needs(TestFile(code=REFUSED[what]))
    assert found is not None
    assert what.removesuffix(" in a fixture") in found


@pytest.mark.parametrize("code", HAD)
def test_what_can_be_had_is_not(code: str) -> None:
    assert needs(TestFile(code=code)) is None
    assert needs(CallTest(function="f")) is None


@pytest.mark.anyio
async def test_such_a_test_is_refused_before_a_run(bubblewrap: BackendName) -> None:
    async with open_pool(backend=bubblewrap, size=2) as pool:
        with pytest.raises(ConfigError, match=r"test 2 needs the candidate's source \(inspect.getsource\)"):
            await grade("", [AssertTest(code="assert 1"), TestFile(code=REFUSED["inspect.getsource"])], pool=pool)


@pytest.mark.anyio
@pytest.mark.parametrize("framework", ["pytest", pytest.param("unittest", marks=pytest.mark.soak)])
async def test_files_lie_beside_the_tests(bubblewrap: BackendName, framework: Literal["pytest", "unittest"]) -> None:
    code = """
import unittest
from solution import *
from checks import *
class TestIt(unittest.TestCase):
    def test(self):
        with open("data/words.txt") as file: same(count(file.read()), 2)
"""
    files = {"checks.py": "def same(a, b): assert a == b", "data/words.txt": b"a b"}
    right = "def count(text): return len(text.split())"
    shadows = "def count(text): return 0\ndef same(a, b): pass"
    async with open_pool(backend=bubblewrap, size=2) as pool:
        for source, passes in ((right, True), (shadows, False)):
            verdict = await grade(source, [TestFile(code=code, framework=framework, files=files)], pool=pool)
            assert verdict.passed is passes, verdict.results
        reads = "def count(text):\n    with open('data/words.txt') as file: return len(file.read().split())"
        looks = "import os\ndef count(text): return 2 if os.path.exists('checks.py') else 0"
        tests = [
            TestFile(code=code, framework=framework, files=files, shared=shared) for shared in ((), ("data/words.txt",))
        ]
        for source, passed in ((reads, [False, True]), (looks, [False, False])):
            assert [result.passed for result in (await grade(source, tests, pool=pool)).results] == passed
