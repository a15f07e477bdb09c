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
"""

SETS = {
    "a number": "solution.n = 5\nadd(2)\nassert solution.n == 7 and solution.read()[0] == 7",
    "text": "solution.level = 'mid'\nset_level('high')\nassert solution.level == 'high'",
    "nothing": "solution.current = None\nkept = keep()\nassert solution.current is kept and solution.current.x == 3",
    "a list": "mine = [7]\nsolution.log = mine\nassert solution.log is mine\nrenew()\nassert solution.log == [7, 1] and mine == [7]",
    "a function": "fake = lambda: 'fake'\nsolution.helper = fake\nassert calls() == 'fake' and solution.helper is fake",
    "a name that is new": "solution.extra = 4\nassert solution.extra == 4",
}
"""By what a test sets in the module: the rest of the test."""
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
    "a fixture for each test": "import pytest\n@pytest.fixture(autouse=True)\ndef fresh(): solution.n = 0\n"
    "def test_one():\n add(1)\n assert solution.n == 1\ndef test_two():\n add(2)\n assert solution.n == 2",
}
WRONG = {
    "changes what it should leave": "solution.n = 50\nadd(1)\nassert solution.n == 50",
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
        name: "def test_it():\n" + "".join(f" {line}\n" for line in code.splitlines()) for name, code in SETS.items()
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
