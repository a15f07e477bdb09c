"""The tests' way to the host, and through it to the candidate; and what ends a test whatever its code does about it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from select import select
from typing import Any, NoReturn

from agentrl.sandboxes.inside.answer_bounds import OutOfBoundsError, check_bounds
from agentrl.sandboxes.inside.signals import handlers_later

LOADED = b"loaded"
"""The tag of the answer to loading the program, which nobody here asks for."""
REPORTS = (b"b", b"d", b"n", b"s", b"p", b"q", b"t", b"f")
"""What is said of the tests, and not asked."""
CHUNK_BYTES = 1 << 18
LOOK_AGAIN_S = 0.02
"""How long an answer may be waited for before it is looked for among those that a signal's handler has read."""
LONGEST_MESSAGE = 2_000
"""Names of the candidate's may be in it, and the host reads it."""


class TestEndedError(BaseException):
    """Our own machinery has ended the test. It is none of the exceptions that a test expects, and the host has noted why."""

    __test__ = False

    def __init__(self, why: str, *, ours: bool = False, exited: bool = False) -> None:
        super().__init__(why)
        self.exited = exited
        """Whether the candidate's process has ended by itself, and not by a limit or a signal."""
        self.ours = ours
        """Whether it is no fault of the candidate's."""


class Wire:
    """The way to the host, and through it to the candidate.

    An answer has the tag of its request: a test may have stopped waiting for one, by an alarm, or may have ended a process of its own
    that waited. A job has the host's secret, its first line in: no answer that is left over is ever taken for one.
    """

    def __init__(self) -> None:
        self.gone = False
        """Whether the candidate's process has ended in this test."""
        self._ended: dict[str, Any] | None = None
        """Why the test that runs has ended, as TestEndedError is made of it."""
        self._input = os.dup(0)
        os.set_blocking(self._input, False)
        self._out = os.dup(1)
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)
        self._read = bytearray()
        self._requests = 0
        self._reporter = os.getpid()
        self._waiting: set[bytes] = set()
        """The tags of what was asked and is not answered: a signal's handler may ask too."""
        self._arrived: dict[bytes, bytes] = {}
        # A file without a name, since memory files are refused where nobody counts what is in them.
        self._turn = os.open("/tmp", os.O_TMPFILE | os.O_RDWR)
        self._host_has_ended = False
        self._secret = self._line() or b""

    def _line(self, *, timeout_s: float | None = None) -> bytes | None:
        """Return the next line from the host, without its end; None where none comes in time, or the host has ended."""
        searched = 0
        while (end := self._read.find(b"\n", searched)) < 0:
            searched = len(self._read)
            if not select([self._input], [], [], timeout_s)[0]:
                return None
            with handlers_later():
                try:
                    data = os.read(self._input, CHUNK_BYTES)
                except BlockingIOError:  # a signal's handler, or another process of the tests', has read it meanwhile
                    if timeout_s is not None:
                        return None
                    continue
                self._read += data
            if not data:
                self._host_has_ended = True
                return None
        line = bytes(self._read[:end])
        del self._read[: end + 1]
        return line

    def receive_job(self) -> dict[str, Any] | None:
        """Return the host's next job; None when it has ended."""
        while (line := self._line()) is not None:
            if line.startswith(self._secret):
                job: dict[str, Any] = json.loads(line[len(self._secret) :])
                return job
        return None

    def forget_answers(self) -> None:
        """Leave what was read already to the process that this one has forked."""
        self._read.clear()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Ask while no other process of the tests does."""
        os.lockf(self._turn, os.F_LOCK, 0)
        try:
            yield
        finally:
            os.lockf(self._turn, os.F_ULOCK, 0)

    @property
    def test_has_ended(self) -> bool:
        """Whether our own machinery has ended the test that runs, whatever its code makes of that."""
        return self._ended is not None

    def begin(self, name: str) -> None:
        """Tell the host that a test begins."""
        self._ended = None
        self.gone = False
        self.send(b"b", name)

    def begin_run(self) -> None:
        """Note that what this process says counts, and nothing that one says which the tests fork."""
        self._reporter = os.getpid()

    @property
    def reports(self) -> bool:
        """Whether this is the process that runs the tests."""
        return os.getpid() == self._reporter

    def send(self, kind: bytes, content: Any = None) -> None:
        """Send the host a line of one kind."""
        if not self.reports and kind in REPORTS:
            return
        view = memoryview(kind + json.dumps(content).encode() + b"\n")
        with handlers_later():
            while view:
                view = view[os.write(self._out, view) :]

    def receive(self, tag: bytes = LOADED) -> dict[str, Any]:
        """Return the answer of the candidate's to a request.

        Raises:
            TestEndedError: There is none.
        """
        self._waiting.add(tag)
        try:
            while tag not in self._arrived:
                line = self._line(timeout_s=LOOK_AGAIN_S)
                if line is None:
                    if self._host_has_ended:
                        self._arrived[tag] = b"x{}"
                    continue
                head, _, content = line.partition(b" ")
                if head[1:] in self._waiting:
                    self._arrived[head[1:]] = head[:1] + content
            line = self._arrived.pop(tag)
        finally:
            self._waiting.discard(tag)
        if line[:1] != b"v":
            self.gone = True
            told = json.loads(line[1:])
            self._ended = {"why": told.get("why", "the host has ended"), "exited": told.get("exited", False)}
            raise TestEndedError(**self._ended)
        try:
            check_bounds(line)
            answer = json.loads(line[1:])
        except OutOfBoundsError as error:
            self.wrong(str(error))
        except (ValueError, RecursionError):
            self.wrong("the candidate answered something that is not JSON")
        if not isinstance(answer, dict):
            self.wrong("the candidate's answer is not an object")
        return answer

    def call_back(self) -> None:
        """Tell the host that the tests do what the candidate asks of them, until the next request: it is waited for as the candidate is."""
        self.send(b"k")

    def ask(self, request: dict[str, Any], *, looks: bool = False) -> dict[str, Any]:
        """Ask the candidate. `looks`: for nothing that decides a test.

        Raises:
            TestEndedError: The test has ended, by the host or by our own machinery.
        """
        if self._ended is not None:
            raise TestEndedError(**self._ended)
        self._requests += 1
        tag = b"%d.%d" % (os.getpid(), self._requests)
        self._waiting.add(tag)  # before it is sent: a signal's handler that asks then may read the answer to this
        self.send((b"a" if looks else b"c") + tag + b" ", request)
        return self.receive(tag)

    def note_missing(self) -> None:
        """Tell the host that the tests have looked for a name that the candidate does not have."""
        self.send(b"m")

    def wrong(self, message: str) -> NoReturn:
        """End the test: the candidate has answered what no program answers."""
        self._end("wrong_answer", message)

    def ungradable(self, need: str) -> NoReturn:
        """End the test: it needs something that cannot be had. No fault of the candidate's, and no pass."""
        self._end("checker_error", f"the test needs {need}")

    def _end(self, status: str, message: str) -> NoReturn:
        message = message[:LONGEST_MESSAGE]
        self._ended = {"why": message, "ours": status == "checker_error"}
        self.send(b"u", {"status": status, "message": message})
        raise TestEndedError(**self._ended)
