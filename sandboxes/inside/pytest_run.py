"""A file of pytest's tests, run by pytest."""

from __future__ import annotations

import sys
import tempfile
from typing import Any

from agentrl.sandboxes.inside.outcomes import send_outcome
from agentrl.sandboxes.inside.pytest_start import run_file
from agentrl.sandboxes.inside.remote import Remote
from agentrl.sandboxes.inside.stand_ins import RemoteClass, RemoteFunction
from agentrl.sandboxes.inside.wire import Wire

LONGEST_TEST_NAME = 1_000
NOT_RUN = "[NOTRUN]"
"""What pytest says of a test that it expects to fail and does not run."""


def run(wire: Wire, remote: Remote, job: dict[str, Any]) -> None:
    """Run test code, and tell the host of each of its tests."""
    try:
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

    class Reporter:
        """Tells the host of each test. An error is reported as text, and most are then shown as themselves."""

        def __init__(self) -> None:
            self.unseen = RuntimeError()
            self.long_names: dict[str, str] = {}
            self.collecting: BaseException = self.unseen
            self.running: str = job["name"]

        def pytest_pycollect_makeitem(self, name: str, obj: Any) -> list[Any] | None:
            """Return what the candidate calls test_... or Test... is none of the tests."""
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
            """Return the name of a test. Parameters are in it, which may be long, and the candidate's."""
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
            if remote.raised.has(
                excinfo.value
            ):  # SystemExit goes through pytest, out of a module or an object's __repr__
                send_outcome(wire, remote, job, self.running, excinfo.value)

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                send_outcome(wire, remote, job, report.nodeid, self.collecting, str(report.longreprtext)[-2000:])

    with tempfile.TemporaryDirectory() as own_folder:
        folder = next(iter(job["folders"]), own_folder)  # beside the files of the tests, a conftest.py among them
        job["folders"].append(own_folder)
        run_file(job["code"], folder, Reporter())
