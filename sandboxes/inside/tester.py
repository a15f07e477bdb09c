"""The process that runs test code. It never sees the candidate's code: what the tests call is a stand-in, and what comes back is
plain data, or a reference to an object on the other side that has no operators, so that `==` and `<` are always decided here.

Its first line in is the job; each later one is an answer of the candidate's, or "x" and why there is none. Lines out: "c" and a
request to the candidate, "n" and the number of tests, "b" when one begins, "d" and its outcome or "s" when it was
skipped, "f" at the end.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import json
import os
import sys
import tempfile
import traceback
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any

from agentrl.sandboxes.inside.answer_bounds import OutOfBoundsError, check_bounds
from agentrl.sandboxes.inside.plain_data import NotPlainError, decode, encode


class CandidateGoneError(BaseException):
    """The candidate's process has ended, or took too long. No `except Exception` of a test takes this for an answer."""


class Wire:
    """The way to the host, and through it to the candidate."""

    def __init__(self) -> None:
        self._lines = os.fdopen(os.dup(0), "rb")
        self._out = os.fdopen(os.dup(1), "wb")
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)

    def receive(self, *, bounded: bool = True) -> dict[str, Any]:
        line = self._lines.readline()
        if line[:1] != b"v":
            raise CandidateGoneError(line[1:].decode().strip())
        try:
            if bounded:
                check_bounds(line)
            answer = json.loads(line[1:])
        except OutOfBoundsError as error:
            raise NotPlainError(str(error)) from None
        except (ValueError, RecursionError):
            raise NotPlainError("the candidate answered something that is not JSON") from None
        if not isinstance(answer, dict):
            raise NotPlainError("the candidate's answer is not an object")
        return answer

    def send(self, kind: bytes, content: Any = None) -> None:
        self._out.write(kind + json.dumps(content).encode() + b"\n")
        self._out.flush()

    def ask(self, **request: Any) -> dict[str, Any]:
        self.send(b"c", request)
        return self.receive()


class RemoteObject:
    """Stands for an object of the candidate's. It has methods and attributes, and no operators: those would let the candidate's
    code decide an assertion. It is equal to itself alone, and neither true nor false."""

    def __init__(self, remote: Remote, number: int, class_name: str) -> None:
        object.__setattr__(self, "_remote", remote)
        object.__setattr__(self, "_number", number)
        object.__setattr__(self, "_class_name", class_name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self._remote.attribute(self._number, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._remote.wire_ask(op="set", ref=self._number, name=name, value=encode(value, reference_to))

    def __bool__(self) -> bool:
        raise TypeError(f"the candidate gave an object of class {self._class_name} where plain data is expected")

    def __repr__(self) -> str:
        return f"<{self._class_name} of the candidate>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._remote.method(self._number, "__call__", args, kwargs)

    def __str__(self) -> str:
        return str(self._remote.method(self._number, "__str__"))

    def __len__(self) -> int:
        return int(self._remote.method(self._number, "__len__"))

    def __getitem__(self, key: Any) -> Any:
        return self._remote.method(self._number, "__getitem__", (key,))

    def __setitem__(self, key: Any, value: Any) -> None:
        self._remote.method(self._number, "__setitem__", (key, value))

    def __delitem__(self, key: Any) -> None:
        self._remote.method(self._number, "__delitem__", (key,))

    def __iter__(self) -> Iterator[Any]:
        iterator = self._remote.method(self._number, "__iter__")
        if not isinstance(iterator, RemoteObject):
            raise TypeError(f"{self!r} is not iterable")
        with contextlib.suppress(StopIteration):
            while True:
                yield self._remote.method(iterator._number, "__next__")

    def __next__(self) -> Any:
        return self._remote.method(self._number, "__next__")

    def __enter__(self) -> Any:
        return self._remote.method(self._number, "__enter__")

    def __exit__(self, *exc_info: object) -> None:
        self._remote.method(self._number, "__exit__", (None, None, None))


def reference_to(value: Any) -> dict[str, Any]:
    if isinstance(value, RemoteObject):
        return {"ref": value._number}
    raise NotPlainError(
        f"the test passes an object of class {type(value).__name__} to the candidate; only plain data can pass"
    )


class Remote:
    """The candidate's module as the tests see it."""

    def __init__(self, wire: Wire, kinds: dict[str, str], *, in_place: bool) -> None:
        self.kinds = kinds
        self._wire = wire
        self._in_place = in_place
        self._exceptions: dict[str, type[Exception]] = {}
        self._classes: dict[str, type[RemoteObject]] = {}
        self._objects: dict[int, RemoteObject] = {}
        for name, kind in kinds.items():  # before any test can meet one
            if kind == "class" or kind.startswith("exception "):
                self.stand_in(name)

    def stand_in(self, name: str) -> Any:
        """What the tests get for a name of the candidate's module."""
        word, _, base = self.kinds[name].partition(" ")
        if name in self._exceptions or name in self._classes:
            return self._exceptions.get(name) or self._classes[name]
        if word == "exception":
            parent = getattr(builtins, base, Exception)
            if not (isinstance(parent, type) and issubclass(parent, Exception)):
                parent = Exception
            self._exceptions[name] = type(name, (parent,), {})
            return self._exceptions[name]
        if word == "class":
            self._classes[name] = _class_stand_in(self, name)
            return self._classes[name]
        if word == "callable":

            def function(*args: Any, **kwargs: Any) -> Any:
                return self.invoke("call", {"path": name}, args, kwargs)

            function.__name__ = function.__qualname__ = name
            return function
        return self.attribute(None, name)

    def invoke(self, op: str, target: dict[str, Any], args: Any = (), kwargs: Any = None) -> Any:
        answer = self.wire_ask(
            op=op,
            **target,
            args=[encode(item, reference_to) for item in args],
            kwargs={name: encode(item, reference_to) for name, item in (kwargs or {}).items()},
            in_place=self._in_place,
        )
        if self._in_place:
            for index, value in dict(answer.get("changed") or {}).items():
                _replace_content(args[int(index)], self.value(value))
        return self.value(answer.get("ok"))

    def method(self, number: int, name: str, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return self.invoke("method", {"ref": number, "name": name}, args, kwargs)
        except AttributeError as error:
            if name.startswith("__"):  # as Python has it for `len(x)` or `x[0]` where the class has no such method
                raise TypeError(f"the candidate's object does not support {name}: {error}") from None
            raise

    def attribute(self, number: int | None, name: str) -> Any:
        return self.value(self.wire_ask(op="get", ref=number, name=name).get("ok"))

    def value(self, data: Any) -> Any:
        return decode(data, self._object)

    def _object(self, reference: Any) -> RemoteObject:
        number, class_name = int(reference[0]), str(reference[1])
        if number not in self._objects:
            made = object.__new__(self._classes.get(class_name, RemoteObject))
            RemoteObject.__init__(made, self, number, class_name)
            self._objects[number] = made
        return self._objects[number]

    def wire_ask(self, **request: Any) -> dict[str, Any]:
        answer = self._wire.ask(**request)
        if "raised" in answer:
            raise self._exception(answer["raised"], stops=request.get("name") == "__next__")
        return answer

    def _exception(self, raised: Any, *, stops: bool) -> Exception:
        """As an exception of this side: the class by its name, if it is a plain exception; its text as it is.

        StopIteration counts from an iterator alone: out of a function that a test maps over its cases, it would end them early.
        """
        for name in map(str, raised["classes"]):
            kind = self._exceptions.get(name) or getattr(builtins, name, None)
            if isinstance(kind, type) and issubclass(kind, Exception):
                if issubclass(kind, StopIteration | StopAsyncIteration) and not stops:
                    return RuntimeError(f"the candidate raised {name}")
                try:
                    return kind(str(raised["text"]))
                except TypeError:
                    continue
        return Exception(str(raised["text"]))


def _class_stand_in(remote: Remote, name: str) -> type[RemoteObject]:
    def construct(cls: type, *args: Any, **kwargs: Any) -> Any:
        return remote.invoke("call", {"path": name}, args, kwargs)

    def skip_init(self: Any, *args: Any, **kwargs: Any) -> None:
        """`construct` has made the object already."""

    return type(name, (RemoteObject,), {"__new__": construct, "__init__": skip_init})


def _replace_content(argument: Any, value: Any) -> None:
    if isinstance(argument, list | bytearray) and isinstance(value, list | bytearray):
        argument[:] = value
    elif isinstance(argument, dict | set) and type(argument) is type(value):
        argument.clear()
        argument.update(value)


def run_assertions(wire: Wire, remote: Remote, job: dict[str, Any]) -> None:
    """Run test code that asserts; with an entry point, call its `check(candidate)` as HumanEval does."""
    space: dict[str, Any] = {"__name__": "tests"}
    entry_point = job["entry_point"]

    def body() -> None:
        wanted = {entry_point} if entry_point is not None else free_names(job["code"], job["prelude"])
        missing = sorted(wanted - remote.kinds.keys())
        if missing:
            raise NameError(f"the candidate defines no {', '.join(missing)}")
        exec(compile(job["prelude"], "<prelude>", "exec", dont_inherit=True), space)
        space.update({name: remote.stand_in(name) for name in wanted})
        exec(compile(job["code"], "<tests>", "exec", dont_inherit=True), space)
        if entry_point is not None:
            space["check"](remote.stand_in(entry_point))

    outcome(wire, job["name"], body)


def free_names(*sources: str) -> set[str]:
    """The names that test code uses and nobody but the candidate can define: neither its own nor Python's."""
    used: set[str] = set()
    bound = set(dir(builtins))
    for node in (node for source in sources for node in ast.walk(ast.parse(source))):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    return used - bound


def outcome(wire: Wire, name: str, body: Callable[[], None]) -> None:
    wire.send(b"b", name)
    try:
        body()
    except BaseException as error:
        traceback.print_exc()
        status = "wrong_answer" if isinstance(error, AssertionError | NotPlainError) else "runtime_error"
        wire.send(b"d", {"name": name, "status": status, "message": _shown(error)})
    else:
        wire.send(b"d", {"name": name, "status": "passed", "message": ""})


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:2000].rstrip(": ")


def run_unittest(wire: Wire, job: dict[str, Any]) -> None:
    module = types.ModuleType("test_solution")
    sys.modules["test_solution"] = module
    exec(compile(job["code"], "test_solution.py", "exec", dont_inherit=True), module.__dict__)

    class Reporter(unittest.TestResult):
        def startTest(self, test: unittest.TestCase) -> None:
            super().startTest(test)
            self.bad: BaseException | None = None
            wire.send(b"b", test.id())

        def stopTest(self, test: unittest.TestCase) -> None:
            super().stopTest(test)
            skipped = any(test is one for one, _ in self.skipped)
            report(wire, test.id(), self.bad, skipped=skipped)

        def addError(self, test: Any, err: Any) -> None:
            super().addError(test, err)
            self.bad = err[1]
            if not isinstance(test, unittest.TestCase):  # a fixture of a class or module
                report(wire, test.id(), err[1])

        addFailure = addError

        def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
            super().addSubTest(test, subtest, err)
            self.bad = err[1] if err is not None else self.bad

        def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
            super().addUnexpectedSuccess(test)
            self.bad = AssertionError("it was expected to fail")

    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    wire.send(b"n", suite.countTestCases())
    suite.run(Reporter())


def report(wire: Wire, name: str, error: BaseException | None, *, skipped: bool = False) -> None:
    status = "passed" if error is None else "wrong_answer" if isinstance(error, AssertionError) else "runtime_error"
    if skipped:
        wire.send(b"s")
    else:
        wire.send(b"d", {"name": name, "status": status, "message": "" if error is None else _shown(error)})


def run_pytest(wire: Wire, job: dict[str, Any]) -> None:
    # Plugins of whatever else is installed take a second to load, and could change what a test means.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    import pytest

    class Reporter:
        def pytest_collection_finish(self, session: Any) -> None:
            wire.send(b"n", len(session.items))

        def pytest_runtest_logstart(self, nodeid: str) -> None:
            self.bad: str | None = None
            self.status = "passed"
            self.skipped = False
            wire.send(b"b", nodeid)

        def pytest_runtest_logreport(self, report: Any) -> None:
            self.skipped = self.skipped or (report.skipped and not hasattr(report, "wasxfail"))
            if report.failed and self.bad is None:
                self.bad = str(report.longreprtext)[-2000:]
                assertion = "AssertionError" in self.bad or "Failed: " in self.bad
                self.status = "wrong_answer" if assertion else "runtime_error"

        def pytest_runtest_logfinish(self, nodeid: str) -> None:
            if self.skipped:
                wire.send(b"s")
            else:
                wire.send(b"d", {"name": nodeid, "status": self.status, "message": self.bad or ""})

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                shown = {"name": report.nodeid, "status": "runtime_error", "message": str(report.longreprtext)[-2000:]}
                wire.send(b"d", shown)

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "test_solution.py")
        with open(path, "w") as file:
            file.write(job["code"])
        options = ["-q", "-p", "no:cacheprovider", "--rootdir", folder, "-c", os.devnull]
        pytest.main([path, *options], plugins=[Reporter()])


def load(wire: Wire, job: dict[str, Any]) -> Remote:
    """The candidate's module, from its answer to being loaded. Raises NotPlainError when there is none."""
    loaded = wire.receive()
    try:
        if "raised" in loaded:
            classes, text = loaded["raised"]["classes"], loaded["raised"]["text"]
            raise NotPlainError(f"the program does not load: {classes[0]}: {text}")
        kinds = {str(name): str(kind) for name, kind in loaded["names"].items()}
        return Remote(wire, kinds, in_place=job["in_place"])
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        if isinstance(error, NotPlainError):
            raise
        raise NotPlainError("the program answers nonsense to being loaded") from None


def main() -> None:
    wire = Wire()
    job = wire.receive(bounded=False)
    try:
        remote = load(wire, job)
    except NotPlainError as error:
        wire.send(b"d", {"name": job["name"], "status": "runtime_error", "message": str(error)})
    else:
        sys.modules[job["module"]] = module_stand_in(remote, job)
        if job["kind"] == "assert":
            run_assertions(wire, remote, job)
        elif job["kind"] == "unittest":
            outcome_of_file(wire, job, run_unittest)
        else:
            outcome_of_file(wire, job, run_pytest)
    wire.send(b"f")


def module_stand_in(remote: Remote, job: dict[str, Any]) -> types.ModuleType:
    """What `import solution` gives. `from solution import *` gives only what the tests cannot have from anywhere else, so that no
    candidate puts its own `len` or `unittest` under them."""

    def attribute(name: str) -> Any:
        if name not in remote.kinds:
            raise AttributeError(f"the candidate's module has no {name!r}")
        return remote.stand_in(name)

    module = types.ModuleType(job["module"])
    module.__dict__["__getattr__"] = attribute
    module.__dict__["__all__"] = sorted(free_names(job["code"]) & remote.kinds.keys())
    return module


def outcome_of_file(wire: Wire, job: dict[str, Any], run: Callable[[Wire, dict[str, Any]], None]) -> None:
    try:
        run(wire, job)
    except BaseException as error:
        traceback.print_exc()
        wire.send(b"d", {"name": job["name"], "status": "runtime_error", "message": _shown(error)})


if __name__ == "__main__":
    main()
