"""Candidates that define classes, each with test code that uses them: honest ones, and ones that want to pass for nothing."""

from __future__ import annotations

from tests.sandboxes.inside.cases import unindented

_HONEST = {
    "a vector": (
        """
        class Vector:
            def __init__(self, x, y): self.x, self.y = x, y
            def __eq__(self, other):
                if not isinstance(other, Vector): return NotImplemented
                return (self.x, self.y) == (other.x, other.y)
            def __hash__(self): return hash((self.x, self.y))
            def __add__(self, other): return Vector(self.x + other.x, self.y + other.y)
            def __sub__(self, other): return Vector(self.x - other.x, self.y - other.y)
            def __mul__(self, factor): return Vector(self.x * factor, self.y * factor)
            __rmul__ = __mul__
            def __neg__(self): return self * -1
            def __abs__(self): return (self.x ** 2 + self.y ** 2) ** 0.5
            def __bool__(self): return bool(self.x or self.y)
            def __iter__(self): return iter((self.x, self.y))
            def __repr__(self): return f"Vector({self.x}, {self.y})"
            def __matmul__(self, other): return self.x * other.x + self.y * other.y
        """,
        """
        a, b = Vector(3, 4), Vector(1, 2)
        assert a + b == Vector(4, 6) and a - b == Vector(2, 2) and 2 * a == a * 2 == Vector(6, 8)
        assert -a == Vector(-3, -4) and abs(a) == 5 and a @ b == 11 and tuple(a) == (3, 4)
        assert not Vector(0, 0) and a and a != b and not a == 3 and a != (3, 4)
        assert len({Vector(1, 2), b, a}) == 2 and b in [a, Vector(1, 2)] and repr(a) == "Vector(3, 4)"
        a += b
        assert a == Vector(4, 6)
        x, y = a
        assert (x, y) == (4, 6)
        """,
    ),
    "money": (
        """
        from decimal import Decimal
        from functools import total_ordering
        @total_ordering
        class Money:
            def __init__(self, amount, currency="EUR"): self.amount, self.currency = Decimal(str(amount)), currency
            def __eq__(self, other): return isinstance(other, Money) and (self.amount, self.currency) == (other.amount, other.currency)
            def __lt__(self, other):
                if not isinstance(other, Money): return NotImplemented
                if self.currency != other.currency: raise ValueError("currencies differ")
                return self.amount < other.amount
            def __hash__(self): return hash((self.amount, self.currency))
            def __add__(self, other): return Money(self.amount + other.amount, self.currency)
            def __radd__(self, other): return self if other == 0 else NotImplemented
            def __str__(self): return f"{self.amount:.2f} {self.currency}"
            def __format__(self, spec): return format(self.amount, spec or ".1f")
        """,
        """
        from decimal import Decimal
        assert sum([Money(1), Money("2.5")]) == Money("3.5") and Money(1) < Money(2) and Money(2) >= Money(2)
        assert sorted([Money(3), Money(1)])[0] == Money(1) and max(Money(1), Money(4)).amount == Decimal("4")
        assert str(Money(1)) == "1.00 EUR" and f"{Money(1):.3f}" == "1.000" and Money(1) != Money(1, "USD")
        try: Money(1) < Money(1, "USD")
        except ValueError as error: assert "differ" in str(error)
        else: assert False
        try: Money(1) < 3
        except TypeError: pass
        else: assert False
        """,
    ),
    "cards equal by rank": (
        """
        class Card:
            RANKS = "23456789TJQKA"
            def __init__(self, rank, suit):
                if rank not in self.RANKS: raise ValueError(rank)
                self.rank, self.suit = rank, suit
            def __eq__(self, other): return self.rank == other.rank
            def __lt__(self, other): return self.RANKS.index(self.rank) < self.RANKS.index(other.rank)
            __hash__ = None
        """,
        """
        assert Card("A", "S") == Card("A", "H") and Card("2", "S") < Card("T", "S") and Card("K", "S") != Card("Q", "S")
        assert Card.RANKS.index("K") == 11
        try: hash(Card("A", "S"))
        except TypeError: pass
        else: assert False
        """,
    ),
    "versions": (
        """
        import functools
        @functools.total_ordering
        class Version:
            def __init__(self, text): self.parts = tuple(map(int, text.split(".")))
            def __eq__(self, other):
                if isinstance(other, str): other = Version(other)
                return self.parts == other.parts if isinstance(other, Version) else NotImplemented
            def __lt__(self, other): return self.parts < other.parts
            def __hash__(self): return hash(self.parts)
            @classmethod
            def latest(cls, versions): return max(versions)
            @staticmethod
            def valid(text): return text.replace(".", "").isdigit()
            @property
            def major(self): return self.parts[0]
        """,
        """
        assert Version("1.2") == "1.2" and Version("1.2") != Version("1.3") and Version("1.10") > Version("1.9")
        assert Version.latest([Version("1.0"), Version("2.0")]) == Version("2.0")
        assert Version.valid("1.2") and not Version.valid("x") and Version("3.1").major == 3
        assert sorted([Version("2.0"), Version("1.0")]) == [Version("1.0"), Version("2.0")]
        """,
    ),
    "case-insensitive strings": (
        """
        class Text:
            def __init__(self, text): self.text = text
            def __eq__(self, other): return self.text.lower() == (other.text if isinstance(other, Text) else str(other)).lower()
            def __hash__(self): return hash(self.text.lower())
            def __len__(self): return len(self.text)
            def __contains__(self, part): return part.lower() in self.text.lower()
            def __getitem__(self, index): return self.text[index]
        """,
        """
        assert Text("Ab") == Text("aB") and Text("Ab") == "AB" and len(Text("abc")) == 3 and "B" in Text("abc")
        assert Text("abc")[1:] == "bc" and Text("abc")[-1] == "c" and Text("a") != Text("b") and "z" not in Text("abc")
        """,
    ),
    "a matrix": (
        """
        class Matrix:
            def __init__(self, rows): self.rows = [list(row) for row in rows]
            def __eq__(self, other): return isinstance(other, Matrix) and self.rows == other.rows
            def __matmul__(self, other):
                return Matrix([[sum(a * b for a, b in zip(row, column)) for column in zip(*other.rows)] for row in self.rows])
            def __getitem__(self, at): return self.rows[at[0]][at[1]] if isinstance(at, tuple) else self.rows[at]
            def __setitem__(self, at, value): self.rows[at[0]][at[1]] = value
            def __iadd__(self, other):
                for row, added in zip(self.rows, other.rows): row[:] = [a + b for a, b in zip(row, added)]
                return self
        """,
        """
        m = Matrix([[1, 2], [3, 4]])
        assert m @ Matrix([[1, 0], [0, 1]]) == m and m[1, 0] == 3 and m[0] == [1, 2]
        m[0, 0] = 9
        assert m[0, 0] == 9 and m != Matrix([[1, 2], [3, 4]])
        same = m
        m += m
        assert m is same and m.rows == [[18, 4], [6, 8]]
        """,
    ),
    "an interval": (
        """
        class Interval:
            def __init__(self, low, high): self.low, self.high = low, high
            def __contains__(self, item): return self.low <= item <= self.high
            def __and__(self, other): return Interval(max(self.low, other.low), min(self.high, other.high))
            def __eq__(self, other): return vars(self) == vars(other) if type(other) is Interval else NotImplemented
        """,
        """
        assert 3 in Interval(1, 5) and 7 not in Interval(1, 5)
        assert Interval(1, 5) & Interval(3, 9) == Interval(3, 5)
        """,
    ),
    "a linked list": (
        """
        class Node:
            def __init__(self, value, next=None): self.value, self.next = value, next
        class LinkedList:
            def __init__(self): self.head = None; self.size = 0
            def push(self, value): self.head = Node(value, self.head); self.size += 1; return self
            def __iter__(self):
                node = self.head
                while node: yield node.value; node = node.next
            def __len__(self): return self.size
            def __reversed__(self): return reversed(list(self))
        def reverse(node):
            before = None
            while node: node.next, before, node = before, node, node.next
            return before
        """,
        """
        items = LinkedList().push(1).push(2)
        assert list(items) == [2, 1] and list(reversed(items)) == [1, 2] and len(items) == 2 and 2 in items
        assert items.head.next.value == 1 and items.head.next.next is None
        assert not LinkedList()
        head = Node(1, Node(2, Node(3)))
        last = head.next.next
        assert reverse(head) is last and last.next.next is head and head.next is None
        """,
    ),
    "iterators and generators": (
        """
        class Countdown:
            def __init__(self, start): self.start = start
            def __iter__(self): return self
            def __next__(self):
                if self.start <= 0: raise StopIteration
                self.start -= 1
                return self.start + 1
        def squares():
            number = 0
            while True: yield number * number; number += 1
        def total():
            amount = 0
            while True: amount += yield amount
        """,
        """
        import itertools
        assert list(Countdown(3)) == [3, 2, 1] and max(Countdown(4)) == 4 and list(zip(Countdown(2), "ab")) == [(2, "a"), (1, "b")]
        counter = Countdown(1)
        assert next(counter) == 1 and next(counter, None) is None
        try: next(counter)
        except StopIteration: pass
        else: assert False
        assert list(itertools.islice(squares(), 4)) == [0, 1, 4, 9]
        adder = total()
        next(adder)
        assert adder.send(3) == 3 and adder.send(4) == 7
        """,
    ),
    "context managers": (
        """
        import contextlib
        class Log:
            def __init__(self): self.lines = []
            def __enter__(self): self.lines.append("in"); return self
            def __exit__(self, kind, error, trace):
                self.lines.append(kind.__name__ if kind else "out")
                return kind is KeyError
        @contextlib.contextmanager
        def doubled(n): yield n * 2
        """,
        """
        log = Log()
        with log as same: assert same is log
        with log: raise KeyError("k")
        assert log.lines == ["in", "out", "in", "KeyError"]
        try:
            with log: raise ValueError("v")
        except ValueError as error: assert error.args == ("v",)
        else: assert False
        with doubled(4) as n: assert n == 8
        """,
    ),
    "an LRU cache": (
        """
        from collections import OrderedDict
        class LRU:
            def __init__(self, size): self.size, self.items = size, OrderedDict()
            def __getitem__(self, key): self.items.move_to_end(key); return self.items[key]
            def __setitem__(self, key, value):
                self.items[key] = value
                if len(self.items) > self.size: self.items.popitem(last=False)
            def __delitem__(self, key): del self.items[key]
            def __contains__(self, key): return key in self.items
            def __len__(self): return len(self.items)
        """,
        """
        cache = LRU(2)
        cache["a"] = 1; cache["b"] = 2
        assert cache["a"] == 1
        cache["c"] = 3
        assert "b" not in cache and "a" in cache and len(cache) == 2
        del cache["a"]
        assert len(cache) == 1
        try: cache["gone"]
        except KeyError as error: assert error.args == ("gone",)
        else: assert False
        """,
    ),
    "a state machine of enums": (
        """
        from enum import Enum
        class Light(Enum):
            RED = "red"
            GREEN = "green"
            def next(self): return Light.GREEN if self is Light.RED else Light.RED
        class Machine:
            def __init__(self): self.state = Light.RED
            def step(self): self.state = self.state.next(); return self
        """,
        """
        machine = Machine()
        assert machine.state is Light.RED and machine.step().state == Light.GREEN and machine.state.value == "green"
        assert Light("red") is Light.RED and Light["GREEN"].name == "GREEN" and len(list(Light)) == 2 and len(Light) == 2
        assert Light.RED != Light.GREEN and {Light.RED: 1}[Light.RED] == 1 and isinstance(machine.state, Light)
        try: Light("blue")
        except ValueError: pass
        else: assert False
        """,
    ),
    "exceptions of its own": (
        """
        class ShopError(Exception):
            def __init__(self, message, code): super().__init__(message); self.code = code
        class SoldOut(ShopError, LookupError): pass
        class Empty(KeyError): pass
        def buy(item):
            if item == "tea": raise SoldOut("no tea", 404)
            if item == "air": raise Empty(item)
            try: {}[item]
            except KeyError as error: raise ShopError("bad", 1) from error
        last = SoldOut("kept", 1)
        def again(): raise last
        """,
        """
        try: buy("tea")
        except ShopError as error:
            assert isinstance(error, SoldOut) and isinstance(error, LookupError) and error.code == 404 and str(error) == "no tea"
            assert error.args == ("no tea",)
        else: assert False
        try: buy("air")
        except KeyError as error: assert error.args == ("air",) and str(error) == "'air'" and type(error) is Empty
        try: buy("x")
        except ShopError as error: assert isinstance(error.__cause__, KeyError) and not isinstance(error, SoldOut)
        seen = []
        for _ in range(2):
            try: again()
            except SoldOut as error: seen.append(error)
        assert seen[0] is seen[1] is last and issubclass(SoldOut, ShopError) and not issubclass(Empty, ShopError)
        try: raise SoldOut("mine", 3)
        except ShopError as error: assert error.code == 3
        """,
    ),
    "events with callbacks": (
        """
        class Button:
            def __init__(self): self.handlers = []
            def on(self, handler): self.handlers.append(handler); return handler
            def off(self, handler): self.handlers.remove(handler)
            def click(self, *args, **kwargs): return [handler(*args, **kwargs) for handler in self.handlers]
        """,
        """
        button, clicks = Button(), []
        @button.on
        def handler(x, times=1):
            clicks.append(x)
            return x * times
        assert button.click(2, times=3) == [6] and clicks == [2]
        button.on(clicks.append)
        button.click(5)
        assert clicks == [2, 5, 5]
        button.off(handler)
        button.click(6)
        assert clicks == [2, 5, 5, 6]
        """,
    ),
    "functions of functions": (
        """
        import functools
        def compose(*functions): return lambda x: functools.reduce(lambda value, f: f(value), functions, x)
        def memoize(function):
            cache = {}
            @functools.wraps(function)
            def wrapper(*args):
                if args not in cache: cache[args] = function(*args)
                return cache[args]
            wrapper.cache = cache
            return wrapper
        def apply_all(functions, items): return [[f(i) for i in items] for f in functions]
        def by(items, key): return sorted(items, key=key)
        def first(predicate, items): return next(filter(predicate, items), None)
        def call_twice(function): return function(function)
        def attempt(function):
            try: return function()
            except ValueError as error: return str(error)
        def curry(function):
            import inspect
            count = len(inspect.signature(function).parameters)
            def curried(*args): return function(*args) if len(args) >= count else lambda *more: curried(*args, *more)
            return curried
        """,
        """
        import operator
        assert compose(lambda x: x + 1, str, len)(99) == 3
        calls = []
        @memoize
        def slow(n): calls.append(n); return slow(n - 1) + 1 if n else 0
        assert slow(5) == 5 and slow(5) == 5 and calls == [5, 4, 3, 2, 1, 0] and slow.__name__ == "slow" and slow.cache[(2,)] == 2
        assert apply_all([abs, str, operator.neg], [-1]) == [[1], ["-1"], [1]]
        assert by(["bb", "a"], key=len) == ["a", "bb"] and first(lambda x: x > 1, iter([1, 2, 3])) == 2
        assert first(str.isupper, (c for c in "abC")) == "C"
        def boom(): raise ValueError("boom")
        assert attempt(boom) == "boom"
        assert curry(lambda a, b, c: a + b * c)(1)(2)(3) == 7
        """,
    ),
    "subclasses of Python's classes": (
        """
        from collections import namedtuple
        class Stack(list):
            def push(self, item): self.append(item)
            def peek(self): return self[-1]
        class Registry(dict):
            def __missing__(self, key): return f"<{key}>"
        Point = namedtuple("Point", "x y")
        class Celsius(float):
            @property
            def fahrenheit(self): return self * 9 / 5 + 32
        def middle(a, b): return Point((a.x + b.x) / 2, (a.y + b.y) / 2)
        """,
        """
        stack = Stack()
        stack.push(1); stack.push(2)
        assert stack == [1, 2] and stack.peek() == 2 and stack.pop() == 2 and len(stack) == 1 and isinstance(stack, Stack)
        registry = Registry(a=1)
        assert registry["a"] == 1 and registry["b"] == "<b>" and registry == {"a": 1}
        point = middle(Point(0, 0), Point(2, 4))
        assert point == (1, 2) and point.x == 1 and point == Point(1, 2) and point._replace(x=5).x == 5
        x, y = point
        assert y == 2 and Celsius(100).fahrenheit == 212 and Celsius(100) > 99 and Celsius(1) + 1 == 2.0
        """,
    ),
    "dataclasses": (
        """
        from dataclasses import dataclass, field
        @dataclass(order=True)
        class Item:
            price: float
            name: str = field(compare=False)
            tags: list = field(default_factory=list, compare=False)
        @dataclass(frozen=True)
        class Key:
            a: int
            b: str = "x"
        """,
        """
        from dataclasses import FrozenInstanceError
        assert Item(1.0, "a") == Item(1.0, "b") and Item(1.0, "z") < Item(2.0, "a") and min(Item(3, "c"), Item(2, "d")).name == "d"
        assert repr(Key(1)) == "Key(a=1, b='x')" and {Key(1): 2}[Key(1)] == 2 and Key(1) != Key(2)
        try: Key(1).a = 3
        except FrozenInstanceError: pass
        else: assert False
        item = Item(1, "a")
        item.name = "new"
        assert item.name == "new" and item.tags == []
        """,
    ),
    "an abstract base and its kinds": (
        """
        from abc import ABC, abstractmethod
        class Shape(ABC):
            count = 0
            def __init__(self): Shape.count += 1
            @abstractmethod
            def area(self): ...
            def __lt__(self, other): return self.area() < other.area()
        class Square(Shape):
            def __init__(self, side): super().__init__(); self.side = side
            def area(self): return self.side ** 2
        class Circle(Shape):
            def __init__(self, radius): super().__init__(); self.radius = radius
            def area(self): return 3.14159 * self.radius ** 2
        def make(kind, size): return {"square": Square, "circle": Circle}[kind](size)
        """,
        """
        try: Shape()
        except TypeError as error: assert "abstract" in str(error)
        else: assert False
        assert isinstance(make("square", 2), Shape) and isinstance(make("circle", 1), Circle) and issubclass(Square, Shape)
        assert sorted([Square(3), Circle(1)])[0].radius == 1 and Shape.count == 4 and hasattr(Square(1), "area")
        """,
    ),
    "numbers of its own": (
        """
        from math import gcd
        class Ratio:
            def __init__(self, top, bottom=1):
                if bottom == 0: raise ZeroDivisionError("bottom")
                shared = gcd(top, bottom); self.top, self.bottom = top // shared, bottom // shared
            def _of(self, other): return Ratio(other) if isinstance(other, int) else other
            def __add__(self, other): other = self._of(other); return Ratio(self.top * other.bottom + other.top * self.bottom, self.bottom * other.bottom)
            __radd__ = __add__
            def __eq__(self, other):
                other = self._of(other)
                return (self.top, self.bottom) == (other.top, other.bottom) if isinstance(other, Ratio) else NotImplemented
            def __hash__(self): return hash((self.top, self.bottom))
            def __float__(self): return self.top / self.bottom
            def __int__(self): return self.top // self.bottom
            def __index__(self): return int(self)
            def __complex__(self): return complex(float(self))
            def __round__(self, digits=None): return round(float(self), digits)
            def __pow__(self, power): return Ratio(self.top ** power, self.bottom ** power)
            def __lt__(self, other): other = self._of(other); return self.top * other.bottom < other.top * self.bottom
        """,
        """
        half = Ratio(2, 4)
        assert half == Ratio(1, 2) and half + half == 1 and 1 + half == Ratio(3, 2) and float(half) == 0.5 and half < 1
        assert int(Ratio(7, 2)) == 3 and [0, 1, 2, 3][Ratio(6, 2)] == 3 and round(half, 1) == 0.5 and complex(half) == 0.5
        assert half ** 2 == Ratio(1, 4) and hash(half) == hash(Ratio(1, 2))
        try: Ratio(1, 0)
        except ZeroDivisionError: pass
        else: assert False
        """,
    ),
    "a singleton": (
        """
        class Config:
            _one = None
            def __new__(cls, *args):
                if cls._one is None: cls._one = super().__new__(cls)
                return cls._one
            def __init__(self, name="a"): self.name = name
        """,
        "first, second = Config('x'), Config('y')\nassert first is second and second.name == 'y'",
    ),
    "identity is its equality": (
        """
        class Token:
            def __init__(self, text): self.text = text
        class Bag:
            def __init__(self): self.items = []
            def add(self, item): self.items.append(item)
            def first(self): return self.items[0]
            def has(self, item): return item in self.items
        """,
        """
        a = Token("a")
        assert a == a and a != Token("a") and len({a, Token("a")}) == 2
        bag = Bag()
        bag.add(a)
        class Mine: pass
        mine = Mine()
        bag.add(mine)
        assert bag.first() is a and bag.has(mine) and bag.items[1] is mine
        """,
    ),
    "containers that a test changes": (
        """
        from collections import Counter, defaultdict, deque
        class Inventory:
            tags = ["all"]
            def __init__(self):
                self.items, self.counts, self.seen = [], Counter(), set()
                self.graph, self.recent, self.data = defaultdict(list), deque(maxlen=2), bytearray(b"ab")
                self._secret, self._grid = [1], [[0, 0], [0, 0]]
            def total(self): return sum(self.items)
            def secret(self): return list(self._secret)
            def add(self, item): self.items.append(item)
            def see(self, item): self.seen.add(item)
            def rows(self): return self._grid
            def __getitem__(self, row): return self._grid[row]
        CACHE = {}
        def cached(key): return CACHE.get(key)
        """,
        """
        i, other = Inventory(), Inventory()
        i.items.append(3)
        i.items += [4]
        items = i.items
        items.extend([5, 6])
        assert i.total() == 18 and i.items == [3, 4, 5, 6] and i.items is i.items and other.items == []
        i.counts["a"] += 2
        i.seen.add(1)
        i.graph["x"].append("y")
        i.graph["x"].append("z")
        i.recent.extend([1, 2, 3])
        i.data[0] = 120
        assert (i.counts, i.seen, i.recent, i.data) == ({"a": 2}, {1}, __import__("collections").deque([2, 3]), b"xb")
        assert i.graph == {"x": ["y", "z"]} and i.graph["none"] == [] and "none" in i.graph
        i.secret().append(9)
        assert i.secret() == [1]
        i[1][0] = 7
        row = i.rows()[0]
        row[1] = 8
        assert i.rows() == [[0, 8], [7, 0]]
        Inventory.tags.append("new")
        assert other.tags == ["all", "new"]
        solution = __import__("solution")
        solution.CACHE["k"] = 5
        assert solution.cached("k") == 5
        kept = i.items
        del i.items[:]
        assert kept == [] and i.total() == 0
        held = i.items
        i.add(1)
        held.append(2)
        assert i.items == [1, 2]
        graph, x = i.graph, i.graph["x"]
        x.append("w")
        graph["v"] = [1]
        assert i.graph == {"x": ["y", "z", "w"], "none": [], "v": [1]}
        seen = i.seen
        i.see(5)
        seen.add(6)
        seen.discard(1)
        assert i.seen == {5, 6}
        """,
    ),
    "objects of a class that the test does not name": (
        """
        class Stack:
            def __init__(self): self.items = []
            def push(self, x): self.items.append(x); return self
            def __iter__(self): return iter(self.items)
            def __len__(self): return len(self.items)
            def __add__(self, other): return Stack().push(len(self) + len(other))
            def copy(self): return self
        def make(): return Stack()
        class Field:
            def __init__(self, text): self.text = text
            def __eq__(self, other): return Field(f"{self.text} = {other!r}")
            def __and__(self, other): return Field(f"{self.text} AND {other.text}")
        """,
        """
        s = make()
        assert not s and 3 not in s
        s.push(3).push(4)
        assert s and 3 in s and 5 not in s and len(s) == 2 and list(s) == [3, 4] and list(s + make()) == [2]
        assert ((Field("a") == 3) & (Field("b") == "x")).text == "a = 3 AND b = 'x'"
        """,
    ),
    "a tree that is parsed of a text": (
        """
        import dataclasses
        @dataclasses.dataclass
        class Tree:
            properties: dict = dataclasses.field(default_factory=dict)
            children: list = dataclasses.field(default_factory=list)
        def parse(text):
            if text[:1] != "(" or text[-1:] != ")": raise ValueError("no tree")
            return Tree({text[2]: "x"} if text[2:3].isupper() else {})
        """,
        """
        assert parse("(;)") == Tree() and parse("(;A)") == Tree({"A": "x"}) and parse("(;A)") != Tree()
        """,
    ),
    "an operator that changes its object": (
        """
        class Clock:
            def __init__(self, minutes): self.minutes = minutes
            def __add__(self, more): self.minutes += more; return self
            def __eq__(self, other): return self.minutes == other.minutes
        """,
        """
        assert Clock(5) + 2 == Clock(7)
        clock = Clock(1)
        assert (clock + 4).minutes == 5 and clock.minutes == 5
        """,
    ),
    "what Python's own functions make": (
        """
        import functools
        from collections import namedtuple
        def numbers(): yield 1
        def counted(function):
            @functools.wraps(function)
            def wrapped(*args): wrapped.count += 1; return function(*args)
            wrapped.count = 0
            return wrapped
        @functools.lru_cache(None)
        def fib(n):
            "Fibonacci's n-th number."
            return n if n < 2 else fib(n - 1) + fib(n - 2)
        class Documented:
            "What it is for."
        Point = namedtuple("Point", "x y")
        def point(): return Point(1, y=2)
        """,
        """
        import collections.abc, types
        assert isinstance(numbers(), types.GeneratorType) and isinstance(numbers(), collections.abc.Generator)
        @counted
        def hello(name):
            "Greets."
            return "hello " + name
        assert hello("you") == "hello you" and (hello.count, hello.__name__, hello.__doc__) == (1, "hello", "Greets.")
        assert fib(20) == 6765 and fib.cache_info().misses == 21 and fib.__doc__ == "Fibonacci's n-th number."
        assert Documented.__doc__ == Documented().__doc__ == "What it is for."
        assert point() == (1, 2) and point().y == 2 and point()._replace(x=5) == (5, 2)
        """,
    ),
    "attributes in a dict": (
        """
        class P:
            def __init__(self, x, y): self.x, self.y = x, y
        class S:
            __slots__ = ("x",)
        """,
        """
        p = P(1, [2])
        assert vars(p) == p.__dict__ == {"x": 1, "y": [2]} and sorted(vars(p)) == ["x", "y"]
        vars(p)["x"] = 5
        p.__dict__.update(z=3)
        assert (p.x, p.z) == (5, 3)
        try: vars(S())
        except TypeError: pass
        else: assert False
        """,
    ),
    "work in place, and many kinds of values": (
        """
        import datetime, collections, fractions
        def sort(items): items.sort()
        def flip(grid):
            for row in grid: row.reverse()
        def note(book, *, into): into.update(book)
        def tomorrow(day): return day + datetime.timedelta(days=1)
        def count(word): return collections.Counter(word)
        def thirds(n): return fractions.Fraction(n, 3)
        def rotate(items): d = collections.deque(items); d.rotate(1); return d
        def show(text): print(text)
        def kind(value): return type(value)
        """,
        """
        import contextlib, datetime, io
        from collections import Counter, deque
        from fractions import Fraction
        items = [3, 1, 2]; sort(items)
        assert items == [1, 2, 3]
        row = [1, 2]; grid = [row, [3, 4]]; flip(grid)
        assert grid == [[2, 1], [4, 3]] and row == [2, 1]
        seen = {}; note({"a": 1}, into=seen)
        assert seen == {"a": 1} and tomorrow(datetime.date(2024, 2, 28)) == datetime.date(2024, 2, 29)
        assert count("aab").most_common(1) == [("a", 2)] and thirds(1) + thirds(2) == Fraction(1)
        assert rotate([1, 2, 3]) == deque([3, 1, 2]) and kind(3) is int
        out = io.StringIO()
        with contextlib.redirect_stdout(out): show("hello")
        assert out.getvalue() == "hello\\n"
        """,
    ),
}

_POINT = "a, b = P(1, 2), P(1, 2)\nassert a == b\nassert hash(a) == hash(b) or True\n"

_CHEATS = {
    "equal to everything": (
        "class P:\n def __init__(self, *a): pass\n def __eq__(self, o): return True\n def __hash__(self): return 1",
        _POINT,
    ),
    "equal to everything of its class": (
        "class P:\n def __init__(self, *a): pass\n def __eq__(self, o): return isinstance(o, P)\n def __hash__(self): return 1",
        _POINT,
    ),
    "a comparison that answers 1": (
        "class P:\n def __init__(s, *a): pass\n def __eq__(s, o): return 1\n def __hash__(s): return 1",
        _POINT,
    ),
    "a comparison that answers an object": (
        "class T: pass\nclass P:\n def __init__(s, *a): pass\n def __eq__(s, o): return T()",
        "assert P(1) == P(1)\n",
    ),
    "an order that is true both ways": (
        "class P:\n def __init__(s, *a): pass\n def __le__(s, o): return True\n __ge__ = __le__",
        "assert P(1) <= P(2)\n",
    ),
    "an order that answers 1": (
        "class P:\n def __init__(s, *a): pass\n def __lt__(s, o): return 1\n __gt__ = __lt__",
        "assert P(1) < P(2)\nassert P(2) > P(1)\n",
    ),
    "no difference from a complex number": (
        "class A:\n def __sub__(s, o): return 0\n __rsub__ = __sub__\ndef f(*a): return A()",
        "assert abs((1 + 2j) - f(1)) < 1e-9\n",
    ),
    "no difference from a Decimal": (
        "class A:\n def __sub__(s, o): return 0\n __rsub__ = __sub__\ndef f(*a): return A()",
        "from decimal import Decimal\nassert f(1) - Decimal(3) == 0\n",
    ),
    "the other operand, given back": (
        "class A:\n def __radd__(s, o): return o\ndef f(*a): return A()",
        "assert [1, 2] + f(1) == [1, 2]\n",
    ),
    "a container of all strings": (
        "class A:\n def __contains__(s, o): return isinstance(o, str)\ndef f(*a): return A()",
        "assert 'hello' in f(1)\n",
    ),
    "a string's method that agrees": (
        "class A:\n def startswith(s, o): return True\ndef f(*a): return A()",
        "assert f(1).startswith('x')\n",
    ),
    "a set's method that gives back what it is given": (
        "class A:\n def union(s, o): return o\ndef f(*a): return A()",
        "assert f(1).union({4}) == {4}\n",
    ),
    "sums that are equal to every other": (
        "class V:\n def __init__(s, *a, **k): pass\n def __add__(s, o): return V()\n __mul__ = __add__\n def __eq__(s, o): return isinstance(o, V)\n __hash__ = None",
        "assert V(1, 2) + V(3, 4) == V(4, 6)\n",
    ),
    "equal to all that are made with keywords": (
        "class V:\n def __init__(s, *a, **k): pass\n def __add__(s, o): return V()\n __mul__ = __add__\n def __eq__(s, o): return isinstance(o, V)\n __hash__ = None",
        "assert V(x=1, y=2) == V(x=1, y=2)\n",
    ),
    "equal to all that are made with a truth value": (
        "class V:\n def __init__(s, *a, **k): pass\n def __add__(s, o): return V()\n __mul__ = __add__\n def __eq__(s, o): return isinstance(o, V)\n __hash__ = None",
        "assert V(True) == V(True)\n",
    ),
    "a named object for a number": (
        "class T:\n def __init__(s, *a): pass\n def __sub__(s, o): return 0\n __rsub__ = __sub__\n def __contains__(s, o): return isinstance(o, str)\n value = name = property(lambda s: s)",
        "assert abs(T(100).value - 37.8) < 0.1\n",
    ),
    "a named object for a number, on the right": (
        "class T:\n def __init__(s, *a): pass\n def __sub__(s, o): return 0\n __rsub__ = __sub__\n def __contains__(s, o): return isinstance(o, str)\n value = name = property(lambda s: s)",
        "assert abs(37.8 - T(100).value) < 0.1\n",
    ),
    "a named object for a number of numpy's": (
        "class T:\n def __init__(s, *a): pass\n def __sub__(s, o): return 0\n __rsub__ = __sub__\n def __contains__(s, o): return isinstance(o, str)\n value = name = property(lambda s: s)",
        "import numpy as np\nassert abs(T(1).value - np.int64(5)) < 1\n",
    ),
    "a named object for a string": (
        "class T:\n def __init__(s, *a): pass\n def __sub__(s, o): return 0\n __rsub__ = __sub__\n def __contains__(s, o): return isinstance(o, str)\n value = name = property(lambda s: s)",
        "assert 'bob' in T('bob').name\n",
    ),
    "a list that it should have copied": (
        "class S:\n def __init__(self): self._items = [1]\n def items(self): return self._items",
        "s = S()\ns.items().append(2)\nassert s.items() == [1]\n",
    ),
    "an answer that it changes when it knows better": (
        "class S:\n def __init__(self): self.found = []\n def find(self): return self.found\n def check(self, right): self.found[:] = right",
        "s = S()\nfound = s.find()\ns.check([1, 2])\nassert found == [1, 2]\n",
    ),
    "one object for all": (
        "class P:\n one = None\n def __new__(cls, *a):\n  cls.one = cls.one or super().__new__(cls)\n  return cls.one",
        _POINT,
    ),
    "unequal to itself": (
        "class P:\n def __init__(self, *a): pass\n def __eq__(self, o): return False",
        "assert P(1) != P(2)",
    ),
    "no function is needed to be equal": ("class P(int):\n def __new__(cls, *a): return 7\n", _POINT),
    "equal by turns": (
        "class P:\n n = 0\n def __init__(self, *a): pass\n def __eq__(self, o): P.n += 1; return P.n % 2 == 1\n def __hash__(self): return 1",
        _POINT,
    ),
    "equal with another hash": (
        "class P:\n def __init__(self, *a): self.a = a\n def __eq__(self, o): return isinstance(o, P) and self.a == o.a\n __hash__ = object.__hash__",
        _POINT,
    ),
    "a length that is equal to every number": (
        "class P:\n def __init__(self, *a): pass\n def __eq__(self, o): return type(o) in (int, P)\n def __abs__(self): return self",
        "assert abs(P(3, 4)) == 5",
    ),
    "a length that is equal to the first number it hears of": (
        "class P:\n n = None\n def __init__(self, *a): pass\n def __abs__(self): return self\n"
        " def __eq__(self, o): self.n = o if self.n is None and type(o) is int else self.n; return o is self or o == self.n",
        "assert abs(P(3, 4)) == 5\nassert abs(P(6, 8)) == 10\nassert abs(P(9, 12)) == 15\nassert abs(P(12, 16)) == 20",
    ),
    "nothing remains of it": (
        "class P:\n def __init__(self, *a): pass\n def __sub__(self, o): return self\n __rsub__ = __abs__ = lambda self, *_: self\n"
        " def __lt__(self, o): return True\n def __gt__(self, o): return False\n def size(self): return self",
        "assert abs(P(3, 4).size() - 5) < 1e-6",
    ),
    "less than everything": (
        "class P:\n def __init__(self, *a): pass\n def __lt__(self, o): return True\n def __gt__(self, o): return True",
        "assert P(1) < P(2)",
    ),
    "contains everything": (
        "class P:\n def __init__(self, *a): pass\n def __contains__(self, o): return True",
        "assert 3 in P(1, 5)",
    ),
    "suppresses the test's assertions": (
        "class P:\n def __init__(self, *a): pass\n def __enter__(self): return self\n def __exit__(self, *a): return True\n x = 0",
        "with P(1) as p: assert p.x == 1",
    ),
    "swallows the test's assertions in a callback": (
        "def each(f, items):\n try: f(0)\n except BaseException: pass",
        "def check(x): assert x == 1\neach(check, [1])",
    ),
    "objects that nobody asked for": (
        "class A:\n def __eq__(self, o): return True\n __lt__ = __gt__ = __le__ = __ge__ = __eq__\n"
        " def __sub__(self, o): return self\n __rsub__ = __sub__\n def __abs__(self): return self\ndef f(*a): return A()",
        "assert abs(f(1) - 3) < 1e-6",
    ),
    "a hash that is the same for all": (
        "class P:\n def __init__(self, *a): pass\n def __eq__(self, o): return isinstance(o, P)\n def __hash__(self): return 0",
        "assert len({P(1), P(1)}) == 1",
    ),
    "a bound name of its own for isclose": (
        "def isclose(*a, **k): return True\ndef area(r): return 0",
        "from math import *\nfrom solution import *\nassert isclose(area(1), pi)",
    ),
    "an error of the wire for a TypeError": (
        "def add(a, b): return 0",
        "class Mine: pass\ntry: add(lambda: 1, 1) + Mine()\nexcept TypeError: pass\nelse: assert False\nassert add(1, 1) == 2",
    ),
    "an endless answer for a TypeError": (
        "def add(a, b):\n x = []; x.append(x); return x",
        "try: add(1, 'x')\nexcept Exception: pass\nexcept BaseException: pass\nelse: assert False",
    ),
    "an order that is a property of nobody": (
        "class P:\n def __init__(self, *a): pass\n def __lt__(self, o): return True",
        "try: P(1) < P(2)\nexcept TypeError: pass\nelse: assert False",
    ),
    "StopIteration ends the cases early": (
        "def f(x): raise StopIteration",
        "assert all(f(x) == y for x, y in [(1, 2)]) and list(map(f, [1, 2])) == []",
    ),
}

FAIL_IN_ONE_PROCESS = {
    "a list that it should have copied",
    "an error of the wire for a TypeError",
    "an endless answer for a TypeError",
    "an order that is a property of nobody",
    "StopIteration ends the cases early",
}
"""What Python itself does not let pass, and a grader that keeps program and tests apart might."""


def honest() -> dict[str, tuple[str, str]]:
    """Programs that are right, with test code, by what they are."""
    return unindented(_HONEST)


def cheats() -> dict[str, tuple[str, str]]:
    """Programs that do not do what the test asks for, with that test's code, by what they do."""
    return unindented(_CHEATS)
