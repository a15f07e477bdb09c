"""The results of test code, as its process tells them to the host: one line in the end, which begins with a nonce."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from json import dumps  # a program can replace json's
from types import FrameType, TracebackType
from typing import Any, BinaryIO

from agentrl.sandboxes.inside.program_calls import in_a_line
from agentrl.sandboxes.inside.remote_program import RemoteProgram

SHOWN_CHARACTERS = 2000
GRACE_S = 3.0
"""How long a program may catch the exception that ends its test, or be where none can be raised, such as `__del__` and a fork."""
TESTS = "<tests>"
"""The file name of test code that has none."""
REMOTE = "<agentrl.sandboxes.inside.remote_program>"
"""That of the module in which exceptions of a program that runs apart are raised."""


class TimeUpError(BaseException):
    """The time of the test that runs is over."""


class Report:
    """The report on the tests: how each ended.

    With a `remote` program its calls may fail a test. Without one, program and tests share this process, and each test has `timeout_s` by
    the clock and `cpu_s` of CPU time. `job` is that of `runner.py`, and `reports` leads to the host.
    """

    def __init__(self, job: dict[str, Any], remote: RemoteProgram | None, reports: BinaryIO) -> None:
        self.job = job
        self.remote = remote
        self.reports = reports
        self.results: list[tuple[str, str, str]] = []
        """Name, status and message of each test that has ended."""
        self.functions: set[str] = set()
        """The test functions that have run, or that the tests themselves have skipped."""
        self.own_process = os.getpid()

    @property
    def failed(self) -> bool:
        """Whether a test has failed."""
        return any(status != "passed" for _, status, _ in self.results)

    def begin(self) -> None:
        """Give a test time of its own, and a program that has lost its process another one."""
        if self.remote is not None:
            self.remote.test += 1
            self.remote.failure = None
        else:
            self.start_clocks()

    def start_clocks(self) -> None:
        """End what runs here when its time is over: by an exception, or with the whole process; by the first process, where this blocks signals."""
        self.reports.write(b"\n")
        self.reports.flush()
        self._is_over = False
        for number in (signal.SIGALRM, signal.SIGPROF):
            signal.signal(number, self._end_test)
        self._set_clocks(self.job["timeout_s"], self.job["cpu_s"], self.job["cpu_s"] + 1)

    def _end_test(self, number: int, frame: FrameType | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._set_clocks(GRACE_S, 0, GRACE_S)
            raise TimeUpError("the time limit is over")
        os.kill(os.getpid(), signal.SIGVTALRM)

    def _set_clocks(self, *times_s: float) -> None:
        for timer, time_s in zip((signal.ITIMER_REAL, signal.ITIMER_PROF, signal.ITIMER_VIRTUAL), times_s, strict=True):
            signal.setitimer(timer, time_s)

    def end(self, name: str, function: str, error: BaseException | None, text: str | None = None) -> None:
        """Note that a test has ended: it has passed if there is no `error`. `text` shows what was wrong."""
        if self.remote is None:
            self._set_clocks(0, 0, 0)
        status, message = "passed", ""
        if error is not None:
            status, message = self.status_of(error), text or in_a_line(error)
        if self.remote is not None and self.remote.failure is not None:
            status, message = self.remote.failure
        self.functions.add(function)
        self.results.append((name, status, message[-SHOWN_CHARACTERS:]))

    def skip(self, name: str, function: str, *errors: BaseException | None) -> None:
        """Note that a test was skipped. The program is not to choose which: that counts as a failure."""
        if any(error is not None and self.is_of_program(error) for error in errors):
            self.end(name, function, RuntimeError("the program skips the test"))
        elif self.remote is not None and self.remote.failure is not None:
            self.end(name, function, None)
        else:
            self.functions.add(function)

    def status_of(self, error: BaseException) -> str:
        """Return what an exception that has ended a test says of it."""
        if isinstance(error, TimeUpError):
            return "time_limit"
        if isinstance(error, AssertionError) or type(error).__name__ == "Failed":
            return "wrong_answer"
        if isinstance(error, ImportError | SyntaxError) and not self.is_of_program(error):
            return "checker_error"  # the tests cannot run, whatever the program
        return "runtime_error"

    def is_of_program(self, error: BaseException) -> bool:
        """Return whether an exception is the program's: raised in its code, for want of a name in it, or by its text."""
        names = [os.path.basename(file) for file, _ in places(error.__traceback__)]
        names += [os.path.basename(error.filename or "")] if isinstance(error, SyntaxError) else []
        module = self.job["module"]
        of_module = isinstance(error, ImportError) and (error.name or "").partition(".")[0] == module
        return of_module or f"{module}.py" in names or REMOTE in names

    def fail_all(self, message: str) -> None:
        """Make every pass a failure."""
        self.results = [
            (name, "wrong_answer", message) if status == "passed" else (name, status, text)
            for name, status, text in self.results
        ]

    def send(self, nonce: str) -> None:
        """Send the report, and end the process. A process that the program has forked sends none."""
        if os.getpid() == self.own_process:
            told = {"results": self.results, "functions": sorted(self.functions)}
            self.reports.write(nonce.encode() + dumps(told).encode() + b"\n")
            self.reports.flush()
        os._exit(0)


def places(trace: TracebackType | None) -> Iterator[tuple[str, int]]:
    """Yield the file and the line of each call that an exception has gone through."""
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next


def line_of(code: str, trace: TracebackType | None) -> str:
    """Return the line of test code that an exception has come from."""
    numbers = [number for file, number in places(trace) if file == TESTS]
    return code.splitlines()[numbers[-1] - 1].strip() if numbers else ""
