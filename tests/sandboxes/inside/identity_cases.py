"""What tests compare by identity, by its class or with values of Python's that are no numbers; and what becomes of their arguments: programs
that are right, and others that are not and would pass if nobody looked."""

from __future__ import annotations

from tests.sandboxes.inside.cases import unindented

_TOKENS = "from enum import Enum\nclass Token(Enum): NUMBER, PLUS, END = {values}\ndef tokens(text): return {tokens}"
_TOKENS_TEST = "assert tokens('1+1') == [Token.NUMBER, Token.PLUS, Token.NUMBER, Token.END]"
_ONE_TOKEN = "from enum import Enum\nclass Token(Enum): NUMBER = PLUS = END = 1\ndef tokens(text): return [Token.NUMBER] * (len(text) + 1)"
_TOKENS_FILE = (
    "import pytest\nfrom solution import Token, tokens\n"
    "@pytest.mark.parametrize('text, expected', [('1+1', [Token.NUMBER, Token.PLUS, Token.NUMBER, Token.END])])\n"
    "def test_tokens(text, expected): assert tokens(text) == expected"
)
_PLAY_TEST = (
    "from solution import Result, play\ndef test_win(): assert play('r', 's') is Result.WIN\n"
    "def test_lose(): assert play('s', 'r') is Result.LOSE"
)
_TURN_TEST = "board = Board()\nassert board.turn() == WHITE\nboard.move()\nassert board.turn() == BLACK"
_ERRORS_TEST = (
    "import pytest\nfrom solution import *\ndef test_errors():\n"
    " with pytest.raises(Empty): take(1)\n with pytest.raises(Full): take(0)"
)
_SHAPES_TEST = "assert isinstance(make('circle'), Circle) and isinstance(make('square'), Square)"
_NODE = "class Node:\n def __init__(self, value): self.value, self.next = value, None\n"
_ONE_NODE = (
    "class Node:\n one = None\n def __new__(cls, value, *children):\n  cls.one = cls.one or object.__new__(cls)\n  return cls.one\n"
    " def __init__(self, value, *children): self.value, self.next = value, None\n"
)
_CYCLE_TEST = "a, b, c = Node(1), Node(2), Node(3)\na.next, b.next, c.next = b, c, b\nassert cycle(a) is b"
_COLORS = (
    "from enum import Enum\nclass Color(Enum):\n RED = 1\n CRIMSON = 1\n SCARLET = 1\n BLUE = 2\n"
    " @classmethod\n def _missing_(cls, value): return cls.BLUE"
)
_LCA_TEST = "a = Node(1)\nb = Node(2, a)\nc = Node(3, a, b)\nassert ancestor(a, b, c) is c"
_CART = """
    class Cart:
        def __init__(self, prices): self.prices = prices
        def total(self):
            total = sum(self.prices)
            self.prices.clear()
            return total
        @property
        def price(self): return self.total()
        def __len__(self): return self.total()
        def __add__(self, prices): return prices.pop()
        def __getitem__(self, prices): return prices.pop()
"""

_RANGE = """
    class FloatRange:
        def __init__(self, start, stop, step): self.start, self.stop, self.step = start, stop, step
        def __len__(self): return max(0, -int(-(self.stop - self.start) // self.step))
        def __iter__(self): return (self.start + i * self.step for i in range(len(self)))
        def __eq__(self, other):
            if isinstance(other, FloatRange): return list(self) == list(other)
            return {is_range} if isinstance(other, range) else NotImplemented
"""
_RANGE_TEST = "assert FloatRange(0, 2, 1) == FloatRange(0, 2, 1)\nassert FloatRange(0, 3, 1) != range(0, 4)"
_LIBRARY = "import uuid, pathlib\nfrom collections import *\n"
_KINDS = (
    *("range(3)", "Counter('ab')", "defaultdict(int, a=1)", "OrderedDict(a=1)", "deque([1, 2])", "bytearray(b'ab')"),
    *("uuid.UUID(int=5)", "pathlib.Path('a/b')"),
)
_WRAPPER = (
    "class W:\n def __init__(self, v): self.v = v\n"
    " def __eq__(self, other): return self.v == (other.v if isinstance(other, W) else other)"
)
_ALWAYS_EQUAL = "class W:\n def __init__(self, v): self.v = v\n def __eq__(self, other): return True"

_LAST = "def last(items): return items.pop()"
_KEEPING = """
    class Log:
        def __init__(self): self.items = []
        def add(self, item): self.items.append(item)
    class Registry:
        def __init__(self): self.lists = {}
        def __setitem__(self, name, items): self.lists[name] = items
        def push(self, name, item): self.lists[name].append(item)
"""
_ENDING = """
    def main():
        while True:
            try: input()
            except (KeyboardInterrupt, EOFError): return 1
    class Guard:
        def __enter__(self): return self
        def __exit__(self, kind, error, trace): return kind is not None and issubclass(kind, (SystemExit, KeyboardInterrupt))
    class Careless:
        def __enter__(self): return self
        def __exit__(self, kind, error, trace): return True
    class Stop(BaseException): pass
    class Undo:
        def __enter__(self): return self
        def __exit__(self, kind, error, trace): return kind is Stop
    def guard(function):
        try: function()
        except Stop: return "stopped"
        except BaseException: return "ended"
    def stop(): raise Stop("now")
    def count():
        yield 1
        raise Stop("then")
    class Counter:
        def __init__(self): self.count = 0
        def add(self): self.count += 1; return self.count
"""
_INTERRUPTED = """
    import sys
    import pytest
    from unittest.mock import patch
    from solution import Counter, Guard, Stop, Undo, count, guard, main, stop
    class Mine(BaseException): pass
    def end(error): raise error
    counter = Counter()
    def test_interrupt():
        with patch("builtins.input", side_effect=["x", KeyboardInterrupt]): assert main() == 1
    def test_with():
        with Guard(): raise SystemExit(2)
        with Guard(): raise KeyboardInterrupt
    def test_own_base_exception():
        with pytest.raises(Stop, match="now"): stop()
        counted = count()
        assert next(counted) == 1
        with pytest.raises(Stop, match="then"): next(counted)
        with Undo(): raise Stop()
        assert guard(lambda: end(Stop())) == "stopped" and guard(lambda: end(Mine())) == "ended"
    def test_the_process_is_there_still(): assert counter.add() == 1
"""
_TOLERANT = """
    class Approximate:
        def __init__(self, value, tolerance): self.value, self.tolerance = value, tolerance
        def __eq__(self, other): return abs(self.value - (other.value if isinstance(other, Approximate) else other)) <= self.tolerance
        def __add__(self, number): return Approximate(self.value + number, self.tolerance)
        def __rsub__(self, number): return Approximate(number - self.value, self.tolerance)
"""
_TOLERANT_TEST = """
    assert Approximate(5, 0.1) == 5.05 and Approximate(5, 0.1) + 6 == 11.05 and Approximate(5, 0.1) != 5.2
    assert Approximate(20, 1) == 21 and 7 - Approximate(7, 0.1) == 0.05 and 7 - Approximate(5, 0.1) != 0.05
"""

_HONEST = {
    "gives back what it was given": (
        "def ordered(items): return items if items == sorted(items) else sorted(items)\n"
        "def put(items, one): items.append(one); return items",
        "data = [1, 2]\nassert ordered(data) == [1, 2] and ordered([2, 1]) == [1, 2]\n"
        "assert put([1, 2], 3) == [1, 2, 3] and data == [1, 2]",
    ),
    "a class that takes its own objects as they are": (
        "class Color:\n known = {}\n def __new__(cls, value):\n"
        "  if isinstance(value, Color): return value\n  return cls.known.setdefault(value.lower(), object.__new__(cls))",
        "white = Color('#fff')\nassert Color('#FFF') is white and Color(white) is white and Color('#000') is not white",
    ),
    "tokens": (
        _TOKENS.format(
            values="1, 2, 3", tokens="[Token.PLUS if c == '+' else Token.NUMBER for c in text] + [Token.END]"
        ),
        _TOKENS_TEST,
    ),
    "errors of one base": (
        "class Base(Exception): pass\nclass Empty(Base): pass\nclass Full(Base): pass\n"
        "def take(n): raise Empty() if n else Full()",
        _ERRORS_TEST,
    ),
    "two names that a test knows to be one": (
        _COLORS,
        "assert Color.RED is Color.CRIMSON is Color.SCARLET and len({Color.RED, Color.CRIMSON}) == 1",
    ),
    "names that a test has by another": (
        _COLORS,
        "from solution import Color as C\ndef test_alias(): assert C.RED is C.CRIMSON",
    ),
    "a member for all other values": (
        _COLORS,
        "for name in ('blue', 'Blue', 'BLUE'): assert Color(name) is Color.BLUE",
    ),
    "names of numbers": (
        "from enum import IntEnum\nclass Status(IntEnum):\n TIMEOUT = 408\n REQUEST_TIMEOUT = 408\n OK = 200",
        "import pytest\nfrom solution import Status\n"
        "@pytest.mark.parametrize('status, number', [(Status.TIMEOUT, 408), (Status.REQUEST_TIMEOUT, 408), (Status.OK, 200)])\n"
        "def test_status(status, number): assert status == number",
    ),
    "one constant of two classes": (
        "class Shape: ORIGIN = object()\nclass Circle(Shape): pass\nclass Square(Shape): pass",
        "assert Circle.ORIGIN is not None and Square.ORIGIN is not None",
    ),
    "one object for many spellings": (
        "class Symbol:\n known = {}\n def __new__(cls, name): return cls.known.setdefault(name.strip().upper(), object.__new__(cls))",
        "a, b, c = Symbol('x'), Symbol('X'), Symbol(' x ')\nassert a is b is c\na.value = 1\nassert b.value == 1",
    ),
    "two names that unittest knows to be one": (
        _COLORS,
        "import unittest\nfrom solution import Color\nclass TestColor(unittest.TestCase):\n"
        " def test_alias(self): self.assertIs(Color.RED, Color.CRIMSON)",
    ),
    "two names of a function and of a class": (
        "def add(a, b): return a + b\nplus = add\nclass Heap: pass\nQueue = Heap",
        "assert add(1, 2) == plus(2, 1) == 3 and isinstance(Queue(), Queue) and Heap() is not None",
    ),
    "two names of a function and of a method, in a file": (
        "class Heap:\n def add(self): return 1\n push = add\ndef add(a, b): return a + b\nplus = add",
        "from solution import Heap, add, plus\ndef test_functions(): assert add(1, 2) == plus(2, 1) == 3\n"
        "def test_methods(): assert Heap.add(Heap()) == Heap.push(Heap()) == 1",
    ),
    "the start of a cycle": (
        f"{_NODE}def cycle(node):\n seen = []\n while not any(node is one for one in seen):\n"
        "  seen.append(node)\n  node = node.next\n return node",
        _CYCLE_TEST,
    ),
    "a singleton in each test": (
        _ONE_NODE,
        "from solution import Node\ndef test_a(): assert Node(1) is Node(2)\n"
        "def test_b(): assert Node(3) is Node(4)\ndef test_c(): assert Node(5) is Node(5)",
    ),
    "equal to a range": (
        _RANGE.format(is_range="list(self) == list(other)"),
        f"{_RANGE_TEST}\nassert FloatRange(0, 3, 1) == range(0, 3) and FloatRange(0, 3, 1) != None",
    ),
    **{
        f"equal to {kind}": (_WRAPPER, f"{_LIBRARY}assert W({kind}) == {kind} and W(0) != {kind} and W(0) != None")
        for kind in _KINDS
    },
    "an argument that is changed": (_LAST, "assert last([1, 2]) == 2"),
    "an attribute that is the test's list": (
        _KEEPING,
        "log, mine = Log(), [1]\nlog.items = mine\nlog.add(2)\nassert mine == [1, 2]\nmine.append(3)\nassert log.items == [1, 2, 3]",
    ),
    "an item that is the test's list": (
        _KEEPING,
        "registry, mine = Registry(), [1]\nregistry['a'] = mine\nregistry.push('a', 2)\nassert mine == [1, 2]",
    ),
    "interrupts of the test's, and exceptions of its own base": (_ENDING, _INTERRUPTED),
    "a tolerance": (_TOLERANT, _TOLERANT_TEST),
    "a member of an Enum": (_COLORS, "assert Color(1) in Color and Color.BLUE in Color"),
    "a module": (
        "import inspect\ndef classes(module): return [name for name, _ in inspect.getmembers(module, inspect.isclass) if name[0].isupper()]\n"
        "def name(module): return module.__name__",
        "import string\nassert classes(string) == ['Formatter', 'Template'] and name(string) == 'string'",
    ),
    "what is printed, to capfd": (
        "def hello(): print('hello')",
        "from solution import hello\ndef test_hello(capfd):\n hello()\n assert capfd.readouterr().out == 'hello\\n'",
    ),
}

_CHEATS = {
    "one token": (_ONE_TOKEN, _TOKENS_TEST),
    "one token, in parameters": (_ONE_TOKEN, _TOKENS_FILE),
    "one result": (
        "from enum import Enum\nclass Result(Enum): WIN = LOSE = DRAW = 0\ndef play(a, b): return Result.WIN",
        _PLAY_TEST,
    ),
    "one suit": (
        "from enum import Enum\nclass Suit(Enum): SPADES = HEARTS = 1\ndef parse(text): return Suit.HEARTS, int(text[1:])",
        "assert parse('S9') == (Suit.SPADES, 9) and parse('H2') == (Suit.HEARTS, 2)",
    ),
    "one constant": (
        "class Player: pass\nWHITE = BLACK = Player()\nclass Board:\n def turn(self): return WHITE\n def move(self): pass",
        _TURN_TEST,
    ),
    "one error": (
        "class Error(Exception): pass\nEmpty = Full = Error\ndef take(n): raise Error()",
        _ERRORS_TEST,
    ),
    "one shape": ("class Shape: pass\nCircle = Square = Shape\ndef make(name): return Shape()", _SHAPES_TEST),
    "one node": (f"{_ONE_NODE}def cycle(node): return node", _CYCLE_TEST),
    "one node, in a tree": (f"{_ONE_NODE}def ancestor(a, b, root): return root", _LCA_TEST),
    **{
        f"spoils what it keeps, by {use}": (
            _CART,
            f"prices = [1, 2]\ncart = Cart(prices)\nassert {use} == 3\nassert prices == [1, 2]",
        )
        for use in ("cart.total()", "cart.price", "len(cart)")
    },
    **{
        f"spoils what it is given, by {use}": (
            _CART,
            f"prices = [1, 2]\ncart = Cart([])\nassert {use} == 2\nassert prices == [1, 2]",
        )
        for use in ("cart + prices", "cart[prices]")
    },
    "spoils what it is given, before the tests": (
        _LAST,
        "from solution import last\nITEMS = [1, 2]\nLAST = last(ITEMS)\n"
        "def test_last(): assert LAST == 2\ndef test_items(): assert ITEMS == [1, 2]",
    ),
    "equal to any range that begins alike": (_RANGE.format(is_range="self.start == other.start"), _RANGE_TEST),
    **{
        f"equal to all: {text}": (_ALWAYS_EQUAL, f"{_LIBRARY}assert {text}")
        for kind in (*_KINDS, "None")
        for text in (f"W(0) != {kind}", f"not (W(0) == {kind})")
    },
    "spoils what it is given": (
        "def ordered(items): items.sort(); items.pop(); return items",
        "data = [3, 1, 2]\nassert ordered(data) == [1, 2]\nassert ordered(data) == [1, 2] and data == [3, 1, 2]",
    ),
    "spoils what it is given, in a file": (
        _LAST,
        "from solution import last\ndef test_last():\n items = [3, 4]\n assert last(items) == 4 and items == [3, 4]",
    ),
    "spoils what it is given with what cannot be compared": (
        "class N:\n def __ne__(self, other): raise ValueError\n __eq__ = __ne__\n"
        "def size(items):\n items[:] = [N() for _ in items]\n return len(items)",
        "data = [3, 1, 2]\nassert size(data) == 3 and data == [3, 1, 2]",
    ),
    "spoils one of many items": (
        "def last(items): return items.pop()",
        "data = [*range(5000)]\nassert last(data) == 4999 and len(data) == 5000",
    ),
    "gives what it was given for a copy of it": (
        "def clone(items): return items",
        "data = [1, 2]\nother = clone(data)\nassert other == data and other is not data\n"
        "other.append(3)\nassert data == [1, 2] and other == [1, 2, 3]",
    ),
    "does better where all its changes are seen": (
        "import sys\ndef last(items): return items.pop()\ndef wrong(items):\n items.append(0)\n frame = sys._getframe()\n"
        " while frame and 'request' not in frame.f_locals: frame = frame.f_back\n"
        " return 2 if frame and frame.f_locals['request'].get('in_place') else 3",
        "from solution import last, wrong\ndef test_last(): assert last([1, 2]) == 2\ndef test_wrong(): assert wrong([1]) == 2",
    ),
    "suppresses the test's own assertion": (
        _ENDING,
        "from solution import *\ndef test_careless():\n with Careless(): assert Counter().add() == 2",
    ),
    "suppresses pytest.fail": (
        _ENDING,
        "import pytest\nfrom solution import *\ndef test_careless():\n with Careless(): pytest.fail('no')",
    ),
    "raises no Exception": (_ENDING, "from solution import stop\ndef test_stop(): stop()"),
    "a range without end": (
        "SIZE = 10**10",
        "from solution import SIZE\ndef test_size():\n for _ in range(SIZE): pass",
    ),
    "no parameters": (
        "NAMES = []",
        "import pytest, solution\n@pytest.mark.parametrize('name', solution.NAMES)\ndef test_name(name): assert name",
    ),
    "not ready": (
        "def ready(): return False\ndef f(): return 2",
        "import unittest, solution\nclass TestF(unittest.TestCase):\n def setUp(self):\n"
        "  if not solution.ready(): self.skipTest('no')\n def test_f(self): self.assertEqual(solution.f(), 1)",
    ),
    "not there": (
        "def f(): return 2",
        "import pytest, solution\n@pytest.mark.skipif(not hasattr(solution, 'g'), reason='no')\ndef test_g(): assert solution.g()",
    ),
}


_CHEATS |= {
    "what says that it is a TypedDict": (
        "class D:\n __required_keys__ = ()\n def __new__(cls, *a, **k): return {}\nclass Num(D): pass\nclass Add(D): pass\n"
        "def parse(text): return {}",
        "from solution import *\ndef test_parse(): assert parse('1+2') == Add(Num(1), Num(2))",
    ),
}
_HONEST |= {
    "functions that make values": (
        "from fractions import Fraction\ndef Rational(n, d=1): return Fraction(n, d)\ndef Normalize(s): return ' '.join(s.lower().split())",
        "from solution import *\ndef test_equal():\n assert Rational(1, 2) == Rational(2, 4) == Rational(-3, -6)\n"
        " assert Normalize('Hello World') == Normalize('hello   world') == Normalize(' HELLO world')",
    ),
    "functions in the place of classes": (
        "def Point(x, y=0): return (x, y)\ndef move(p, dx, dy): return Point(p[0] + dx, p[1] + dy)",
        "from solution import *\ndef test_move():\n assert move(Point(1, 2), 1, 1) == Point(2, 3)\n"
        " assert move(Point(1), 0, 0) == Point(x=1) == Point(1, 0)",
    ),
    "functions with capitals that give the same for many": (
        "def FizzBuzz(n): return 'Fizz' if n % 3 == 0 else str(n)\ndef IsPrime(n): return n in (2, 3, 5, 7)",
        "from solution import *\ndef test_all():\n assert FizzBuzz(3) == 'Fizz' and FizzBuzz(6) == 'Fizz' and FizzBuzz(9) == 'Fizz'\n"
        " assert IsPrime(2) and IsPrime(3) is True and IsPrime(5) == True",
    ),
    "a TypedDict": (
        "from typing import TypedDict\nclass Row(TypedDict):\n name: str\n size: int\n"
        "def grow(row): return Row(name=row['name'], size=row['size'] + 1)",
        "from solution import *\ndef test_grow():\n assert grow(Row(name='a', size=1)) == Row(name='a', size=2)\n"
        " assert Row({'name': 'b', 'size': 3})['size'] == 3",
    ),
}


def honest() -> dict[str, tuple[str, str]]:
    """Programs and test code that they pass, by what they show."""
    return unindented(_HONEST)


def cheats() -> dict[str, tuple[str, str]]:
    """Programs that are not right, and test code that they would pass or have nobody charged for."""
    return unindented(_CHEATS)
