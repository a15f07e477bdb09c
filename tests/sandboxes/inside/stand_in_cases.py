"""Programs with test files, and what becomes of them: honest ones that pass as they do in one process, and ones that pass for nothing."""

from __future__ import annotations

from tests.sandboxes.inside.cases import unindented

_CLASS = "class P:\n def __init__(self, *a): pass\n def push(self, x): pass\n"
_ALL_EQUAL = " def __eq__(self, o): return isinstance(o, P)\n __hash__ = None\n"
_FORGE = "import sys\nCandidate = sys.modules['agentrl.sandboxes.inside.candidate'].Candidate\n"
_STACK = """
class Stack:
    def __init__(self, size=None): self.items, self.size = [], size
    def push(self, x): self.items.append(x)
    def __eq__(self, other): return isinstance(other, Stack) and self.items == other.items
"""

_STATES = """
from enum import Enum
class State(Enum):
    IDLE = 1
    RUN = 2
class V:
    def __init__(self, x): self.x = x
    def __eq__(self, other): return isinstance(other, V) and self.x == other.x
    def __hash__(self): return hash(self.x)
V.ZERO = V(0)
class Tree:
    def __init__(self): self.leaves, self.root = [V(1), V(2)], V(5)
def step(state, event): return {(State.IDLE, "go"): State.RUN}.get((state, event), state)
def last(values): return values[-1]
def root(tree): return tree.root
"""
_VECTOR = """
class Vec:
    def __init__(self, x=0, y=0): self.x, self.y, self.joker = x, y, False
    def __eq__(self, o): return isinstance(o, Vec) and (self.joker or o.joker or (self.x, self.y) == (o.x, o.y))
    __hash__ = None
    def plus(self, other): return middle()
    __add__ = __sub__ = plus
def middle(*a):
    made = Vec()
    made.joker = True
    return made
"""

_HONEST = {
    "abstract classes that say what is one": (
        """
        from abc import ABC, abstractmethod
        from typing import Protocol, runtime_checkable
        @runtime_checkable
        class Drawable(Protocol):
            def draw(self) -> str: ...
        class Shape(ABC):
            @abstractmethod
            def area(self): ...
            @classmethod
            def __subclasshook__(cls, other): return True if hasattr(other, "surface") else NotImplemented
        class Square(Shape):
            def __init__(self, side): self.side = side
            def area(self): return self.side ** 2
            def draw(self): return "[]"
        class Lake:
            def surface(self): return 9
        class Field: pass
        Shape.register(Field)
        class Plain: pass
        """,
        """
        import pytest
        from solution import Drawable, Field, Lake, Plain, Shape, Square
        def test_instances():
            assert isinstance(Square(2), Shape) and isinstance(Lake(), Shape) and isinstance(Field(), Shape)
            assert not isinstance(Plain(), Shape) and not isinstance(5, Shape)
            assert isinstance(Square(2), Drawable) and not isinstance(Lake(), Drawable)
        def test_subclasses():
            assert issubclass(Square, Shape) and issubclass(Lake, Shape) and not issubclass(Plain, Shape)
            with pytest.raises(TypeError): Shape()
        """,
    ),
    "what Python itself makes": (
        """
        class C:
            @property
            def x(self): return 1
        def doubled(xs): return map(lambda x: 2 * x, xs)
        def counted(n): yield from range(n)
        """,
        """
        import types
        from solution import C, counted, doubled
        def test():
            assert isinstance(C.x, property) and isinstance(doubled([1]), map) and list(doubled([1])) == [2]
            assert isinstance(counted(2), types.GeneratorType) and not isinstance(counted(2), map)
        """,
    ),
    "what a program says of itself": (
        "__version__ = '1.2'\n__author__ = 'Ada'\n__all__ = ['f']\ndef f(): return __version__",
        """
        import solution
        from solution import __version__
        def test(): assert __version__ == "1.2" == solution.f() and solution.__author__ == "Ada"
        """,
    ),
    "exceptions within others": (
        """
        class Bad(Exception): pass
        def within():
            try: {}["k"]
            except KeyError: raise Bad("within")
        def instead():
            try: {}["k"]
            except KeyError: raise Bad("instead") from None
        def because():
            try: {}["k"]
            except KeyError as error: raise ValueError("because") from error
        """,
        """
        import pytest
        from solution import Bad, because, instead, within
        def test():
            with pytest.raises(Bad) as found: within()
            assert isinstance(found.value.__context__, KeyError) and found.value.__context__.args == ("k",)
            assert found.value.__cause__ is None and not found.value.__suppress_context__
            with pytest.raises(Bad) as found: instead()
            assert found.value.__cause__ is None and found.value.__suppress_context__
            with pytest.raises(ValueError) as found: because()
            assert isinstance(found.value.__cause__, KeyError) and found.value.__suppress_context__
        """,
    ),
    "an argument that the test changes later": (
        "class P:\n def __init__(self, x): self.n = len(x)\n def __eq__(self, o): return isinstance(o, P) and self.n == o.n",
        """
        from solution import P
        def test():
            x = [1]
            assert P(x) == P([2]) and P(x) != P([])
            x.append(x)
        """,
    ),
    "what a function gives is there already": (
        _STATES,
        """
        from solution import State, Tree, V, last, root, step
        def test_constants():
            assert step(State.IDLE, "go") == State.RUN
            assert step(State.IDLE, "stop") == State.IDLE
            assert step(State.RUN, "stop") == State.RUN
            assert last([State.IDLE, State.RUN]) == State.RUN
            assert last([V(1), V.ZERO]) == V.ZERO == V(0)
        def test_attributes():
            tree = Tree()
            assert last(tree.leaves) == tree.leaves[1]
            found = tree.root
            assert root(tree) == found == V(5)
        """,
    ),
    "its names are those that tests have": (
        "class TestRunner:\n def __init__(self, x): self.x = x\ndef test_prime(n): return n == 7\ndef dispatch(x): return x + 1",
        """
        from solution import TestRunner, dispatch, test_prime
        def test_all(): assert TestRunner(3).x == 3 and test_prime(7) and dispatch(1) == 2
        """,
    ),
    "interfaces of the library": (
        """
        from abc import ABC, abstractmethod
        from collections.abc import MutableMapping, Sequence
        class Shape(ABC):
            @abstractmethod
            def area(self): ...
        class Square(Shape):
            def area(self): return 4
        class Few(Sequence):
            def __len__(self): return 2
            def __getitem__(self, i): return [5, 6][i]
        class Folded(MutableMapping):
            def __init__(self): self.d = {}
            def __getitem__(self, k): return self.d[k.lower()]
            def __setitem__(self, k, v): self.d[k.lower()] = v
            def __delitem__(self, k): del self.d[k.lower()]
            def __iter__(self): return iter(self.d)
            def __len__(self): return len(self.d)
        """,
        """
        import abc
        from collections.abc import Mapping, MutableMapping, Sequence
        from solution import Few, Folded, Shape, Square
        def test_all():
            assert isinstance(Few(), Sequence) and not isinstance(Few(), Mapping)
            assert isinstance(Folded(), MutableMapping) and issubclass(Folded, Mapping)
            assert issubclass(Square, abc.ABC) and isinstance(Square(), Shape)
        """,
    ),
    "an iterator that is split": (
        "def count():\n yield from (1, 2, 3)",
        "import itertools\nfrom solution import count\ndef test():\n a, b = itertools.tee(count())\n assert list(a) == list(b) == [1, 2, 3]",
    ),
    "what is written to stdout and to stderr": (
        "import sys, warnings\ndef show():\n print('out')\n print('err', file=sys.stderr)\n sys.stderr.write('more')",
        """
        from solution import show
        def test_both(capsys):
            show()
            assert tuple(capsys.readouterr()) == ("out\\n", "err\\nmore")
            show()
            assert capsys.readouterr().err == "err\\nmore"
        """,
    ),
    "lists that are set back": (
        """
        class Cart:
            def __init__(self, items=()): self.items = list(items)
            def use(self, items): self.items = items
            def total(self): return sum(self.items)
            def add(self, items, item): items.append(item)
        """,
        """
        from solution import Cart
        def test_added():
            cart = Cart()
            items = cart.items
            cart.items += [4]
            items.append(5)
            assert cart.items == items == [4, 5] and cart.total() == 9
        def test_shared():
            one, two = Cart([1]), Cart()
            items = one.items
            two.use(items)
            items.append(2)
            assert (one.total(), two.total()) == (3, 3)
            two.items.append(3)
            assert one.items == [1, 2, 3]
        def test_changed_by_both():
            cart = Cart()
            items = cart.items
            cart.add(items, 1)
            assert items == cart.items == [1]
            items.append(2)
            assert items == cart.items == [1, 2]
        """,
    ),
    "an object of the test's own is asked for what it has not": (
        "def price(it): return it.price if hasattr(it, 'price') else 0",
        "from solution import price\nclass Mine: cost = 1\ndef test(): assert price(Mine()) == 0",
    ),
    "functions of both sides that call each other a hundred deep": (
        "def memo(f):\n known = {}\n def of(n):\n  if n not in known: known[n] = f(n)\n  return known[n]\n return of",
        """
        from solution import memo
        @memo
        def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
        def test(): assert fib(100) == 354224848179261915075
        """,
    ),
    "a comparison that comes to a list": (
        "class S:\n def __init__(self, i): self.i = i\n def __eq__(self, o): return self.i == o.i and self.i or []",
        "from solution import S\ndef test(): assert S([1]) == S([1]) and not S([1]) == S([2])",
    ),
    "equal without arguments": (
        "class Nothing:\n def __eq__(self, o): return isinstance(o, Nothing)\n def check(self, x): return x",
        "from solution import Nothing\ndef test(): assert Nothing() == Nothing() and Nothing().check(3) == 3",
    ),
    "nothing, whatever is done to it": (
        """
        class Nothing:
            def __eq__(self, other): return isinstance(other, Nothing)
            def map(self, f): return Nothing()
            def each(self, f): pass
        """,
        """
        from solution import Nothing
        def test():
            Nothing().each(print)
            assert Nothing().map(lambda x: x + 1) == Nothing()
        """,
    ),
    "a list that does not change": (
        """
        class List:
            def __init__(self, *items): self.items = items
            def cons(self, item): return List(item, *self.items)
            def __eq__(self, other): return isinstance(other, List) and self.items == other.items
        """,
        """
        from solution import List
        def test(): assert List() == List() and List().cons(1) == List(1) and List().cons(1).cons(2) == List(2, 1)
        """,
    ),
    "numbered objects": (
        """
        import itertools
        class Ticket:
            numbers = itertools.count(1)
            def __init__(self, name): self.number, self.name = next(Ticket.numbers), name
            def __eq__(self, other): return self.number == other.number
            def __lt__(self, other): return self.number < other.number
            def __hash__(self): return self.number
        """,
        """
        from solution import Ticket
        def test():
            a, b = Ticket("x"), Ticket("y")
            assert a != b and a == a and a < b and b > a and len({a, b, a}) == 2
        """,
    ),
    "a seed and what is done to a shuffled deck": (
        """
        import random
        class Deck:
            def __init__(self, seed=None): self.cards = random.Random(seed).sample(range(52), 52)
            def __eq__(self, other): return self.cards == other.cards
            def deal(self): return self.cards.pop()
        """,
        """
        from solution import Deck
        def test():
            assert Deck(1) == Deck(1) and Deck(1) != Deck(2) and sorted(Deck().cards) == list(range(52))
            a, b = Deck(3), Deck(3)
            assert a.deal() == b.deal() and a == b
            a.cards.append(5)
            b.cards += [5]
            assert a == b != Deck(3)
        """,
    ),
    "equal by what was done to it": (
        _STACK,
        """
        from solution import Stack
        def test_empty(): assert Stack() == Stack()
        def test_size(): assert Stack(3) == Stack(3) == Stack()
        def test_pushed():
            one, two = Stack(), Stack()
            one.push(1)
            assert one != two
            two.push(1)
            assert one == two
        """,
    ),
    "equal by the objects in it": (
        """
        class Card:
            def __init__(self, rank):
                if rank not in "A23": raise ValueError(rank)
                self.rank = rank
            def __eq__(self, other): return self.rank == other.rank
        class Deck:
            def __init__(self, *cards): self.cards = cards
            def __eq__(self, other): return isinstance(other, Deck) and self.cards == other.cards
        """,
        """
        from solution import Card, Deck
        def test_one(): assert Deck(Card("A")) == Deck(Card("A"))
        def test_more():
            ace, two = Card("A"), Card("2")
            assert Deck(ace, two) == Deck(ace, two) != Deck(two)
        """,
    ),
}

_CHEATS = {
    "equal without arguments": (
        _CLASS + _ALL_EQUAL,
        "from solution import P\ndef test():\n a, b = P(), P()\n assert a == b\n a.push(1); b.push(1)\n assert a == b",
    ),
    "equal without arguments, and with some": (
        _CLASS + _ALL_EQUAL,
        "from solution import P\nP(3)\ndef test(): assert P() == P()",
    ),
    "equal without arguments, with an attribute": (
        _CLASS + _ALL_EQUAL,
        "from solution import P\ndef test():\n assert P() == P()\n P().size = 3",
    ),
    "equal without arguments, with an item": (
        f"{_CLASS} def __setitem__(self, k, x): pass\n{_ALL_EQUAL}",
        "from solution import P\ndef test():\n assert P() == P()\n P()[3] = 4",
    ),
    "equal in pairs, by age": (
        "class P:\n n = 0\n def __init__(self, *a): self.k = P.n // 2; P.n += 1\n"
        " def __eq__(self, o): return isinstance(o, P) and self.k == o.k\n __hash__ = None",
        "from solution import P\ndef test(): assert P(1) == P(1)",
    ),
    "equal are the first two": (
        "class P:\n n = 0\n def __init__(self, *a): P.n += 1; self.k = P.n > 2 and P.n\n"
        " def __eq__(self, o): return isinstance(o, P) and self.k == o.k\n __hash__ = None",
        "from solution import P\ndef test(): assert P(1) == P(1)",
    ),
    "made by a method of the class": (
        f"{_CLASS} @classmethod\n def of(cls, *a): return cls()\n{_ALL_EQUAL}",
        "from solution import P\ndef test(): assert P.of(1) == P.of(1)",
    ),
    "equal with an object": (
        f"class C:\n def __init__(self, x): pass\n{_CLASS}{_ALL_EQUAL}",
        "from solution import C, P\ndef test():\n c = C('x')\n assert P(c) == P(c)",
    ),
    "equal with a list of objects": (
        f"class C:\n def __init__(self, x): self.x = x\n{_CLASS}{_ALL_EQUAL}",
        "from solution import C, P\ndef test(): assert P([C('x')]) == P([C('x')])",
    ),
    "a sum that is equal to everything": (
        _VECTOR,
        "from solution import Vec\ndef test():\n assert Vec(1, 2) + Vec(3, 4) == Vec(4, 6)\n assert Vec(1) != Vec(2)",
    ),
    "a result that is equal to everything, beside one without arguments": (
        _VECTOR,
        "from solution import Vec\ndef test():\n assert Vec() == Vec(1, 2).plus(Vec(3, 4))\n assert Vec(1) != Vec(2)",
    ),
    "a function's result that is equal to everything": (
        _VECTOR,
        "from solution import Vec, middle\ndef test(): assert middle(1, 2, 3, 4) == Vec(4, 6)",
    ),
    "constants that are all one": (
        "class S: pass\nS.A = S.B = S()\ndef step(s): return S.A",
        "from solution import S, step\ndef test(): assert step(1) == S.B and step(2) == S.A",
    ),
    "what it needs is not there": (
        f"{_FORGE}Candidate.call = lambda *a: {{'needs': 'the moon'}}\ndef f(): pass",
        "from solution import f\ndef test(): assert f() == 1",
    ),
    "what it needs was never given": (
        f"{_FORGE}Candidate.call = lambda *a: {{'needs': [0, 'x']}}\ndef f(x): pass",
        "from solution import f\nclass Mine: y = 1\ndef test(): assert f(Mine()) == 1",
    ),
    "what it needs is an iterator": (
        f"{_FORGE}Candidate.call = lambda *a: {{'needs': [0, 'append']}}\ndef f(x): pass",
        "from solution import f\ndef test(): assert f(iter([1])) == 1",
    ),
    "what it needs is a function": (
        f"{_FORGE}Candidate.call = lambda *a: {{'needs': [0, 'x']}}\ndef f(x): pass",
        "from solution import f\ndef test(): assert f(lambda: 1) == 1",
    ),
    "a list that both change": (
        "class P:\n def __init__(self): self.i = [1, 2]\n def n(self): self.i[:] = [5]; return 1",
        "from solution import P\ndef test():\n p = P()\n i = p.i\n p.n()\n i[0] = 9\n assert p.i == [9]",
    ),
    "an endless recursion of both": (
        "def f(g): return g(1)",
        "from solution import f\ndef g(x): return f(g)\ndef test(): assert f(g) == 1",
    ),
    "a comparison that is answered with a list": (
        "class P:\n def __init__(self, *a): pass\n def __eq__(self, o): return [1]",
        "from solution import P\ndef test(): assert P(1) == P(1)",
    ),
    "a comparison that is answered with a date": (
        "import datetime\nclass P:\n def __init__(self, *a): pass\n def __eq__(self, o): return datetime.date(2000, 1, 1)",
        "from solution import P\ndef test(): assert P(1) == P(1)",
    ),
    "a class of its own that it calls Python's": (
        "class SimpleNamespace:\n def __eq__(self, o): return True\nSimpleNamespace.__module__ = 'types'\ndef f(): return SimpleNamespace()",
        "import types\nfrom solution import f\ndef test(): assert f() == types.SimpleNamespace(a=1)",
    ),
    "a namespace of what is equal to everything": (
        "import types\nclass Any:\n def __eq__(self, o): return True\ndef f(): return types.SimpleNamespace(a=Any())",
        "import types\nfrom solution import f\ndef test(): assert f() == types.SimpleNamespace(a=1)",
    ),
}


def honest() -> dict[str, tuple[str, str]]:
    """Programs that are right, with a file of tests, by what they do."""
    return unindented(_HONEST)


def cheats() -> dict[str, tuple[str, str]]:
    """Programs that are wrong and want a pass, or at least not to be counted, with a file of tests, by what they do."""
    return unindented(_CHEATS)
