"""A file of unittest's tests, run by unittest."""

from __future__ import annotations

import os
import sys
import types
import unittest
from typing import Any

from agentrl.sandboxes.inside.outcomes import send_outcome
from agentrl.sandboxes.inside.remote import Remote
from agentrl.sandboxes.inside.wire import Wire


def run(wire: Wire, remote: Remote, job: dict[str, Any]) -> None:
    """Run test code, and tell the host of each of its tests."""
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
                if error is not None and remote.raised.has(error):  # the candidate is not to choose what is skipped
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
