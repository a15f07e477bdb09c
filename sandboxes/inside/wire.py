"""The tests' way to the host, and through it to the candidate; and what ends a test whatever its code does about it."""

from __future__ import annotations

import json
import os
from typing import Any, NoReturn

from agentrl.sandboxes.inside.answer_bounds import OutOfBoundsError, check_bounds

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
    """The way to the host, and through it to the candidate."""

    def __init__(self) -> None:
        self.gone = False
        """Whether the candidate's process has ended in this test."""
        self._ended: dict[str, Any] | None = None
        """Why the test that runs has ended, as TestEndedError is made of it."""
        self._input = os.dup(0)
        self.forget_answers()
        self._out = os.fdopen(os.dup(1), "wb")
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)

    def forget_answers(self) -> None:
        """Begin anew with what the host sends from here on: what was read already was for a process that this one has forked."""
        self._lines = open(self._input, "rb", closefd=False)

    def begin(self, name: str) -> None:
        """Tell the host that a test begins."""
        self._ended = None
        self.gone = False
        self.send(b"b", name)

    def send(self, kind: bytes, content: Any = None) -> None:
        self._out.write(kind + json.dumps(content).encode() + b"\n")
        self._out.flush()

    def receive(self, *, bounded: bool = True) -> dict[str, Any]:
        """The next answer of the candidate's, or, unless `bounded`, the host's job. Raises TestEndedError when there is none."""
        line = self._lines.readline()
        if line[:1] != b"v":
            self.gone = True
            told = json.loads(line[1:] or "{}")
            self._ended = {"why": told.get("why", "the host has ended"), "exited": told.get("exited", False)}
            raise TestEndedError(**self._ended)
        try:
            if bounded:
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
        """Ask the candidate. `looks`: for nothing that decides a test."""
        if self._ended is not None:
            raise TestEndedError(**self._ended)
        self.send(b"a" if looks else b"c", request)
        return self.receive()

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
