"""What a test has of the program's module is what it is now, whoever has changed it: programs and tests that agree with plain Python."""

from __future__ import annotations

from textwrap import dedent

_COUNTER = """
    n = 0
    log = []
    level = "low"
    current = None
    class C:
        def __init__(self, x): self.x = x
        def get(self): return self.x
        def twice(self): return 2 * self.get()
    def add(k):
        global n
        n += k
    def set_level(value):
        global level
        level = value
    def keep():
        global current
        current = C(3)
        return current
    def renew():
        global log
        log = log + [1]
    def read(): return n, level, log, current
    def helper(): return "own"
    DATA = list(range(3000))
    ORIGIN = (0, 0)
    def twice(x): return 2 * x
    def calls(): return helper()
    def swap():
        global helper
        helper = lambda: "swapped"
        return 1
    def make():
        global made, Made
        made = 5
        class Made:
            def __init__(self): self.x = 1
        return 1
    def lose():
        global level
        del level
        return 1
    def lose_function():
        global twice
        del twice
        return 1
    def spoil():
        global C
        C = None
        return 1
    CONFIG = {"mode": "a"}
    def put(key, value):
        CONFIG[key] = value
        return value
    class Settings:
        timeout = 5
        @classmethod
        def get(cls): return cls.timeout
"""

SETS = {
    "a number": "solution.n = 5\nadd(2)\nassert solution.n == 7 and solution.read()[0] == 7",
    "text": "solution.level = 'mid'\nset_level('high')\nassert solution.level == 'high'",
    "nothing": "solution.current = None\nkept = keep()\nassert solution.current is kept and solution.current.x == 3",
    "a list": "mine = [7]\nsolution.log = mine\nassert solution.log is mine\nrenew()\nassert solution.log == [7, 1] and mine == [7]",
    "a function": "fake = lambda: 'fake'\nsolution.helper = fake\nassert calls() == 'fake' and solution.helper is fake",
    "a name that is new": "solution.extra = 4\nassert solution.extra == 4",
    "in its names": "vars(solution)['n'] = 5\nadd(2)\nassert solution.n == 7",
}
"""By what a test sets in the module: the rest of the test."""
_PATCH = "from unittest.mock import patch\n"
HELD = {
    "a function that the test has imported": "solution.helper = lambda: 'fake'\nassert calls() == 'fake' and helper() == 'own'",
    "a function that the test holds": "held = solution.helper\nsolution.helper = lambda: 'fake'\nassert held() == 'own' and solution.helper() == 'fake'",
    "a function that the test deletes": "held = solution.helper\ndel solution.helper\nassert held() == 'own'",
    "a function that a patch calls": f"{_PATCH}with patch('solution.helper', wraps=solution.helper) as spy: assert calls() == 'own'\nspy.assert_called_once_with()",
    "a function that the program replaces": "held = solution.helper\nswap()\nassert held() == 'own' and solution.helper() == calls() == 'swapped'",
    "a class that the program replaces": "held = solution.C\nspoil()\nassert solution.C is None and held(3).x == 3",
    "a method that a patch calls": f"{_PATCH}one = solution.C(3)\nwith patch.object(one, 'get', wraps=one.get) as spy: assert one.twice() == 6\n"
    "spy.assert_called_once_with()\nassert one.twice() == 6",
    "a method that the test holds": f"{_PATCH}one = solution.C(3)\nget = one.get\nwith patch.object(one, 'get', return_value=5): assert (one.get(), get()) == (5, 3)",
    "a method of a class that is patched": f"{_PATCH}one = solution.C(3)\nget = one.get\nwith patch.object(solution.C, 'get', return_value=5): assert (one.get(), get()) == (5, 3)",
    "a function under two patches": f"{_PATCH}with patch('solution.helper', return_value=1): assert calls() == 1\nswap()\n"
    "with patch('solution.helper', return_value=2): assert calls() == 2\nassert calls() == 'swapped'",
}
"""What a test holds of the program is what it was, whoever puts something else in its place."""
MADE = {
    "a number and a class": "assert not hasattr(solution, 'made')\nmake()\nassert solution.made == 5 and solution.Made().x == 1 and 'made' in dir(solution)",
    "nothing any more": "lose()\nassert not hasattr(solution, 'level') and 'level' not in vars(solution)",
    "no function any more": "lose_function()\nassert not hasattr(solution, 'twice')",
    "its own names": "names = [name for name, value in vars(solution).items() if callable(value)]\nassert 'helper' in names and 'n' not in names",
    "names in a dict": "assert {**vars(solution)}['n'] == 0 and len(vars(solution)) > 20",
    "the names of a class": "assert 'get' in vars(Settings) and vars(Settings)['timeout'] == 5 and 'put' not in Settings.__dict__ and 'get' in dir(Settings)",
}
"""What the program makes and deletes is seen, and so is what it has."""
RESTORED = {
    "monkeypatch": "def test_it(monkeypatch):\n with monkeypatch.context() as m:\n  m.setattr(solution, 'n', 5)\n  add(2)\n  assert solution.n == 7\n assert solution.n == 0",
    "monkeypatch of a function": "def test_it(monkeypatch):\n with monkeypatch.context() as m:\n  m.setattr(solution, 'helper', lambda: 'fake')\n"
    "  assert calls() == 'fake'\n assert calls() == 'own' and solution.helper() == 'own'",
    "patch": "from unittest.mock import patch\ndef test_it():\n with patch('solution.helper') as fake:\n  fake.return_value = 'fake'\n"
    "  assert calls() == 'fake'\n  solution.helper.assert_called_once_with()\n assert calls() == 'own' and solution.helper() == 'own'",
    "patch.object": "from unittest.mock import patch\ndef test_it():\n with patch.object(solution, 'level', 'mid'):\n  assert solution.level == 'mid'\n  set_level('x')\n  assert solution.level == 'x'\n assert solution.level == 'low'",
    "nested patches": "from unittest.mock import patch\ndef test_it():\n with patch('solution.helper', return_value=7):\n"
    "  with patch('solution.helper', return_value=8): assert calls() == 8\n  assert calls() == 7\n assert calls() == 'own'",
    "a name that is deleted": "import pytest\ndef test_it(monkeypatch):\n with monkeypatch.context() as m:\n  m.delattr(solution, 'helper')\n"
    "  assert not hasattr(solution, 'helper')\n  with pytest.raises(NameError): calls()\n assert calls() == 'own' and solution.helper() == 'own'",
    "a name that is deleted for good": "def test_it():\n del solution.level\n assert not hasattr(solution, 'level')\n solution.level = 'new'\n assert solution.level == 'new'",
    "patch in setUp": "import unittest\nfrom unittest.mock import patch\nclass T(unittest.TestCase):\n"
    " def setUp(self):\n  p = patch('solution.helper', return_value=5)\n  p.start()\n  self.addCleanup(p.stop)\n"
    " def test_it(self):\n  with patch('solution.helper', return_value=6): self.assertEqual(calls(), 6)\n  self.assertEqual(calls(), 5)",
    "monkeypatch of a class": "import pytest\ndef test_it(monkeypatch):\n with monkeypatch.context() as m:\n  m.setattr(Settings, 'timeout', 9)\n"
    "  m.setattr(Settings, 'timeout', 10)\n  assert Settings.get() == 10\n assert Settings.get() == 5\n with monkeypatch.context() as m:\n"
    "  m.delattr(Settings, 'timeout')\n  with pytest.raises(AttributeError): Settings.get()\n assert Settings.get() == 5",
    "nested patches of a class": f"{_PATCH}def test_it():\n with patch.object(Settings, 'get', return_value=1):\n"
    "  with patch.object(Settings, 'get', return_value=2): assert Settings.get() == 2\n  assert Settings.get() == 1\n assert Settings.get() == 5",
    "patch.dict": f"{_PATCH}def test_it():\n with patch.dict(solution.CONFIG, {{'x': 1}}):\n  assert put('y', 2) == 2\n assert solution.CONFIG == {{'mode': 'a'}}",
    "patch.dict, cleared": f"{_PATCH}def test_it():\n with patch.dict(solution.CONFIG, {{}}, clear=True): assert put('y', 2) == 2\n assert solution.CONFIG == {{'mode': 'a'}}",
    "setUp and an import": "import unittest\nfrom unittest.mock import patch\nfrom solution import helper, calls\nclass T(unittest.TestCase):\n"
    " def setUp(self):\n  p = patch('solution.helper', return_value='fake')\n  p.start()\n  self.addCleanup(p.stop)\n"
    " def test_it(self): self.assertEqual((calls(), helper()), ('fake', 'own'))",
    "a fixture for each test": "import pytest\n@pytest.fixture(autouse=True)\ndef fresh(): solution.n = 0\n"
    "def test_one():\n add(1)\n assert solution.n == 1\ndef test_two():\n add(2)\n assert solution.n == 2",
}
WRONG = {
    "changes what it should leave": "solution.n = 50\nadd(1)\nassert solution.n == 50",
    "has a method that a fake of the test's hides": f"{_PATCH}one = solution.C(3)\nget = one.get\nwith patch.object(one, 'get', return_value=5): assert get() == 5",
    "is hidden by a fake of its own": "solution.helper = lambda: 'fake'\nassert helper() == 'fake'",
    "leaves names behind": "make()\nassert not hasattr(solution, 'made')",
    "has names that it should not": "assert not [name for name in vars(solution) if name == 'log']",
    "has no docstrings": "for name, value in vars(solution).items():\n    if callable(value): assert value.__doc__, name",
    "loses a function": "lose_function()\nassert hasattr(solution, 'twice')",
    "loses a class": "spoil()\nassert solution.C is not None",
    "has a method that it should not": "assert 'get' not in vars(Settings)",
    "leaves what it should change": "solution.level = 'x'\nread()\nassert solution.level == 'low'",
}
SHARED = {
    "a number": "add(1)\nadd(1)\nassert n == 2",
    "a number, in a function": "def total(): return n\nadd(1)\nassert total() == 1",
    "an object": "c = keep()\nassert current is c",
    "a list": "renew()\nassert log == [1]",
    "a long list in a loop": "for i in range(3000): assert twice(DATA[i]) == 2 * i",
    "a long list that the test changes": "DATA.append(5)\nassert DATA[-1] == 5",
    "a tuple": "assert ORIGIN is ORIGIN",
    "names in a class": "class T:\n cases = [twice(2), n]\n best: int = len(DATA)\nassert T.cases == [4, 0] and T.best == 3000",
    "globals": "assert twice(1) == 2 and n == 0 and 'twice' in globals() and globals().get('twice')(1) == 2 and globals()['n'] == 0",
}
"""Assertions in one namespace with the program."""
SHARED_WRONG = {"a number": "before = n\nadd(1)\nassert n == before"}


def files() -> dict[str, tuple[str, str, bool]]:
    """By what they show: a program, a test file, and whether the tests pass."""
    head = "import solution\nfrom solution import *\n"
    as_test = {
        name: "def test_it():\n" + "".join(f" {line}\n" for line in code.splitlines())
        for name, code in {**SETS, **HELD, **MADE}.items()
    }
    wrong = {
        name: "def test_it():\n" + "".join(f" {line}\n" for line in code.splitlines()) for name, code in WRONG.items()
    }
    source = dedent(_COUNTER)
    return {
        **{name: (source, head + code, True) for name, code in {**as_test, **RESTORED}.items()},
        **{name: (source, head + code, False) for name, code in wrong.items()},
    }


def assertions() -> dict[str, tuple[str, str, bool]]:
    """By what they show: a program, assertions that share its names, and whether they hold."""
    source = dedent(_COUNTER)
    return {
        **{name: (source, code, True) for name, code in SHARED.items()},
        **{f"{name}, wrong": (source, code, False) for name, code in SHARED_WRONG.items()},
    }
