"""Who answers what a test asks: what the program puts in the place of a mock, or gives where plain data is expected, answers nothing; the
test's own mocks and methods answer as they do in plain Python."""

from __future__ import annotations

from collections.abc import AsyncIterator
from textwrap import dedent

import pytest

from agentrl.sandboxes import BackendName, Limits, SandboxPool, SandboxSpec, TestFile, grade, open_pool
from tests.sandboxes.plain_python import passes_in_plain_python
from tests.sandboxes.rings import gate

pytestmark = pytest.mark.anyio

MOCKED = """
    from unittest.mock import patch
    import solution
    def test():
        with patch("solution.send"):
            solution.notify("bob")
            {}
"""
ASSERTED = 'solution.send.assert_called_once_with("bob", "hello bob")'
COUNTED = 'assert solution.send.call_count == 1 and solution.send.call_args[0] == ("bob", "hello bob")'
ATTRIBUTE = """
    from unittest.mock import Mock
    from solution import Sender
    def test():
        sender = Sender()
        sender.out = Mock()
        sender.run(5)
        sender.out.assert_called_once_with(5, "hello")
"""
TEXT = "from solution import name\ndef test(): assert name().startswith('abc')"
ORDER = "from solution import name\ndef test(): assert name().index('a') < name().index('b')"
COUNT = "from solution import name\ndef test(): assert name().count('z') == 1"

IMPOSTORS: dict[str, tuple[str, str]] = {
    f"{asked} {what}": (f"from collections import namedtuple\ndef send(to, text): pass\n{dedent(source)}", code)
    for asked, code in (("asserted", MOCKED.format(ASSERTED)), ("counted", MOCKED.format(COUNTED)))
    for what, source in {
        "of a named tuple": """
            class Out(namedtuple("Out", "call_count called call_args")):
                def assert_called_once_with(self, *args): return None
            def notify(to):
                global send
                send = Out(1, True, [(to, "hello " + to)])
        """,
        "of a named tuple's properties": """
            class Out(namedtuple("Out", "to")):
                call_count = property(lambda self: 1)
                call_args = property(lambda self: [(self.to, "hello " + self.to)])
                def assert_called_once_with(self, *args): return None
            def notify(to):
                global send
                send = Out(to)
        """,
        "of an exception": """
            def notify(to):
                global send
                send = ValueError()
                send.assert_called_once_with = lambda *args: None
                send.call_count, send.called, send.call_args = 1, True, [(to, "hello " + to)]
        """,
        "of a class": """
            def notify(to):
                global send
                class send:
                    call_count, called, call_args = 1, True, [(to, "hello " + to)]
                    assert_called_once_with = staticmethod(lambda *args: None)
        """,
        "of a function": """
            def notify(to):
                global send
                def send(*args): return None
                send.assert_called_once_with = lambda *args: None
                send.call_count, send.called, send.call_args = 1, True, [(to, "hello " + to)]
        """,
    }.items()
}
IMPOSTORS["an attribute's mock"] = (
    """
    from collections import namedtuple
    class Out(namedtuple("Out", "a")):
        def assert_called_once_with(self, *args): return None
    class Sender:
        def run(self, x): self.out = Out(1)
    """,
    ATTRIBUTE,
)
BELOW = """
    from unittest.mock import patch
    import solution
    def test():
        with patch("solution.client"):
            solution.notify("bob")
            {}
"""
FAKE = """
    import solution
    class Fake:
        def __init__(self): self.sent = []
        def send(self, *what): self.sent.append(what)
    def test(monkeypatch):
        monkeypatch.setattr(solution, "client", Fake())
        solution.notify("bob")
        assert solution.client.sent == [("bob", "hello bob")]
"""
for what, source in {
    "a class": """
        class client:
            sent = [("bob", "hello bob")]
            class send: call_count, called, call_args = 1, True, [("bob", "hello bob")]
    """,
    "a named tuple": """
        A, B = namedtuple("A", "send sent"), namedtuple("B", "call_count called call_args")
        client = A(B(1, True, [("bob", "hello bob")]), [("bob", "hello bob")])
    """,
    "an exception": """
        client = ValueError()
        client.send = ValueError()
        client.send.call_count, client.send.call_args = 1, [("bob", "hello bob")]
        client.sent = [("bob", "hello bob")]
    """,
}.items():
    program = "from collections import namedtuple\nclient = None\ndef notify(to):\n    global client\n" + dedent(
        source
    ).replace("\n", "\n    ")
    asked = "assert solution.client.send.call_count == 1 and solution.client.send.call_args[0] == ('bob', 'hello bob')"
    IMPOSTORS[f"below a mock: {what}"] = program, BELOW.format(asked)
    IMPOSTORS[f"a fake of the test's: {what}"] = program, FAKE
for what, made in {
    "a named tuple": "namedtuple('B', 'called call_count call_args')(True, 1, [('bob', 'hello bob')])",
    "an exception": "error",
    "an object": "O()",
}.items():
    program = f"""
from collections import namedtuple
error = ValueError()
error.called, error.call_count, error.call_args = True, 1, [("bob", "hello bob")]
class O: called, call_count, call_args = True, 1, [("bob", "hello bob")]
HANDLERS = {{}}
def notify(to): HANDLERS["x"] = {made}
def tell(out, to): out.send = {made}
"""
    IMPOSTORS[f"an item of a dict that is patched: {what}"] = (
        program,
        """
        from unittest.mock import Mock, patch
        import solution
        def test():
            with patch.dict("solution.HANDLERS", {"x": Mock()}):
                solution.notify("bob")
                assert solution.HANDLERS["x"].call_count == 1
                assert solution.HANDLERS["x"].call_args[0] == ("bob", "hello bob")
        """,
    )
    IMPOSTORS[f"an attribute of a mock: {what}"] = (
        program,
        """
        from unittest.mock import Mock
        import solution
        def test():
            out = Mock()
            solution.tell(out, "bob")
            assert out.send.called and out.send.call_count == 1 and out.send.call_args[0] == ("bob", "hello bob")
        """,
    )
for what, given in {
    "the fields of a named tuple": "namedtuple('N', 'startswith index count')(bool, ord, len)",
    "an object with functions of Python's own": "K()",
}.items():
    program = f"from collections import namedtuple\nclass K: startswith, index, count = bool, ord, len\ndef name(): return {given}"
    for asked, code in (("a text", TEXT), ("an order", ORDER), ("a count", COUNT)):
        IMPOSTORS[f"{what} for {asked}"] = program, code
for what, made in {
    "an exception": "found = ValueError('q')",
    "a class": "class found: pass",
    "a function": "found = lambda: 1",
    "a method": "class K:\n        def m(self): pass\n    K.m.startswith = K.m.index = K.m.count = yes\n    return K().m",
}.items():
    body = f"""
def yes(*args):
    global last
    last = last + 1 if args != ("z",) else 1
    return last
last = 0
def name():
    {made}
    found.startswith = found.index = found.count = yes
    return found
"""
    for asked, code in (("a text", TEXT), ("an order", ORDER), ("a count", COUNT)):
        IMPOSTORS[f"{what} for {asked}"] = body, code

HONEST: dict[str, tuple[str, str, bool]] = {
    "a method of the test's is itself": (
        """
        class Bus:
            def __init__(self): self.seen = []
            def on(self, f): self.seen.append(f)
            def off(self, f): self.seen.remove(f)
            def has(self, f): return f in self.seen
        """,
        """
        from solution import Bus
        class Own:
            def on(self): pass
        def test():
            bus, own, got = Bus(), Own(), []
            bus.on(own.on), bus.on(got.append)
            assert bus.has(own.on) and bus.has(got.append) and not bus.has(Own().on) and not bus.has([].append)
            bus.off(own.on), bus.off(got.append)
            assert not bus.has(own.on) and not bus.has(got.append)
        """,
        True,
    ),
    "who takes nothing off still has it": (
        "class Bus:\n def __init__(self): self.seen = []\n def on(self, f): self.seen.append(f)\n"
        " def off(self, f): pass\n def has(self, f): return f in self.seen",
        """
        from solution import Bus
        class Own:
            def on(self): pass
        def test():
            bus, own = Bus(), Own()
            bus.on(own.on)
            bus.off(own.on)
            assert not bus.has(own.on)
        """,
        False,
    ),
    "a service that hands on what a mock says": (
        "class Service:\n def __init__(self, repo): self.repo = repo\n def find(self, key): return self.repo.get(key)",
        """
        from unittest.mock import Mock
        from solution import Service
        def test():
            repo = Mock()
            repo.get.return_value = 3
            assert Service(repo).find("x") == 3
            repo.get.assert_called_once_with("x")
        """,
        True,
    ),
    "a service that makes something of what it is told": (
        """
        import json
        def fetch(url): raise OSError
        class Service:
            def __init__(self, repo): self.repo, self.known = repo, {}
            def find(self, key):
                if key not in self.known: self.known[key] = self.repo.get(key)["name"]
                return self.known[key]
            def count(self, state): return len(self.repo.by(state))
            def index(self, url): return json.loads(fetch(url))["id"]
        """,
        """
        from unittest.mock import Mock, patch
        from solution import Service
        class Repo:
            def get(self, key): return {"name": "Eve"}
            def by(self, state): return [1]
        def test():
            repo = Mock()
            repo.get.return_value, repo.by.return_value = {"name": "Bob"}, [1, 2]
            service = Service(repo)
            assert service.find(1) == "Bob" and service.find(1) == "Bob" and service.count("open") == 2
            repo.get.assert_called_once_with(1)
            assert Service(Repo()).find(2) == "Eve" and Service(Repo()).count("open") == 1
        @patch("solution.fetch")
        def test_fetch(fetch):
            fetch.return_value = '{"id": 7}'
            assert Service(None).index("u") == 7
        """,
        True,
    ),
    "who looks for the very method finds another": (
        "class Bus:\n def __init__(self): self.seen = []\n def on(self, f): self.seen.append(f)\n"
        " def off(self, f): self.seen = [g for g in self.seen if g is not f]\n def fire(self): [f() for f in self.seen]",
        """
        from solution import Bus
        class Own:
            def __init__(self): self.got = 0
            def on(self): self.got += 1
        def test():
            bus, own = Bus(), Own()
            bus.on(own.on)
            bus.off(own.on)
            bus.fire()
            assert own.got == 0
        """,
        False,
    ),
    "a method of the test's is bound to its object": (
        """
        import weakref
        class Bus:
            def __init__(self): self.seen = []
            def on(self, f): self.seen.append(weakref.WeakMethod(f))
            def fire(self, x): return [f()(x) for f in self.seen]
            def owner(self, f): return f.__self__
        """,
        """
        from solution import Bus
        class Own:
            def on(self, x): return x + 1
        def test():
            bus, own = Bus(), Own()
            bus.on(own.on)
            assert bus.owner(own.on) is own and bus.fire(3) == [4]
        """,
        True,
    ),
    "a mock passes for the class that it specifies": (
        """
        class Repo:
            def get(self, key): raise OSError
        class Service:
            def __init__(self, repo):
                if not isinstance(repo, Repo): raise TypeError("no Repo")
                self.repo = repo
            def read(self, key): return self.repo.get(key) + 1
        """,
        """
        from unittest.mock import Mock
        import pytest
        from solution import Repo, Service
        def test():
            repo = Mock(spec=Repo)
            repo.get.return_value = 4
            assert Service(repo).read("x") == 5
            with pytest.raises(TypeError): Service(Mock())
        """,
        True,
    ),
    "a class has the operators that it defines itself": (
        "class A:\n def __str__(self): return 'a'\nclass B(A): pass",
        "from solution import A, B\ndef test():\n assert '__str__' in A.__dict__ and '__str__' in vars(A)\n"
        " assert '__str__' not in B.__dict__ and '__init__' not in vars(A)",
        True,
    ),
    "an operator that is inherited is not its own": (
        "class A:\n def __str__(self): return 'a'\nclass B(A): pass",
        "from solution import B\ndef test(): assert '__str__' in B.__dict__",
        False,
    ),
    "its own initialiser is its own": (
        "class A:\n def __init__(self): self.x = 1",
        "from solution import A\ndef test(): assert '__init__' in A.__dict__ and A().x == 1",
        True,
    ),
    "a copy of a function is the function": (
        "def f(): return 1",
        "import copy\nfrom solution import f\ndef test(): assert copy.copy(f) is f and copy.deepcopy([f]) == [f]",
        True,
    ),
    "an exception may hold what it likes": (
        "class Refused(ValueError): pass\ndef f():\n error = ValueError('no')\n error.hint = len\n error.rows = [1]\n"
        " raise error",
        "import pytest\nfrom solution import f\ndef test():\n with pytest.raises(ValueError) as caught: f()\n"
        " assert caught.value.hint('ab') == 2 and caught.value.rows == [1]",
        True,
    ),
}
UNGRADABLE = {
    "an initialiser that is set": "monkeypatch.setattr(kind, '__init__', lambda self: None)",
    "an operator that is deleted": "monkeypatch.delattr(kind, '__len__')",
}
"""What a test does to a class that it has by no name that reading shows."""


@pytest.fixture(scope="module")
async def pool(bubblewrap: BackendName) -> AsyncIterator[SandboxPool]:
    async with open_pool(SandboxSpec(limits=Limits(timeout_s=5, memory_mb=300)), backend=bubblewrap, size=2) as pool:
        yield pool


@pytest.mark.parametrize("name", gate("asserted of a named tuple", "an exception for a text", of=IMPOSTORS))
async def test_an_impostor_earns_nothing(pool: SandboxPool, name: str) -> None:
    source, code = (dedent(text) for text in IMPOSTORS[name])
    verdict = await grade(source, [TestFile(code=code)], pool=pool)
    assert not verdict.passed
    assert "checker_error" not in {result.status.value for result in verdict.results}, verdict.results


@pytest.mark.soak
@pytest.mark.timeout(120)
def test_the_cases_are_what_plain_python_says() -> None:
    found = passes_in_plain_python((dedent(source), dedent(code)) for source, code, _ in HONEST.values())
    assert dict(zip(HONEST, found, strict=True)) == {name: passes for name, (_, _, passes) in HONEST.items()}


@pytest.mark.parametrize(
    "name", gate("a service that hands on what a mock says", "a mock passes for the class that it specifies", of=HONEST)
)
async def test_who_is_honest_is_answered_as_in_plain_python(pool: SandboxPool, name: str) -> None:
    source, code, passes = HONEST[name]
    verdict = await grade(dedent(source), [TestFile(code=dedent(code))], pool=pool)
    assert verdict.passed == passes, verdict.results


@pytest.mark.soak
@pytest.mark.timeout(120)
@pytest.mark.parametrize("what", UNGRADABLE)
async def test_what_python_itself_uses_of_a_class_is_not_set(pool: SandboxPool, what: str) -> None:
    source = "class A:\n def __init__(self): self.x = 1\n def __len__(self): return 3\ndef kinds(): return [A]"
    code = f"import solution\ndef test(monkeypatch):\n kind, = solution.kinds()\n {UNGRADABLE[what]}\n"
    verdict = await grade(source, [TestFile(code=code)], pool=pool)
    assert [result.status.value for result in verdict.results] == ["checker_error"], verdict.results
