"""One run of test code. Its process never sees the candidate's code: what the tests call is a stand-in, and what comes back is
plain data, or a stand-in for an object on the other side, whose operators are the candidate's.

Its first line in is the job, see `forked_runs`; each later one is "v", the tag of a request and the candidate's answer to it, or "x", the tag
and why there is none, {"why": "...", "exited": true}. Lines out:

    c  a request to the candidate, after its tag        n  how many tests there are
    a  one that decides nothing                         b  a test begins
    k  what the candidate asks of the tests begins      d  it has ended, with its outcome
    m  the tests have looked for a name that it lacks   s  it was skipped
    t  it has spoilt arguments unseen                   f  the end
    u  our own machinery ends the test, and why         q  what a later run is to ask otherwise
    p  a test that is no pass after all, and why        r  whether an answer is the same in this run
    g  the process takes the next job                   l  how many answers were, of questions beside it
"""

from __future__ import annotations

import base64
import builtins
import importlib
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from agentrl.sandboxes.inside.aliases import EVERYWHERE
from agentrl.sandboxes.inside.lent import LARGEST_LENT
from agentrl.sandboxes.inside.names import free_names
from agentrl.sandboxes.inside.own_faults import own_fault
from agentrl.sandboxes.inside.plain_data import CHANGEABLE
from agentrl.sandboxes.inside.questions import FirstRun
from agentrl.sandboxes.inside.remote import Remote
from agentrl.sandboxes.inside.replay import Replay
from agentrl.sandboxes.inside.special_methods import is_told
from agentrl.sandboxes.inside.stand_ins import RemoteClass, RemoteFunction
from agentrl.sandboxes.inside.wire import TestEndedError, Wire

LONGEST_TEST_NAME = 1_000
NOT_RUN = "[NOTRUN]"
"""What pytest says of a test that it expects to fail and does not run."""
ATOMS = (int, float, complex, str, bytes, tuple, frozenset)
"""Classes of values that nobody changes."""
TESTS = "<tests>"
"""The file name of test code that asserts."""


def run_assertions(wire: Wire, remote: Remote, job: dict[str, Any]) -> None:
    """Run test code that asserts; with an entry point, call its `check(candidate)` as HumanEval does."""
    space = LiveNames(remote)
    entry_point = job["entry_point"]

    def body() -> None:
        first = entry_point.partition("(")[0].partition(".")[0] if entry_point is not None else ""
        wanted = {first} if first else free_names(job["code"], job["prelude"]) | {*job["candidate_names"]}
        missing = sorted(wanted - remote.kinds.keys())
        if missing:
            raise NameError(f"the candidate defines no {', '.join(missing)}")
        exec(compile(job["prelude"], "<prelude>", "exec", dont_inherit=True), space)
        if first not in dir(builtins):
            modules = {name: library_module(name, job["code"]) for name in wanted}
            for name, module in modules.items():
                if module is None:
                    space.share(name)
                else:
                    space[name] = module
        exec(compile(job["code"], TESTS, "exec", dont_inherit=True), space)
        if entry_point is not None:
            plain = entry_point == first
            space["check"](remote.stand_in(first) if plain else RemoteFunction(remote, None, entry_point))

    remote.begin(job["name"])
    try:
        body()
    except BaseException as error:
        print_error()
        send_outcome(
            wire, remote, job, job["name"], error, _shown(error) if str(error) else _assertion(error, job["code"])
        )
    else:
        send_outcome(wire, remote, job, job["name"], None)


class LiveNames(dict[str, Any]):
    """The names of test code that shares them with the program: each of the program's is what it is now."""

    def __init__(self, remote: Remote) -> None:
        super().__init__(__name__="tests")
        self._live: set[str] = set()
        """Those of the program's values that it may set anew."""
        self._shared: set[str] = set()
        """The program's."""
        self._remote = remote

    def share(self, name: str) -> None:
        """Have a name of the program's. A list that is too long to be had anew each time is the test's own copy."""
        value = self._remote.stand_in(name)
        self[name] = value
        self._shared.add(name)
        too_long = type(value) in (*CHANGEABLE, tuple) and len(value) > LARGEST_LENT
        if self._remote.kinds[name] == "value" and not too_long:
            self._live.add(name)

    def __getitem__(self, name: str) -> Any:
        known = super().__getitem__(name)
        if name not in self._live and not (name in self._shared and name in self._remote.live):
            return known
        value = self._remote.stand_in(name)
        if type(value) is type(known) and type(value) in ATOMS and value == known:
            return known  # the same object, as in one process
        self[name] = value
        return value


def _assertion(error: BaseException, code: str) -> str:
    """The lines of the test code that an exception without a text comes from."""
    import ast
    import traceback

    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == TESTS]
    tree = ast.parse(code)
    found = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and node.lineno == (lines or [0])[-1]]
    shown = ast.get_source_segment(code, found[-1]) if found else None
    return f"{type(error).__name__}: {shown}"[:2000] if shown else type(error).__name__


def library_module(name: str, code: str) -> types.ModuleType | None:
    """The module that test code means by a name that the program has imported too; None where it means something of the program's."""
    module = {"np": "numpy", "pd": "pandas"}.get(name, name)
    known = module in sys.stdlib_module_names or module in ("numpy", "pandas", "scipy", "torch", "sympy")
    if not known or re.search(rf"\b{name}\s*\(", code):
        return None
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def send_outcome(
    wire: Wire, remote: Remote, job: dict[str, Any], name: str, error: BaseException | None, shown: str | None = None
) -> bool:
    """Tell the host how a test has ended, and return whether it has passed. `shown` describes the error where that itself does not do."""
    try:
        remote.check_stops()
    except TestEndedError:  # which the host has noted
        pass
    status, message = "passed", ""
    if error is not None:
        status = "wrong_answer" if isinstance(error, AssertionError) else "runtime_error"
        message = (_shown(error) if shown is None else shown) + hint(remote)
        if (fault := own_fault(error, job["module"], job.get("files", ()), job["folders"])) is not None:
            status, message = "checker_error", fault
    wire.send(b"d", {"name": name, "status": status, "message": message})
    return status == "passed" and not wire.test_has_ended


def print_error() -> None:
    """Print the traceback of the exception that is handled."""
    import traceback

    traceback.print_exc()


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:2000].rstrip(": ")


def hint(remote: Remote) -> str:
    """What may be the reason that a test fails whose program is right."""
    return (
        "\n(The program changed an argument and returned a value: the test sees such a change only with in_place = true.)"
        if remote.untold
        else ""
    )


def run_unittest(wire: Wire, remote: Remote, job: dict[str, Any]) -> None:
    import unittest

    module = types.ModuleType("test_solution")
    module.__file__ = os.path.abspath("test_solution.py")
    sys.modules["test_solution"] = module
    exec(compile(job["code"], "test_solution.py", "exec", dont_inherit=True), module.__dict__)

    class Reporter(unittest.TestResult):
        told = 0
        """How many outcomes the host has."""
        skipped_whole = False
        """Whether all tests of a class or module were skipped, which have not begun."""

        def startTest(self, test: unittest.TestCase) -> None:
            super().startTest(test)
            self.bad: BaseException | None = None
            self.good = False
            remote.begin(test.id())

        def stopTest(self, test: unittest.TestCase) -> None:
            super().stopTest(test)
            skipped = any(test is one for one, _ in self.skipped)
            partly_skipped = any(test is getattr(one, "test_case", None) for one, _ in self.skipped)
            if self.bad is None and not (self.good or skipped or partly_skipped):
                # KeyboardInterrupt and its like go through unittest.
                self.bad = sys.exc_info()[1] or InterruptedError("the test did not end")
            self.report(test, self.bad, skipped=skipped and self.bad is None)

        def report(self, test: Any, error: BaseException | None, *, skipped: bool = False) -> None:
            if skipped:
                wire.send(b"s")
            else:
                self.told += 1
                passed = send_outcome(wire, remote, job, test.id(), error)
                if job["fail_fast"] and not passed:
                    self.stop()

        def addSuccess(self, test: unittest.TestCase) -> None:
            super().addSuccess(test)
            self.good = True

        def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
            super().addExpectedFailure(test, err)
            self.good = True

        def addError(self, test: Any, err: Any) -> None:
            super().addError(test, err)
            self.bad = err[1]
            if not isinstance(test, unittest.TestCase):  # a fixture of a class or module
                self.report(test, err[1])

        addFailure = addError

        def addSkip(self, test: Any, reason: str) -> None:
            super().addSkip(test, reason)
            if not isinstance(test, unittest.TestCase):
                error = sys.exc_info()[1]
                if error is not None and remote.has_raised(error):  # the candidate is not to choose what is skipped
                    self.report(test, error)
                else:
                    self.skipped_whole = True

        def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
            super().addSubTest(test, subtest, err)
            self.bad = err[1] if err is not None else self.bad

        def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
            super().addUnexpectedSuccess(test)
            self.bad = AssertionError("it was expected to fail")

    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    wire.send(b"n", suite.countTestCases())
    reporter = Reporter()
    suite.run(reporter)
    if reporter.skipped_whole:
        wire.send(b"n", reporter.told)


def run_pytest(wire: Wire, remote: Remote, job: dict[str, Any]) -> None:
    import tempfile

    try:
        import _pytest.runner
        import pytest
    except ImportError as error:
        message = (
            f"the tests need pytest, which the sandbox's Python does not have ({error}); or framework = 'unittest'"
        )
        wire.send(b"d", {"name": job["name"], "status": "checker_error", "message": message})
        return

    # Our own frames are nothing to a reader of what failed.
    for name in [name for name in sys.modules if name.startswith(__package__)]:
        vars(sys.modules[name])["__tracebackhide__"] = True
    # It would put the name of the test that runs, and with it the parameters that are expected, into the environment.
    _pytest.runner._update_current_test_var = lambda item, when: None

    class Reporter:
        """Tells the host of each test. An error is reported as text, and most are then shown as themselves."""

        def __init__(self) -> None:
            self.unseen = RuntimeError()
            self.long_names: dict[str, str] = {}
            self.collecting: BaseException = self.unseen
            self.running: str = job["name"]

        def pytest_pycollect_makeitem(self, name: str, obj: Any) -> list[Any] | None:
            """What the candidate calls test_... or Test... is none of the tests."""
            return [] if type(obj) in (RemoteFunction, RemoteClass) else None

        def pytest_collection_finish(self, session: Any) -> None:
            self.session = session
            wire.send(b"n", len(session.items))

        def pytest_runtest_logstart(self, nodeid: str) -> None:
            self.bad: str | None = None
            self.error: BaseException | None = None
            self.skipped = False
            self.good = False
            self.running = self.named(nodeid)
            remote.begin(self.running)

        def named(self, nodeid: str) -> str:
            """The name of a test. Parameters are in it, which may be long, and the candidate's."""
            if len(nodeid) <= LONGEST_TEST_NAME:
                return nodeid
            begins = f"{nodeid[:LONGEST_TEST_NAME]}… ({len(self.long_names) + 1})"
            return self.long_names.setdefault(nodeid, begins)

        def pytest_runtest_logreport(self, report: Any) -> None:
            of_test = type(report) is pytest.TestReport  # and not of a subtest
            expected_to_fail = getattr(report, "wasxfail", None)
            not_run = expected_to_fail is None or NOT_RUN in expected_to_fail
            self.skipped = self.skipped or (of_test and report.skipped and not_run)
            ended = report.when == "call" or expected_to_fail is not None
            self.good = self.good or (ended and not report.failed)
            if report.failed and self.bad is None:
                self.bad = str(report.longreprtext)[-2000:]
                assertion = "AssertionError" in self.bad or "Failed: " in self.bad
                self.error = AssertionError() if assertion else self.unseen

        def pytest_exception_interact(self, node: Any, call: Any, report: Any) -> None:
            if isinstance(node, pytest.Collector):
                self.collecting = call.excinfo.value
            elif self.error is self.unseen:
                self.error = call.excinfo.value

        def pytest_runtest_logfinish(self, nodeid: str) -> None:
            if self.skipped and self.bad is None:
                wire.send(b"s")
            else:
                error = self.error if self.good or self.error is not None else self.unseen
                passed = send_outcome(wire, remote, job, self.running, error, self.bad)
                if job["fail_fast"] and not passed:
                    self.session.shouldstop = "a test has failed"

        def pytest_keyboard_interrupt(self, excinfo: Any) -> None:
            if not isinstance(excinfo.value, pytest.Session.Interrupted):  # by an error that was reported
                send_outcome(wire, remote, job, self.running, excinfo.value)

        def pytest_internalerror(self, excinfo: Any) -> None:
            if remote.has_raised(
                excinfo.value
            ):  # SystemExit goes through pytest, out of a module or an object's __repr__
                send_outcome(wire, remote, job, self.running, excinfo.value)

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                send_outcome(wire, remote, job, report.nodeid, self.collecting, str(report.longreprtext)[-2000:])

    with tempfile.TemporaryDirectory() as own_folder:
        folder = next(iter(job["folders"]), own_folder)  # beside the files of the tests, a conftest.py among them
        job["folders"].append(own_folder)
        path = os.path.join(folder, "test_solution.py")
        with open(path, "w") as file:
            file.write(job["code"])
        options = ["-q", "-p", "no:cacheprovider", "--rootdir", folder, "-c", os.devnull]
        pytest.main([path, *options], plugins=[Reporter()])


def load(wire: Wire, job: dict[str, Any]) -> Remote | str:
    """The candidate's module, from its answer to being loaded; or why there is none."""
    loaded = wire.receive()
    try:
        if "raised" in loaded:
            classes, text = loaded["raised"]["classes"], loaded["raised"]["text"]
            return f"the program does not load: {str(classes[0])[:200]}: {str(text)[:2000]}"
        kinds = {str(name): str(kind) for name, kind in loaded["names"].items() if is_told(str(name))}
        doc = loaded["doc"] if isinstance(loaded["doc"], str) else None
    except (KeyError, TypeError, IndexError, AttributeError):
        return "the program answers nonsense to being loaded"
    beside = (path.partition("/")[0].partition(".")[0] for path in job.get("files", ()))
    modules = {"tests", "test_solution", *beside}
    code = job["prelude"] + job["code"]
    run = FirstRun() if job["replay"] is None else Replay(wire, job["replay"], job["code"])
    return Remote(wire, kinds, code, modules, job["functions"], run, in_place=job["in_place"], doc=doc)


def run_job(wire: Wire, job: dict[str, Any]) -> None:
    """Run the tests of a job, and tell the host all that comes of them but the end."""
    try:
        remote = load(wire, job)
    except TestEndedError as error:
        remote = str(error)
    if isinstance(remote, str):
        wire.send(b"d", {"name": job["name"], "status": "runtime_error", "message": remote})
        return
    job["folders"] = lay_out(job.get("files", {}))
    sys.modules[job["module"]] = module_stand_in(remote, job)
    if job["kind"] == "assert":
        run_assertions(wire, remote, job)
    else:
        try:
            remote.name_classes(job["names"])
        except BaseException as error:
            print_error()
            message = f"what the program says of its classes: {_shown(error)}"
            wire.send(b"d", {"name": job["name"], "status": "runtime_error", "message": message})
            return
        outcome_of_file(wire, remote, job, run_unittest if job["kind"] == "unittest" else run_pytest)
    if remote.spoilt:
        wire.send(b"t")
    revoked = [*remote.aliases.same()]
    if isinstance(remote.run, FirstRun):
        revoked = [*remote.run.revoked, *revoked]
        wire.send(b"q", remote.run.told())
    for test, message in revoked:
        for name in remote.begun if test == EVERYWHERE else [test]:
            wire.send(b"p", {"test": name, "message": message})


def lay_out(files: dict[str, str]) -> list[str]:
    """Write the files beside the tests where they find them: in the folder that they run in, from which they import. Returns it."""
    if not files:
        return []
    import tempfile

    folder = tempfile.mkdtemp()
    for path, content in files.items():
        where = os.path.join(folder, path)
        os.makedirs(os.path.dirname(where), exist_ok=True)
        with open(where, "wb") as file:
            file.write(base64.b64decode(content))
    sys.path.insert(0, folder)
    os.chdir(folder)
    beside = {path.partition("/")[0].partition(".")[0] for path in files} - sys.stdlib_module_names - {"agentrl"}
    for name in [name for name in sys.modules if name.partition(".")[0] in beside]:
        del sys.modules[name]  # of a module that was imported already, the tests mean their own
    return [folder]


class ModuleNames(MutableMapping[str, Any]):
    """The names of the candidate's module as its `__dict__` has them: each is looked up when it is asked for."""

    def __init__(self, remote: Remote, module: types.ModuleType) -> None:
        self._remote = remote
        self._module = module

    def __getitem__(self, name: str) -> Any:
        if name in self._remote.kinds:
            return self._remote.stand_in(name)
        own: dict[str, Any] = OWN_NAMES.__get__(self._module)
        return own[name]

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)

    def __delitem__(self, name: str) -> None:
        if name not in self._remote.kinds:
            raise KeyError(name)
        self._remote.delete_name(name)

    def __iter__(self) -> Iterator[str]:
        return iter([*OF_EVERY_MODULE, *self._remote.kinds])

    def __len__(self) -> int:
        return len(OF_EVERY_MODULE) + len(self._remote.kinds)


OWN_NAMES: Any = vars(types.ModuleType)["__dict__"]
"""Gives what a module itself has for its names."""
OF_EVERY_MODULE = ("__name__", "__doc__", "__package__", "__loader__", "__spec__")


class RemoteModule(types.ModuleType):
    """The candidate's module as `import solution` gives it. Nothing is kept here of what a test sets in it: the program may set the same."""

    def __init__(self, remote: Remote, name: str) -> None:
        super().__init__(name, remote.doc)
        object.__setattr__(self, "_agentrl", remote)

    def __getattr__(self, name: str) -> Any:
        remote: Remote = object.__getattribute__(self, "_agentrl")
        if name not in remote.kinds:
            if not name.startswith("__"):
                remote.wire.note_missing()
            raise AttributeError(f"the candidate's module has no {name!r}")
        return remote.stand_in(name)

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        """The names as `mock.patch` looks for them: it puts back what it finds here."""
        return ModuleNames(object.__getattribute__(self, "_agentrl"), self)

    def __dir__(self) -> list[str]:
        remote: Remote = object.__getattribute__(self, "_agentrl")
        return sorted({*OF_EVERY_MODULE, *remote.kinds})

    def __setattr__(self, name: str, value: Any) -> None:
        if is_told(name):
            remote: Remote = object.__getattribute__(self, "_agentrl")
            remote.set_name(name, value)

    def __delattr__(self, name: str) -> None:
        remote: Remote = object.__getattribute__(self, "_agentrl")
        remote.delete_name(name)


def module_stand_in(remote: Remote, job: dict[str, Any]) -> types.ModuleType:
    """What `import solution` gives. `from solution import *` gives only what the tests cannot have from anywhere else, so that no
    candidate puts its own `len` or `unittest` under them."""
    module = RemoteModule(remote, job["module"])
    names = sorted(free_names(job["code"], module=job["module"]) & remote.kinds.keys())
    types.ModuleType.__setattr__(module, "__all__", names)
    return module


def outcome_of_file(
    wire: Wire, remote: Remote, job: dict[str, Any], run: Callable[[Wire, Remote, dict[str, Any]], None]
) -> None:
    try:
        run(wire, remote, job)
    except BaseException as error:
        print_error()
        send_outcome(wire, remote, job, job["name"], error)
