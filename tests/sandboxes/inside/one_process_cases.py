"""Honest programs with test files that set or watch what belongs to the process: environment, arguments, seeds, warnings, records."""

from __future__ import annotations

from tests.sandboxes.inside.cases import unindented

_CASES = {
    "warnings": (
        """
        import warnings
        class Old(DeprecationWarning): pass
        def old(): warnings.warn("use new", Old, stacklevel=2); return 1
        def new(): return 2
        """,
        """
        import unittest, warnings
        import pytest
        from solution import Old, new, old
        def test_warns():
            with pytest.warns(Old, match="use new"): assert old() == 1
        def test_is_deprecated():
            with pytest.deprecated_call(): old()
        def test_recorded():
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                old(); new(); old()
            assert [(one.category, str(one.message)) for one in seen] == [(Old, "use new")] * 2
        def test_an_error():
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                new()
                with pytest.raises(Old): old()
        class TestIt(unittest.TestCase):
            def test(self):
                with self.assertWarns(DeprecationWarning): old()
        """,
    ),
    "log records": (
        """
        import logging
        log = logging.getLogger("shop")
        def sell(n):
            log.debug("asked for %d", n)
            if n > 5: log.error("only %d", 5)
            else: log.info("sold %d", n)
        def fail():
            try: 1 / 0
            except ZeroDivisionError: log.exception("no")
        class Order:
            def __init__(self, n): self.n = n
        def ship(n, to): log.warning("shipped", extra={"order": Order(n), "parts": [n], "to": to})
        """,
        """
        import logging, unittest
        from solution import Order, fail, sell, ship
        class Listening(logging.Handler):
            def __init__(self):
                super().__init__()
                self.heard = []
            def emit(self, record): self.heard.append((record.getMessage(), record.to, record.funcName))
        def test_fields_of_its_own(caplog):
            ship(3, "Ada")
            record = caplog.records[0]
            assert (record.parts, record.to, record.funcName) == ([3], "Ada", "ship")
            assert isinstance(record.order, Order) and record.order.n == 3 and not hasattr(record, "price")
        def test_a_handler():
            listening = Listening()
            logging.getLogger().addHandler(listening)
            try: ship(1, "Bob")
            finally: logging.getLogger().removeHandler(listening)
            assert listening.heard == [("shipped", "Bob", "ship")]
        def test_errors_alone(caplog):
            sell(1); sell(6)
            assert caplog.record_tuples == [("shop", logging.ERROR, "only 5")]
        def test_infos(caplog):
            with caplog.at_level(logging.INFO): sell(2)
            assert [r.levelname for r in caplog.records] == ["INFO"] and "sold 2" in caplog.text
        def test_all(caplog):
            caplog.set_level(logging.DEBUG, logger="shop")
            sell(3)
            assert caplog.messages == ["asked for 3", "sold 3"]
        def test_exception(caplog):
            fail()
            assert caplog.records[0].exc_info[0] is ZeroDivisionError
        class TestIt(unittest.TestCase):
            def test(self):
                with self.assertLogs("shop", level="INFO") as seen: sell(2)
                self.assertEqual(seen.output, ["INFO:shop:sold 2"])
        """,
    ),
    "seeds": (
        """
        import random
        def roll(): return random.randint(1, 10**9)
        """,
        """
        import random
        from solution import roll
        def test_once():
            random.seed(42); a = roll()
            random.seed(42); b = roll()
            assert a == b
        def test_repeats():
            random.seed(42)
            first = [roll(), roll()]
            random.seed(42)
            assert [roll(), roll()] == first and first[0] != first[1]
            random.seed(43)
            assert roll() != first[0]
        """,
    ),
    "the environment, arguments, and decimals": (
        """
        import os, sys
        from decimal import Decimal
        def home(): return os.environ.get("SHOP_HOME", "/none")
        def arguments(): return sys.argv[1:]
        def third(): return Decimal(1) / 3
        """,
        """
        import os, sys
        from decimal import Decimal, localcontext
        from unittest.mock import patch
        from solution import arguments, home, third
        def test_environment(monkeypatch):
            assert home() == "/none"
            monkeypatch.setenv("SHOP_HOME", "/here")
            assert home() == "/here"
            with patch.dict(os.environ, {"SHOP_HOME": "/there"}): assert home() == "/there"
            assert home() == "/here"
        def test_as_it_was(): assert home() == "/none"
        def test_arguments(monkeypatch):
            monkeypatch.setattr(sys, "argv", ["shop", "-v", "x"])
            assert arguments() == ["-v", "x"]
            monkeypatch.setattr("sys.argv", ["shop"])
            assert arguments() == []
        def test_decimals():
            with localcontext() as context:
                context.prec = 3
                assert third() == Decimal("0.333")
            assert len(str(third())) == 30
        """,
    ),
    "functions of Python's that are patched": (
        """
        import time
        def ask():
            name = input("name? ")
            print("hello", name)
            return name
        def patient(f, tries):
            for n in range(tries):
                if f(): return n
                time.sleep(2 ** n)
            return None
        """,
        """
        from unittest.mock import call, patch
        from solution import ask, patient
        def test_input():
            with patch("builtins.input", side_effect=["Ada", "Bob"]) as given, patch("builtins.print") as shown:
                assert ask() == "Ada" and ask() == "Bob"
            given.assert_called_with("name? ")
            assert shown.call_args_list == [call("hello", "Ada"), call("hello", "Bob")]
        def test_monkeypatch(monkeypatch, capsys):
            monkeypatch.setattr("builtins.input", lambda prompt: "Eve")
            assert ask() == "Eve" and capsys.readouterr().out == "hello Eve\\n"
        @patch("time.sleep")
        def test_sleep(sleep):
            assert patient(lambda: False, 3) is None
            assert [one.args for one in sleep.call_args_list] == [(1,), (2,), (4,)]
        """,
    ),
    "StopIteration out of a function": (
        """
        def peek(xs):
            if not xs: raise StopIteration("empty")
            return xs[0]
        class Feed:
            def __init__(self, xs): self.xs = list(xs)
            def next_item(self):
                if not self.xs: raise StopIteration
                return self.xs.pop(0)
        """,
        """
        import pytest
        from solution import Feed, peek
        def test_function():
            with pytest.raises(StopIteration, match="empty"): peek([])
            pytest.raises(StopIteration, peek, [])
            assert list(map(peek, [[1], [2]])) == [1, 2]
        def test_method():
            feed = Feed([1])
            assert feed.next_item() == 1
            try: feed.next_item()
            except StopIteration: pass
            else: assert False
            assert peek([3]) == 3
        """,
    ),
    "exceptions of the test's own": (
        """
        def retry(times, kind, f):
            for _ in range(times):
                try: return f()
                except kind as error: last = error
            raise last
        def throw(error): raise error
        def make(kind, text): return kind(text)
        """,
        """
        import queue
        import pytest
        from solution import make, retry, throw
        class Base(Exception): pass
        class Mine(Base): pass
        def failing(error, times):
            seen = []
            def f():
                seen.append(1)
                if len(seen) <= times: raise error
                return len(seen)
            return f
        def test_caught():
            assert retry(3, Mine, failing(Mine("x"), 2)) == 3
            assert retry(3, Base, failing(Mine("x"), 2)) == 3
            assert retry(3, (ValueError, Mine), failing(Mine("x"), 1)) == 2
            assert retry(3, queue.Empty, failing(queue.Empty(), 1)) == 2
        def test_not_caught():
            with pytest.raises(Base): retry(3, Mine, failing(Base("x"), 1))
        def test_thrown():
            with pytest.raises(Mine, match="y") as found: throw(Mine("y"))
            assert type(found.value) is Mine
            with pytest.raises(Mine): throw(Mine)
        def test_made():
            made = make(Mine, "z")
            assert isinstance(made, Mine) and made.args == ("z",)
        """,
    ),
    "nodes of the test's own": (
        """
        def depth(root): return 0 if root is None else 1 + max(depth(root.left), depth(root.right))
        def reverse(head):
            last = None
            while head:
                head.next, last, head = last, head, head.next
            return last
        def total(head): return 0 if head is None else head.val + total(head.next)
        class Solution:
            def prepend(self, head, value):
                made = type(head)(value)
                made.next = head
                return made
        """,
        """
        from solution import Solution, depth, reverse, total
        class ListNode:
            def __init__(self, val=0, next=None): self.val, self.next = val, next
        class TreeNode:
            def __init__(self, val=0, left=None, right=None): self.val, self.left, self.right = val, left, right
        def listed(head):
            found = []
            while head: found.append(head.val); head = head.next
            return found
        def test_lists():
            head = ListNode(1, ListNode(2, ListNode(3)))
            assert total(head) == 6 and listed(reverse(head)) == [3, 2, 1] and head.next is None
            assert listed(Solution().prepend(head, 7)) == [7, 1]
        def test_trees(): assert depth(TreeNode(1, TreeNode(2), TreeNode(3, TreeNode(4)))) == 3 and depth(None) == 0
        """,
    ),
    "mocks and fakes": (
        """
        class Service:
            def __init__(self, store, clock=None): self.store, self.clock = store, clock
            def register(self, name):
                if self.store.exists(name): raise ValueError("taken")
                self.store.save(name, at=self.clock() if self.clock else 0)
                return len(self.store)
            def first(self): return self.store["first"]
            def all(self): return [x.upper() for x in self.store.names]
            def locked(self):
                with self.store: return "b" in self.store
            def add(self, name): self.store.names.append(name)
        def has(x, name): return hasattr(x, name)
        """,
        """
        from unittest.mock import MagicMock, Mock, call
        import pytest
        from solution import Service, has
        class Fake:
            limit = 2
            def __init__(self): self.names, self.log = ["a"], []
            def exists(self, name): return name in self.names
            def save(self, name, at): self.names.append(name)
            def __len__(self): return len(self.names)
            def __getitem__(self, key): return self.names[0]
            def __contains__(self, name): return name in self.names
            def __enter__(self): self.log.append("in"); return self
            def __exit__(self, *error): self.log.append("out")
        def test_fake():
            fake = Fake()
            service = Service(fake)
            assert service.register("b") == 2 and fake.names == ["a", "b"] and service.first() == "a" and service.all() == ["A", "B"]
            with pytest.raises(ValueError, match="taken"): service.register("a")
            assert service.locked() and fake.log == ["in", "out"]
            service.add("c")
            assert fake.names == ["a", "b", "c"]
            assert has(fake, "names") and has(fake, "limit") and not has(fake, "price")
        def test_mock():
            store = MagicMock()
            store.exists.return_value = False
            store.__len__.return_value = 5
            assert Service(store, clock=Mock(return_value=9)).register("x") == 5
            store.save.assert_called_once_with("x", at=9)
            assert store.method_calls == [call.exists("x"), call.save("x", at=9)]
            store.exists.return_value = True
            with pytest.raises(ValueError): Service(store).register("x")
            store.save.side_effect = OSError("full")
            store.exists.return_value = False
            with pytest.raises(OSError, match="full"): Service(store).register("y")
        """,
    ),
    "files, classes, enums and named tuples of the test's": (
        """
        import csv, json
        def greet(name, file): print("hello", name, file=file)
        def rows(file): return list(csv.reader(file))
        def dump(value, file): json.dump(value, file)
        def lines(file): return [line.strip() for line in file]
        def check(value, kind): return isinstance(value, kind)
        def build(kind, *args): return kind(*args)
        def names(colours): return [c.name for c in colours]
        def worth(items): return sum(i.price * i.n for i in items)
        def key(thing, cache):
            cache[thing] = cache.get(thing, 0) + 1
            return len(cache)
        def inside(thing): return vars(thing)
        def larger(a, b): return a if a > b else b
        """,
        """
        import io
        from collections import namedtuple
        from enum import Enum
        from types import SimpleNamespace
        from solution import build, check, dump, greet, inside, key, larger, lines, names, rows, worth
        class Colour(Enum): RED = 1; BLUE = 2
        class Animal:
            kingdom = "animals"
            def __init__(self, name): self.name = name
        class Dog(Animal):
            def __eq__(self, other): return isinstance(other, Dog) and self.name == other.name
            def __hash__(self): return hash(self.name)
            def __gt__(self, other): return self.name > other.name
        Item = namedtuple("Item", "price n")
        def test_files():
            file = io.StringIO()
            greet("Ada", file); dump({"a": [1]}, file)
            assert file.getvalue() == 'hello Ada\\n{"a": [1]}'
            assert rows(io.StringIO("a,b\\n1,2\\n")) == [["a", "b"], ["1", "2"]] and lines(io.StringIO("x\\ny\\n")) == ["x", "y"]
        def test_classes():
            assert check(Dog("a"), Animal) and check(Dog("a"), Dog) and not check(Animal("a"), Dog) and not check(3, Dog)
            dog = build(Dog, "rex")
            assert type(dog) is Dog and dog.name == "rex"
            assert inside(dog) == {"name": "rex"}
            assert key(Dog("a"), {}) == 1 and larger(Dog("a"), Dog("b")).name == "b"
        def test_others():
            assert names(Colour) == ["RED", "BLUE"] and names([Colour.RED]) == ["RED"]
            assert worth([Item(2, 3), Item(1, 1)]) == 7 and worth([SimpleNamespace(price=2, n=2)]) == 4
        """,
    ),
    "patches of the candidate's module and objects": (
        """
        import json, time
        class Api:
            def get(self, url): raise OSError(url)
        class Mailer:
            def send(self, text): raise OSError(text)
        def fetch(url): raise OSError(url)
        def title(url): return fetch(url).json()["title"]
        def notify(text):
            mailer = Mailer()
            return mailer.send(text)
        def stamp(): return time.time()
        def load(text): return json.loads(text)
        def words(path):
            with open(path) as file: return file.read().split()
        """,
        """
        from unittest.mock import Mock, mock_open, patch
        from solution import *
        import solution
        def test_returned_mock():
            with patch("solution.fetch") as fetch:
                fetch.return_value.json.return_value = {"title": "T"}
                assert title("u") == "T" and solution.fetch is fetch
                fetch.assert_called_once_with("u")
        def test_class():
            with patch("solution.Mailer") as mailer:
                mailer.return_value.send.return_value = 7
                assert notify("x") == 7 and solution.Mailer().send("y") == 7
            mailer.return_value.send.assert_any_call("x")
        def test_module_of_its():
            with patch("solution.time") as clock:
                clock.time.return_value = 5
                assert stamp() == 5
        def test_json():
            with patch("solution.json.loads", return_value=1): assert load("2") == 1
            assert load("2") == 2
        def test_open():
            with patch("solution.open", mock_open(read_data="a b"), create=True): assert words("x") == ["a", "b"]
        def test_objects(monkeypatch):
            api = Api()
            with patch.object(Api, "get", return_value=3): assert api.get("u") == 3
            with monkeypatch.context() as patched:
                patched.setattr(Api, "get", lambda self, url: url + "?")
                assert api.get("u") == "u?"
            monkeypatch.setattr(api, "get", lambda url: url + "!")
            assert api.get("u") == "u!"
        """,
    ),
    "generic classes, tuples with methods, and odd names": (
        """
        from typing import Generic, NamedTuple, TypeVar
        T = TypeVar("T")
        class Stack(Generic[T]):
            def __init__(self, *items): self.items = list(items)
            def pop(self): return self.items.pop()
        class Pay(NamedTuple):
            name: str
            hours: int
            def total(self): return 10 * self.hours
            @property
            def title(self): return self.name.title()
        def pay(): return Pay("ada", 3)
        def keyed(self, x): return (self, x)
        """,
        """
        import solution
        from solution import Stack, keyed
        def test():
            stack = Stack[int](1, 2)
            assert stack.pop() == 2 and isinstance(stack, Stack)
            assert solution.pay().total() == 30 and solution.pay() == ("ada", 3) and solution.pay().title == "Ada"
            assert keyed(self=1, x=2) == (1, 2)
        """,
    ),
    "what a program's objects say of themselves": (
        """
        from typing import TypedDict
        class Registry(type):
            known = []
            def __len__(cls): return len(cls.known)
        class Record(metaclass=Registry):
            size: int = 3
            def __init__(self, **fields): self.fields = fields
            def __dir__(self): return sorted(self.fields)
        class Point(TypedDict):
            x: int
        def area(w: float, h: float) -> float: return w * h
        """,
        """
        import typing
        import solution
        from solution import Point, Record, area
        def test():
            assert dir(Record(b=1, a=2)) == ["a", "b"] and not callable(Record()) and len(Record) == 0
            assert area.__annotations__["w"] is float and area.__module__ == "solution" and "area" in dir(solution)
            assert typing.get_type_hints(area)["return"] is float and Record.__annotations__ == {"size": int}
            assert Point(x=2) == {"x": 2}
        """,
    ),
    "lists that a callback changes": (
        """
        def walk(tree, visit):
            found = []
            def go(node):
                visit(node["value"], found)
                for child in node.get("children", []): go(child)
            go(tree)
            return found
        def shuffled(values, rng):
            values = list(values)
            rng.shuffle(values)
            return values
        def keys(mapping): return sorted(mapping.keys())
        """,
        """
        import random
        from collections import ChainMap, UserDict
        from solution import keys, shuffled, walk
        def test():
            tree = {"value": 1, "children": [{"value": 2}, {"value": 3}]}
            assert walk(tree, lambda value, found: found.append(10 * value)) == [10, 20, 30]
            expected = list(range(9))
            random.Random(3).shuffle(expected)
            assert shuffled(range(9), random.Random(3)) == expected
            assert keys(UserDict(a=1)) == ["a"] and keys(ChainMap({"a": 1}, {"b": 2})) == ["a", "b"]
        """,
    ),
    "threads of the test's": (
        """
        import threading
        class Counter:
            def __init__(self): self.n, self.lock = 0, threading.Lock()
            def add(self, k=1):
                with self.lock: self.n += k
                return [k]
        def apply(f, x): return f(x)
        """,
        """
        import threading
        from concurrent.futures import ThreadPoolExecutor
        from solution import Counter, apply
        def test_threads():
            counter = Counter()
            threads = [threading.Thread(target=counter.add) for _ in range(40)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            assert counter.n == 40
        def test_pool():
            counter = Counter()
            with ThreadPoolExecutor(8) as pool:
                assert list(pool.map(counter.add, range(200))) == [[k] for k in range(200)]
                assert list(pool.map(lambda x: apply(lambda y: counter.add(y + 1), x), range(100))) == [[k + 1] for k in range(100)]
            assert counter.n == 19900 + 5050
        """,
    ),
    "what else passes": (
        """
        import re
        def names(d): return d.keys()
        def pairs(d): return d.items()
        def read(path): return open(path)
        def find(pattern, text): return isinstance(pattern, re.Pattern) and re.findall(pattern, text)
        def described(f): return f.unit
        def pattern(text): return re.compile(text)
        """,
        """
        import re
        import pytest
        from solution import described, find, names, pairs, pattern, read
        def metres(): return 1
        metres.unit = "m"
        def test():
            assert names({"a": 1}) == {"a"} and list(pairs({"a": 1})) == [("a", 1)]
            assert find(re.compile("A", re.I), "aA") == ["a", "A"] and described(metres) == "m"
            assert isinstance(pattern("x"), re.Pattern)
            with pytest.raises(FileNotFoundError) as found: read("/none")
            assert found.value.filename == "/none" and found.value.errno == 2
        """,
    ),
    "streams that a test puts in place of its own": (
        """
        import sys
        def total():
            return sum(int(line) for line in sys.stdin)
        def greet():
            print("Hello,", input())
        def warn(text): print(text, file=sys.stderr)
        """,
        """
        import io
        from unittest.mock import patch
        from solution import greet, total, warn
        def test_stdin(monkeypatch):
            monkeypatch.setattr("sys.stdin", io.StringIO("1\\n2\\n"))
            assert total() == 3
        def test_both():
            with patch("sys.stdin", io.StringIO("Ada\\n")), patch("sys.stdout", new_callable=io.StringIO) as out:
                greet()
            assert out.getvalue() == "Hello, Ada\\n"
        def test_stderr():
            with patch("sys.stderr", io.StringIO()) as errors:
                warn("careful")
            assert errors.getvalue() == "careful\\n"
        """,
    ),
    "exceptions that derive from Python's special ones": (
        """
        class Lost(ConnectionError):
            def __init__(self, host):
                super().__init__(f"lost {host}")
                self.host = host
        class Gone(FileNotFoundError): pass
        class Late(TimeoutError): pass
        class Quit(SystemExit): pass
        class Stop(KeyboardInterrupt): pass
        def fail(kind, *args): raise kind(*args)
        """,
        """
        import pytest
        from solution import Gone, Late, Lost, Quit, Stop, fail
        def test_lost():
            with pytest.raises(ConnectionError, match="lost a") as found: fail(Lost, "a")
            assert found.value.host == "a" and isinstance(found.value, OSError)
        @pytest.mark.parametrize("kind", [Gone, Late, Quit, Stop])
        def test_others(kind):
            with pytest.raises(kind): fail(kind, "x")
        """,
    ),
    "classes of plain data within others": (
        """
        from collections import namedtuple
        from enum import IntEnum
        from typing import NamedTuple
        class Grid:
            class Cell(NamedTuple):
                row: int
                column: int
            class Word(str):
                def shout(self): return self.upper()
            class Suit(IntEnum):
                HEARTS = 1
        def kind(): return namedtuple("Pair", "a b")
        KINDS = {"point": namedtuple("Point", "x")}
        """,
        """
        from solution import KINDS, Grid, kind
        def test_nested():
            assert Grid.Cell(1, 2).row == 1 and Grid.Cell(1, 2) == (1, 2)
            assert Grid.Suit(1) == 1 and Grid.Suit.HEARTS.name == "HEARTS"
            assert Grid.Word("a").shout() == "A"
        def test_given():
            assert kind()(1, 2) == (1, 2) and kind()(1, 2).a == 1
            assert KINDS["point"](3).x == 3
        """,
    ),
    "fields of exceptions": (
        """
        class NotThere(OSError):
            def __init__(self, path): super().__init__(2, "no such thing", path); self.path = path
        class Bad(OSError): pass
        def f(p): raise NotThere(p)
        def g(p): raise Bad(5, "m", p)
        def h(): raise ImportError("no", name="x", path="y")
        def k(): raise AttributeError("a", name="foo")
        class Mine(AttributeError):
            def __init__(self, n): super().__init__("none", name=n)
        def l(n): raise Mine(n)
        def m(): open("/nowhere")
        def n(): raise UnicodeDecodeError("utf-8", b"abc", 0, 1, "why")
        def o(): b"\\xff".decode()
        class S(SystemExit): pass
        def q(): raise S(3)
        class St(StopIteration): pass
        def grp(): raise ExceptionGroup("many", [ValueError(1), KeyError("k")])
        def syn(): compile("a b", "f", "exec")
        def dd(): {}.foo
        def nn(): undefined_thing
        """,
        """
        import pytest
        from solution import *
        def test():
            with pytest.raises(NotThere) as e: f("p")
            assert (e.value.errno, e.value.strerror, e.value.filename, e.value.path) == (2, "no such thing", "p", "p")
            with pytest.raises(Bad) as e: g("p")
            assert (e.value.errno, e.value.strerror, e.value.filename) == (5, "m", "p")
            with pytest.raises(ImportError) as e: h()
            assert (e.value.name, e.value.path, e.value.msg) == ("x", "y", "no")
            with pytest.raises(AttributeError) as e: k()
            assert e.value.name == "foo"
            with pytest.raises(Mine) as e: l("foo")
            assert e.value.name == "foo"
            with pytest.raises(FileNotFoundError) as e: m()
            assert e.value.errno == 2 and e.value.filename == "/nowhere"
            with pytest.raises(UnicodeDecodeError) as e: n()
            assert (e.value.encoding, e.value.object, e.value.start, e.value.end, e.value.reason) == ("utf-8", b"abc", 0, 1, "why")
            with pytest.raises(UnicodeError) as e: o()
            assert e.value.object == b"\\xff"
            with pytest.raises(S) as e: q()
            assert e.value.code == 3
            with pytest.raises(ExceptionGroup) as e: grp()
            assert e.value.message == "many" and len(e.value.exceptions) == 2
            with pytest.raises(SyntaxError) as e: syn()
            assert e.value.lineno == 1
            with pytest.raises(AttributeError) as e: dd()
            assert e.value.name == "foo"
            with pytest.raises(NameError) as e: nn()
            assert e.value.name == "undefined_thing"
        """,
    ),
    "arguments that are kept": (
        """
        class Logger:
            def __init__(self, lines): self.lines = lines
            def write(self, x): self.lines.append(x)
            def size(self): return len(self.lines)
            def add(self, x): self.lines.append(x); return self
        class Grid:
            def __init__(self, rows=None, *, name=None): self.rows = rows; self.name = name
            def __setitem__(self, k, v): self.rows[k] = v
            def __getitem__(self, k): return self.rows[k]
            def __delitem__(self, k): del self.rows[k]
            def __enter__(self): self.rows["in"] = 1; return self
            def __exit__(self, *a): self.rows["out"] = 1
            def clear(self): self.rows.clear()
        class Copy:
            def __init__(self, items): self.items = list(items)
            def add(self, x): self.items.append(x)
        from contextlib import contextmanager
        @contextmanager
        def tag(out):
            out.append("in")
            try: yield "tag"
            except KeyError: out.append("failed"); raise
            out.append("out")
        def process(items, errors):
            for item in items:
                if item < 0: errors.append(item); raise ValueError(item)
        class Form:
            def __init__(self, log): self.log = log
            @property
            def name(self): return "?"
            @name.setter
            def name(self, value): self.log.append(f"set {value}")
            @name.deleter
            def name(self): self.log.append("deleted")
            def fill(self, value): self.log.append(value); raise TypeError(value)
        class Heap:
            def __init__(self, items): items.sort(); self.items = items
            def push(self, x): self.items.append(x)
        class Counter_:
            def __init__(self): self.seen = None
            def use(self, seen): self.seen = seen; return 5
            def mark(self, x): self.seen.add(x)
        KEPT = []
        def keep(x): KEPT.append(x)
        def push(v): KEPT[-1].append(v)
        def gen(items):
            for i in items: yield i
        def scheduler(queue):
            def run(x): queue.append(x)
            return run
        """,
        """
        import pytest
        from solution import *
        def test_log():
            log = []
            logger = Logger(log)
            logger.write(1); logger.write(2)
            assert log == [1, 2]
            log.append(3)
            assert logger.size() == 3
            log.clear()
            assert logger.size() == 0
            logger.write(7)
            assert log == [7] and logger.lines == [7] and logger.lines is log
        def test_two():
            log = []
            a, b = Logger(log), Logger(log)
            a.write(1); b.write(2)
            assert log == [1, 2] and a.size() == b.size() == 2
        def test_grid():
            rows = {"a": 1}
            grid = Grid(rows)
            grid["b"] = 2
            assert rows == {"a": 1, "b": 2}
            del grid["a"]
            assert rows == {"b": 2}
            rows["c"] = 3
            assert grid["c"] == 3
            with grid: pass
            assert rows == {"b": 2, "c": 3, "in": 1, "out": 1}
            grid.clear()
            assert rows == {}
            named = Grid(rows=rows, name="x")
            rows["z"] = 1
            assert named["z"] == 1
        def test_copy():
            items = [1]
            c = Copy(items)
            c.add(2)
            assert items == [1] and c.items == [1, 2]
            items.append(5)
            assert c.items == [1, 2]
        def test_set():
            seen = set()
            c = Counter_()
            assert c.use(seen) == 5
            c.mark(1); c.mark(2)
            assert seen == {1, 2}
        def test_function():
            x = []
            keep(x); push(1)
            assert x == [1]
            y = [5]
            keep(y); push(2)
            assert x == [1] and y == [5, 2]
        def test_gen():
            items = [1, 2]
            g = gen(items)
            assert next(g) == 1
            items.append(3)
            assert list(g) == [2, 3]
        def test_closure():
            q = []
            run = scheduler(q)
            run(1); run(2)
            assert q == [1, 2]
        def test_context_managers():
            out = []
            with tag(out) as name: out.append("body")
            assert out == ["in", "body", "out"] and name == "tag"
            with pytest.raises(KeyError), tag(out): raise KeyError
            assert out[3:] == ["in", "failed"]
        def test_what_is_raised():
            errors = []
            with pytest.raises(ValueError): process([1, -2], errors)
            assert errors == [-2]
            form = Form(errors)
            with pytest.raises(TypeError): form.fill("x")
            assert errors == [-2, "x"]
        def test_attributes():
            log = []
            form = Form(log)
            form.name = "Ada"
            del form.name
            assert log == ["set Ada", "deleted"]
        def test_nested():
            rows = [[0, 0], [0, 0]]
            log = Logger(rows)
            rows[0][1] = 5
            assert log.lines == [[0, 5], [0, 0]]
            log.write([1])
            assert rows == [[0, 5], [0, 0], [1]]
        """,
    ),
    "exceptions of the standard library": (
        """
        import argparse, asyncio, graphlib, http.client, ipaddress, json, pickle, smtplib, sqlite3, statistics, urllib.error
        class Duplicate(sqlite3.IntegrityError): pass
        class Stopped(asyncio.CancelledError): pass
        def order(graph): return list(graphlib.TopologicalSorter(graph).static_order())
        def mean(xs): return statistics.mean(xs)
        def insert():
            table = sqlite3.connect(":memory:")
            table.execute("create table t(x primary key)")
            for _ in range(2): table.execute("insert into t values(1)")
        def add(): raise Duplicate("dup")
        def stop(): raise Stopped("x")
        def cancel(): raise asyncio.CancelledError
        def address(text): return str(ipaddress.IPv4Address(text))
        def load(data): return pickle.loads(data)
        def guarded(f):
            try: return f()
            except sqlite3.IntegrityError: return "twice"
            except urllib.error.HTTPError as error: return error.code, error.reason
            except urllib.error.URLError as error: return str(error.reason)
            except smtplib.SMTPException as error: return error.smtp_code
            except json.JSONDecodeError as error: return error.msg, error.pos
            except http.client.IncompleteRead as error: return error.partial
        """,
        """
        import asyncio, graphlib, http.client, ipaddress, json, pickle, smtplib, sqlite3, statistics, urllib.error
        from unittest.mock import Mock
        import pytest
        from solution import Duplicate, Stopped, add, address, cancel, guarded, insert, load, mean, order, stop
        def test_raised():
            with pytest.raises(graphlib.CycleError) as caught: order({"a": ["b"], "b": ["a"]})
            assert "a" in caught.value.args[1]
            with pytest.raises(statistics.StatisticsError): mean([])
            with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"): insert()
            with pytest.raises(ipaddress.AddressValueError): address("x")
            with pytest.raises(pickle.UnpicklingError): load(b"x")
            with pytest.raises(asyncio.CancelledError): cancel()
        def test_derived():
            with pytest.raises(sqlite3.Error, match="dup") as caught: add()
            assert type(caught.value) is Duplicate and issubclass(Duplicate, sqlite3.IntegrityError)
            with pytest.raises(asyncio.CancelledError, match="x") as caught: stop()
            assert type(caught.value) is Stopped
        @pytest.mark.parametrize(("error", "said"), [
            (sqlite3.IntegrityError("x"), "twice"),
            (urllib.error.HTTPError("u", 404, "not there", {}, None), (404, "not there")),
            (urllib.error.URLError("down"), "down"),
            (smtplib.SMTPAuthenticationError(535, b"no"), 535),
            (json.JSONDecodeError("bad", "text", 2), ("bad", 2)),
            (http.client.IncompleteRead(b"a"), b"a"),
        ])
        def test_given(error, said): assert guarded(Mock(side_effect=error)) == said
        """,
    ),
    "simple namespaces": (
        """
        from types import SimpleNamespace
        class Point:
            def __init__(self, n): self.n = n
            def __eq__(self, other): return isinstance(other, Point) and self.n == other.n
        def parse(text):
            name, n = text.split(",")
            return SimpleNamespace(name=name, n=int(n), deep=SimpleNamespace(xs=[1], point=Point(n)))
        def rows(n): return [SimpleNamespace(i=i) for i in range(n)]
        """,
        """
        from types import SimpleNamespace
        from solution import Point, parse, rows
        def test_equal():
            assert parse("a,1") == SimpleNamespace(name="a", n=1, deep=SimpleNamespace(xs=[1], point=Point("1")))
            assert rows(2) == [SimpleNamespace(i=0), SimpleNamespace(i=1)] and SimpleNamespace(i=0) == rows(1)[0]
        def test_differ():
            assert rows(1) != [SimpleNamespace(i=5)] and rows(1)[0] != SimpleNamespace(i=0, j=1) and rows(1)[0] != 3
        def test_is_one():
            row = rows(1)[0]
            row.i = 5
            assert isinstance(row, SimpleNamespace) and row == SimpleNamespace(i=5) and repr(row) == "namespace(i=5)"
        """,
    ),
    "a process that has ended": (
        """
        import subprocess
        def branch():
            done = subprocess.run(["git", "branch"], capture_output=True, text=True)
            if done.returncode == 2: raise RuntimeError(done.stderr)
            done.check_returncode()
            return done.stdout.strip()
        """,
        """
        import subprocess
        from unittest.mock import patch
        import pytest
        from solution import branch
        @patch("solution.subprocess.run")
        def test(run):
            run.return_value = subprocess.CompletedProcess(["git"], 0, stdout=" main ")
            assert branch() == "main"
            run.return_value = subprocess.CompletedProcess(["git"], 2, "", "bad")
            with pytest.raises(RuntimeError, match="bad"): branch()
            run.return_value = subprocess.CompletedProcess(["git"], 1)
            with pytest.raises(subprocess.CalledProcessError): branch()
        """,
    ),
}


def honest() -> dict[str, tuple[str, str]]:
    """Programs that are right, with test files, by what these are about."""
    return unindented(_CASES)
