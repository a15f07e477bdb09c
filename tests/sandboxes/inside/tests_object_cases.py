"""Programs that use what the tests give them of their own classes: right ones, and faulty ones that plain Python fails."""

from __future__ import annotations

from textwrap import dedent

_HTTP_ERROR = """
        class HttpError(Exception):
            limit = 3
            def __init__(self, status, headers=()):
                super().__init__(f"status {status}")
                self.status, self.headers = status, headers
            def __str__(self): return f"HTTP {self.status}"
            @property
            def is_transient(self): return self.status >= 500
        def fails(times, error):
            left = [error] * times
            def call():
                if left: raise left.pop()
                return "ok"
            return call
"""
_CASES: dict[str, tuple[str, str, str]] = {
    "an exception's attributes": (
        """
        def retry(call, times):
            for _ in range(times):
                try: return call()
                except Exception as error:
                    if getattr(error, "status", 0) != 503: raise
        """,
        """
        def retry(call, times):
            for _ in range(times):
                try: return call()
                except Exception: pass
        """,
        f"""
        import pytest
        from solution import retry
        {_HTTP_ERROR}
        def test_again(): assert retry(fails(2, HttpError(503)), 5) == "ok"
        def test_not_again():
            with pytest.raises(HttpError) as caught: retry(fails(1, HttpError(404)), 5)
            assert caught.value.status == 404 and str(caught.value) == "HTTP 404"
        """,
    ),
    "an exception's text, property and class attribute": (
        """
        def tell(call):
            try: call()
            except Exception as error:
                return f"{type(error).__name__}: {error}", error.is_transient, error.limit, hasattr(error, "code"), error.headers
        """,
        """
        def tell(call):
            try: call()
            except Exception as error:
                return f"{type(error).__name__}: {error.args[0]}", True, 3, False, {"a": [1]}
        """,
        f"""
        from solution import tell
        {_HTTP_ERROR}
        def test():
            assert tell(fails(1, HttpError(503, {{"a": [1]}}))) == ("HttpError: HTTP 503", True, 3, False, {{"a": [1]}})
        """,
    ),
    "what a program notes in an exception": (
        """
        def run(call):
            try: return call()
            except Exception as error:
                error.status += 1
                error._seen = True
                error.add_note("in run")
                assert error._seen and str(error) == f"HTTP {error.status}"
                raise
        """,
        "def run(call): return call()",
        f"""
        import pytest
        from solution import run
        {_HTTP_ERROR}
        def test():
            with pytest.raises(HttpError) as caught: run(fails(1, HttpError(500)))
            assert caught.value.status == 501
        """,
    ),
    "an attribute of an exception of Python's own": (
        """
        def code(call):
            try: call()
            except ValueError as error: return error.code
        """,
        "def code(call): return None",
        """
        from solution import code
        def test():
            def call():
                error = ValueError("x")
                error.code = 4
                raise error
            assert code(call) == 4
        """,
    ),
    "copies of an object": (
        """
        import copy
        class Registry:
            def __init__(self): self.known = {}
            def add(self, name, item): self.known[name] = item
            def make(self, name, deep, **changes):
                made = (copy.deepcopy if deep else copy.copy)(self.known[name])
                for key, value in changes.items(): setattr(made, key, value)
                return made
        """,
        """
        class Registry:
            def __init__(self): self.known = {}
            def add(self, name, item): self.known[name] = item
            def make(self, name, deep, **changes):
                for key, value in changes.items(): setattr(self.known[name], key, value)
                return self.known[name]
        """,
        """
        import pytest
        from solution import Registry
        class Car:
            def __init__(self): self.color, self.parts, self._secret = "red", [1], 7
            def secret(self): return self._secret
        @pytest.mark.parametrize("deep", [False, True])
        def test(deep):
            registry, car = Registry(), Car()
            registry.add("car", car)
            other = registry.make("car", deep, color="blue")
            assert (car.color, other.color, other.secret()) == ("red", "blue", 7)
            assert type(other) is Car and other is not car and (other.parts is car.parts) is not deep
        """,
    ),
    "a copy has what was changed before": (
        "import copy\ndef grown(item):\n    item.parts.append(2)\n    made = copy.deepcopy(item)\n    item.parts.append(3)\n    return made",
        "def grown(item):\n    item.parts.append(2)\n    item.parts.append(3)\n    return item",
        """
        from solution import grown
        class Car:
            def __init__(self): self.parts = [1]
        def test():
            car = Car()
            assert grown(car).parts == [1, 2] and car.parts == [1, 2, 3]
        """,
    ),
    "the names of an object": (
        """
        def fill(item, **values):
            item.__dict__["a"] = 5
            item.__dict__.update(values)
            vars(item).pop("b")
            return item.a, dict(vars(item)), hasattr(item, "b")
        """,
        """
        def fill(item, **values):
            found = dict(vars(item), a=5, **values)
            found.pop("b")
            return 5, found, False
        """,
        """
        from solution import fill
        class Item:
            def __init__(self): self.b = 1
        def test():
            item = Item()
            assert fill(item, c=6) == (5, {"a": 5, "c": 6}, False)
            assert vars(item) == {"a": 5, "c": 6}
        """,
    ),
    "what is no method of a class": (
        """
        class Mailer:
            def send(self, text): raise OSError
            def key(self, row): raise OSError
        def join(who):
            mailer = Mailer()
            return mailer.send("hi " + who), mailer.key([3, 4])
        """,
        "class Mailer: pass\ndef join(who): return None, 4",
        """
        from functools import partial
        from operator import itemgetter
        import pytest
        from solution import Mailer, join
        def note(log, text): log.append(text)
        @pytest.mark.parametrize("way", ["builtin", "partial"])
        def test(monkeypatch, way):
            sent = []
            monkeypatch.setattr(Mailer, "send", sent.append if way == "builtin" else partial(note, sent), raising=False)
            monkeypatch.setattr(Mailer, "key", itemgetter(1), raising=False)
            assert join("bob") == (None, 4) and sent == ["hi bob"]
        def test_methods_are(monkeypatch):
            monkeypatch.setattr(Mailer, "send", lambda self, text: type(self).__name__ + text, raising=False)
            monkeypatch.setattr(Mailer, "key", lambda self, row: len(row), raising=False)
            assert join("bob") == ("Mailerhi bob", 2)
        """,
    ),
    "attributes of a function": (
        """
        def square(x):
            if x not in square.known:
                square.computed += 1
                square.known[x] = x * x
            return square.known[x]
        square.computed, square.known = 0, {}
        def greet(name): return getattr(greet, "prefix", "hi ") + name
        """,
        """
        def square(x):
            square.computed += 1
            return x * x
        square.computed = 0
        def greet(name): return getattr(greet, "prefix", "hi ") + name
        """,
        """
        from unittest.mock import Mock, patch
        import pytest
        from solution import greet, square
        def test_counter():
            square.computed = 0
            assert square(4) == square(4) == 16 and square.computed == 1
        def test_option(monkeypatch):
            monkeypatch.setattr(greet, "prefix", "yo ", raising=False)
            assert greet("x") == "yo x"
            monkeypatch.undo()
            assert greet("x") == "hi x" and not hasattr(greet, "prefix")
        def test_patch():
            with patch.object(square, "computed", 5): assert square(7) == 49 and square.computed == 6
            assert square.computed < 5
            with pytest.raises(AttributeError): del greet.prefix
        """,
    ),
    "a mock with a spec of the test's own": (
        """
        class Container:
            def __init__(self): self.known = {}
            def bind(self, interface, made):
                if not isinstance(made, interface): raise TypeError(interface.__name__)
                self.known[interface] = made
        """,
        """
        class Container:
            def __init__(self): self.known = {}
            def bind(self, interface, made): self.known[interface] = made
        """,
        """
        from unittest.mock import Mock
        import pytest
        from solution import Container
        class Repo:
            def get(self, key): ...
        class Other: pass
        def test():
            container, repo = Container(), Mock(spec=Repo)
            container.bind(Repo, repo)
            assert container.known[Repo] is repo
            with pytest.raises(TypeError): container.bind(Repo, Mock())
            with pytest.raises(TypeError): container.bind(Other, repo)
        """,
    ),
    "a class that counts its calls, which the test makes": (
        """
        class Spy:
            def __init__(self, answer): self.answer, self.call_args_list = answer, []
            def __call__(self, *args):
                self.call_args_list.append(args)
                return self.answer
            def assert_called_once_with(self, *args):
                if self.call_args_list != [args]: raise AssertionError(self.call_args_list)
        """,
        """
        class Spy:
            def __init__(self, answer): self.answer, self.call_args_list = answer, []
            def __call__(self, *args): return self.answer
            def assert_called_once_with(self, *args): pass
        """,
        """
        import pytest
        from solution import Spy
        def test():
            spy = Spy(3)
            assert spy(1) == 3 and spy.call_args_list == [(1,)]
            spy.assert_called_once_with(1)
            with pytest.raises(AssertionError): spy.assert_called_once_with(2)
        """,
    ),
}


def pairs() -> dict[str, tuple[str, str, str]]:
    """Return by name a right program, a faulty one, and their file of tests."""
    return {
        name: (dedent(right).strip(), dedent(faulty).strip(), dedent(code).strip())
        for name, (right, faulty, code) in _CASES.items()
    }
