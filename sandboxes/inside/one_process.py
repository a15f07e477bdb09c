"""Tests and program in one process, as plain Python runs them: what has passed from another process must pass here as well.

The stand-ins of the tests' process are never quite the program's objects. What a program earns by the difference is lost here. A
program may forge what is said here, since it shares the process; it has then still passed where it cannot.

The first line in is the job, with a "secret", the tests that are "left_out", and the functions of those that "only" are run, if not all.
The line out, which begins with the secret, is what became of the tests: {"passed": ["test_a"], "failed": {"test_b": "AssertionError"},
"broken": null}. A test that is skipped counts as passed. What is no test's own, such as an exception that ends them all, is why the run is
"broken".
"""

from __future__ import annotations

import builtins
import json
import os
import sys
import types
from collections.abc import Callable, Collection
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from typing import Any

from agentrl.sandboxes.inside.dotted_path import follow
from agentrl.sandboxes.inside.laid_out import lay_out
from agentrl.sandboxes.inside.names import checked_name, free_names, library_module, shared_names
from agentrl.sandboxes.inside.pytest_start import run_file

LONGEST_TEXT = 2_000
LONGEST_TEXTS = 300_000
"""Of all that failed together: the host reads a report up to a bound."""


class Outcomes:
    """What has become of each test. One failure of a test is enough, in whichever of its parts."""

    def __init__(self) -> None:
        self.failed: dict[str, str] = {}
        self.broken: str | None = None
        """Why the run as a whole is no pass of any test."""
        self._ended: set[str] = set()

    def note(self, name: str, failure: str | None) -> None:
        """Note that a part of a test has ended, with its failure if it has one."""
        self._ended.add(name)
        if failure is not None:
            self.failed.setdefault(name, failure[-LONGEST_TEXT:])

    def told(self) -> dict[str, Any]:
        """Return them as the host reads them."""
        longest = max(1, LONGEST_TEXTS // max(1, len(self.failed)))
        failed = {name: text[-longest:] for name, text in self.failed.items()}
        return {"passed": sorted(self._ended - self.failed.keys()), "failed": failed, "broken": self.broken}

    def note_broken(self, why: str) -> None:
        """Note that the run as a whole is no pass of any test."""
        self.broken = self.broken or why[-LONGEST_TEXT:]


def main() -> None:
    """Run the tests of one job, and tell the host what became of them."""
    report = os.dup(1)
    job = json.loads(sys.stdin.buffer.readline())
    secret = job.pop("secret").encode()
    with open(os.devnull, "r+b") as nothing:
        for descriptor in (0, 1, 2):
            os.dup2(nothing.fileno(), descriptor)
    outcomes = Outcomes()
    run(job, outcomes)
    line = memoryview(secret + json.dumps(outcomes.told()).encode() + b"\n")
    while line:
        line = line[os.write(report, line) :]
    os._exit(0)


def run(job: dict[str, Any], outcomes: Outcomes) -> None:
    """Load the program and run the tests of a job on it."""
    folder = lay_out(job.get("files", {})) or os.getcwd()
    sys.path.insert(0, os.getcwd())
    sys.meta_path.insert(0, Program(job))
    try:
        RUN[job["kind"]](job, folder, outcomes)
    except BaseException as error:  # also what the program ends a process with
        if job["kind"] == "assert":
            outcomes.note(job["name"], described(error))
        else:
            outcomes.note_broken(described(error))


class Program:
    """Finds the program as the module that the tests import, as an entry of `sys.meta_path`: it is loaded when they import it."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Answer Python's import, which asks for a module's spec."""
        return ModuleSpec(name, self) if name == self._job["module"] else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Make an ordinary module."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Run the program."""
        job, space = self._job, vars(module)
        module.__file__ = f"{job['module']}.py"
        exec(compile(job["source"], module.__file__, "exec", dont_inherit=True), space)
        if "*" in job["code"] and "__all__" not in space:
            # As from another process: nothing of the program's comes in the place of what the tests have from anywhere else.
            names = free_names(job["code"], module=job["module"]) & space.keys()
            space["__all__"] = sorted(name for name in names if not name.startswith("_"))


class Names(dict[str, Any]):
    """The names of test code that shares them with the program: each that is the program's is what it is there now."""

    def __init__(self, module: types.ModuleType) -> None:
        super().__init__(__name__="tests", __builtins__=builtins)
        self._module = module
        self._given: dict[str, Any] = {}
        """The program's, as they were given. A class's body and `globals()` see them so."""

    def give(self, names: Collection[str]) -> None:
        """Have names of the program's, whatever they were before; one that it has not yet defined, when it has."""
        self._given |= dict.fromkeys(names)
        for name in names:
            self.pop(name, None)
            if name in vars(self._module):
                self[name] = self._given[name] = vars(self._module)[name]

    def __getitem__(self, name: str) -> Any:
        if name in self._given and self.get(name) is self._given[name]:
            return vars(self._module)[name]
        return super().__getitem__(name)


def run_assertions(job: dict[str, Any], folder: str, outcomes: Outcomes) -> None:
    """Run test code that asserts; with an entry point, call its `check(candidate)` as HumanEval does."""
    module = import_module(job["module"])
    # One of Python's names is what is checked, and not what the test means by that name.
    wanted = set[str]() if checked_name(job) in dir(builtins) else shared_names(job)
    space = Names(module)
    exec(compile(job["prelude"], "<prelude>", "exec", dont_inherit=True), space)
    libraries = {name: library for name in wanted if (library := library_module(name, job["code"])) is not None}
    space.update(libraries)
    space.give(wanted - libraries.keys())
    exec(compile(job["code"], "<tests>", "exec", dont_inherit=True), space)
    if job["entry_point"] is not None:
        space["check"](follow(job["entry_point"], partial(getattr, module)))
    outcomes.note(job["name"], None)


def run_pytest(job: dict[str, Any], folder: str, outcomes: Outcomes) -> None:
    """Run a file of pytest's tests."""
    import tempfile

    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    import pytest

    finished = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)

    class Reporter:
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            items[:] = [item for item in items if is_run(item.nodeid, job)]

        def pytest_runtest_logreport(self, report: Any) -> None:
            outcomes.note(report.nodeid, str(report.longreprtext) if report.failed else None)

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                outcomes.note_broken(str(report.longreprtext))

    with tempfile.TemporaryDirectory() as own_folder:
        where = folder if job.get("files") else own_folder  # beside the files of the tests, a conftest.py among them
        code = run_file(job["code"], where, Reporter())
    if code not in finished or (code == pytest.ExitCode.TESTS_FAILED and not outcomes.failed):
        outcomes.note_broken(f"pytest ends with {code!r}")


def run_unittest(job: dict[str, Any], folder: str, outcomes: Outcomes) -> None:
    """Run a file of unittest's tests."""
    import unittest

    tests = types.ModuleType("test_solution")
    tests.__file__ = os.path.abspath("test_solution.py")
    sys.modules["test_solution"] = tests
    exec(compile(job["code"], "test_solution.py", "exec", dont_inherit=True), tests.__dict__)

    class Reporter(unittest.TestResult):
        def stopTest(self, test: unittest.TestCase) -> None:
            super().stopTest(test)
            outcomes.note(test.id(), None)

        def addError(self, test: Any, err: Any) -> None:
            super().addError(test, err)
            if isinstance(test, unittest.TestCase):
                outcomes.note(test.id(), self.errors[-1][1])
            else:  # what a class or module has before or after its tests
                outcomes.note_broken(self.errors[-1][1])

        def addFailure(self, test: Any, err: Any) -> None:
            super().addFailure(test, err)
            outcomes.note(test.id(), self.failures[-1][1])

        def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
            super().addSubTest(test, subtest, err)
            outcomes.note(test.id(), described(err[1]) if err is not None else None)

        def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
            super().addUnexpectedSuccess(test)
            outcomes.note(test.id(), "it was expected to fail")

    suite = unittest.defaultTestLoader.loadTestsFromModule(tests)
    leave_out(suite, job)
    suite.run(Reporter())


def is_run(name: str, job: dict[str, Any]) -> bool:
    """Return whether a test is one that a job runs."""
    return name not in job["left_out"] and (job["only"] is None or name.partition("[")[0] in job["only"])


def leave_out(suite: Any, job: dict[str, Any]) -> None:
    """Take the tests out of a suite that a job does not run. Those of a class stay in a suite of their own, whose fixtures they share."""
    from unittest.suite import BaseTestSuite

    suite._tests = [test for test in suite if isinstance(test, BaseTestSuite) or is_run(test.id(), job)]
    for test in suite:
        if isinstance(test, BaseTestSuite):
            leave_out(test, job)


def described(error: BaseException) -> str:
    """Return the class and the text of an exception."""
    try:
        text = str(error)
    except BaseException:  # an exception of the program's may be anything
        text = ""
    return f"{type(error).__name__}: {text}".rstrip(": ")


RUN: dict[str, Callable[[dict[str, Any], str, Outcomes], None]] = {
    "assert": run_assertions,
    "pytest": run_pytest,
    "unittest": run_unittest,
}
