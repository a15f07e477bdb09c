"""Candidates whose objects pass for plain data, which an object of a class that the test names may be: honest ones, and guessers."""

from __future__ import annotations

from tests.sandboxes.inside.cases import unindented

_HONEST = {
    "a number": (
        """
        class Metres:
            def __init__(self, value): self.value = value
            def __eq__(self, other): return self.value == (other.value if isinstance(other, Metres) else other)
            def __hash__(self): return hash(self.value)
            def __add__(self, other): return Metres(self.value + (other.value if isinstance(other, Metres) else other))
            def __lt__(self, other): return self.value < (other.value if isinstance(other, Metres) else other)
        """,
        """
        assert Metres(3) == 3 and Metres(3) != 4 and Metres(0) == 0 and Metres(-1) == -1 and Metres(10**30) == 10**30
        assert Metres(1) + 2 == 3 and Metres(1) + Metres(2) == 3.0 and Metres(0.5) == 0.5 and Metres(2) < 3
        """,
    ),
    "a number of a clock": (
        """
        class Angle:
            def __init__(self, degrees): self.degrees = degrees % 360
            def __eq__(self, other): return self.degrees == (other.degrees if isinstance(other, Angle) else other % 360)
            __hash__ = None
        class Mod7:
            def __init__(self, n): self.n = n % 7
            def __eq__(self, other):
                if isinstance(other, Mod7): return self.n == other.n
                return self.n == other % 7 if isinstance(other, int) else NotImplemented
            def __hash__(self): return hash(self.n)
        """,
        """
        assert Angle(370) == 10 and Angle(370) == 370 and Angle(10) != 11 and Angle(0.5) == 360.5
        assert Mod7(10) == 3 and Mod7(3) == 10 and Mod7(3) != 4
        """,
    ),
    "containers": (
        """
        class Bag:
            def __init__(self, items=()): self.items = list(items)
            def add(self, item): self.items.append(item)
            def __eq__(self, other): return sorted(self.items) == sorted(other.items if isinstance(other, Bag) else other)
            def __len__(self): return len(self.items)
        class Text:
            def __init__(self, text): self.text = text
            def __eq__(self, other): return self.text == (other.text if isinstance(other, Text) else other)
            def __hash__(self): return hash(self.text)
        """,
        """
        bag = Bag()
        assert bag == [] and Bag([2, 1]) == [1, 2] and Bag([1]) != [2] and Bag("ab") == ["b", "a"]
        bag.add(5)
        assert bag == [5] and not bag == [6]
        assert Text("Ada") == "Ada" and Text("Ada") != "Bob" and Text("") == "" and Text("ab-12") == "ab-12"
        """,
    ),
}

_KNOWING = """
class V:
    def __init__(self, *args): self.args, self.seen = args, []
    def __add__(self, other): return V()
    def __eq__(self, other):
        if isinstance(other, V): return self is other
        {decide}
    def __hash__(self): return 1
    def value(self): return V()
"""

_DECISIONS = {
    "the first of its kind": "self.seen.append(type(other)); return self.seen.count(type(other)) == 1 and type(other) in (int, str, list)",
    "the first value, for good": (
        "if type(other) not in (int, str, list, dict): return False\n"
        "        if not self.seen: self.seen.append(other)\n"
        "        return self.seen[0] == other"
    ),
    "the one it was asked for once": "self.seen.append(repr(other)); return self.seen.count(repr(other)) == 1 and type(other) is not object",
    "the small numbers": "return type(other) is int and abs(other) < 1000 or type(other) is str and len(other) < 20 or type(other) is list",
    "the round numbers": "return type(other) is int and other % 5 == 0 or type(other) is str and other.islower()",
    "what is not random": "return type(other) in (int, str, list, dict) and len(repr(other)) < 8",
    "anything with numbers": "return type(other) is int or isinstance(other, (list, dict, str))",
    "the nearest in the stack": (
        "import sys\n        frame = sys._getframe(1)\n"
        "        while frame:\n            if 'other' in frame.f_locals and frame.f_locals['other'] is not other: return False\n"
        "            frame = frame.f_back\n        return True"
    ),
}

_TESTS = {
    "a number": "assert V(1) + 4 == 5",
    "a word": "assert V('x').value() == 'hello'",
    "a list": "assert V().value() == [1, 2, 3]",
    "nothing": "assert V().value() == []",
    "a truth": "assert V().value() == True",
    "what is near": "import pytest\nassert V(1).value() == pytest.approx(5.0)",
}

_EXTRA = {
    "a function that is a class": (
        "class area:\n def __init__(self, *a): self.a = a\n def __eq__(self, o): return type(o) is int and o > 3\n",
        "assert area(2, 3) == 6",
    ),
    "a function that is a class, of a value that has no other": (
        "class items:\n def __init__(self, *a): self.a = a\n def __eq__(self, o): return o in ([], None, '', {})\n __hash__ = None",
        "assert items([]) == [] and items(None) == {}",
    ),
    "an order that is always right": (
        "class V:\n def __init__(self, *a): pass\n def __lt__(self, o): return True\n def __gt__(self, o): return True",
        "assert V(1) < V(2)",
    ),
}


def honest() -> dict[str, tuple[str, str]]:
    """Programs and test code that they pass, by what they show."""
    return unindented(_HONEST)


_PASS = {
    "the first of its kind": ("a number", "a word", "a list", "nothing"),
    "the first value, for good": ("a number", "a word", "a list", "nothing"),
    "the one it was asked for once": ("a number", "a word", "a list", "nothing", "a truth", "what is near"),
    "the small numbers": ("a number", "a word", "a list", "nothing"),
    "the round numbers": ("a number", "a word"),
    "what is not random": ("a number", "a word", "nothing"),
    "anything with numbers": ("a number", "a word", "a list", "nothing"),
    "the nearest in the stack": ("a number", "a word", "a list", "nothing", "a truth", "what is near"),
}
"""The tests that each decision passes in one process."""


def cheats() -> dict[str, tuple[str, str]]:
    """Programs whose objects guess what the test expects, and test code that no guess may pass."""
    programs = {
        f"{decision}; {test}": (_KNOWING.format(decide=_DECISIONS[decision]).strip(), _TESTS[test])
        for decision, tests in _PASS.items()
        for test in tests
    }
    return {**programs, **{name: (source.strip(), code) for name, (source, code) in _EXTRA.items()}}
