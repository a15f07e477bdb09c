"""One run of test code: what its process and the candidate's say to each other, and the results that come of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from agentrl.sandboxes.grading.candidate_process import ENDED_TESTS, MAX_ANSWER_BYTES, CandidateProcess
from agentrl.sandboxes.grading.statuses import EARLIER_FAILED, tail
from agentrl.sandboxes.grading.verdict import Status, TestResult
from agentrl.sandboxes.inside.questions import Question
from agentrl.sandboxes.inside.wire import LOADED
from agentrl.sandboxes.process import LongLineError, Process
from agentrl.sandboxes.seams import EndReason

MAX_LINE_BYTES = 32 * 2**20
"""Of what test code's process says at once."""
MAX_REPORT_BYTES = 4 * 2**20
"""Of what it says of its tests, which is read here: the candidate chooses names that are in it."""
MOST_TESTS = 10_000
"""Of one file, which get a result each."""
HELD_TESTS = "the tests did not end in time with what it answered"
SKIPPED = "all tests are skipped for what the program says of itself"


class Exchange:
    """The results of one run of test code, as they come in."""

    def __init__(self, name: str) -> None:
        self.expected = 1
        """How many tests the test code has announced."""
        self.ended: dict[str, Any] | None = None
        """Why our own machinery has ended the test that runs, whatever its code makes of that."""
        self.questions: list[Question] = []
        """What is to be asked again."""
        self.told: dict[str, Any] = {}
        """What a later run needs to know beside them."""
        self.answers: list[tuple[str, str, str]] = []
        """What has become of that in a later run: the test, the number of the question, and whether its answer is the same."""
        self.looks: list[tuple[str, str, int, int]] = []
        """What was asked again beside others in a later run: the test, the number of the question, and how many of how many others had
        the same answer."""
        self.revoked: dict[str, str] = {}
        """Tests that are no pass, whatever their code makes of the candidate's answers, and why."""
        self.spoilt = False
        """Whether the candidate has changed an argument of which the tests were not told."""
        self.finished = False
        """Whether it has come to its end."""
        self._name = name
        self._answered = False
        """Whether the candidate has done something for the tests: what becomes of their process after that is its doing, since they come
        to an end with a program that is right."""
        self._said = b""
        self._results: list[TestResult] = []

    async def follow(self, tester: Process, candidate: CandidateProcess) -> None:
        """Pass on what test code and candidate say to each other, to the end."""
        self._candidate = candidate
        said_before = tester.stderr_bytes
        await tester.send(self.answer(LOADED, await candidate.load()))
        try:
            await self._pass_on(tester, candidate)
        except LongLineError as error:
            self._break_off(str(error).encode())
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            self._break_off(f"it says nonsense: {error!r}".encode())
        else:
            if not self.finished and candidate.failure is None:
                ended = await tester.wait()
                self._break_off(ended.stderr[said_before:], late=ended.end_reason is EndReason.TIMEOUT)

    async def _pass_on(self, tester: Process, candidate: CandidateProcess) -> None:
        calls_back = False
        while not self.finished:
            if calls_back:
                line = await candidate.wait_for(lambda: tester.read_line(MAX_ANSWER_BYTES))
            else:
                line = await tester.read_line(MAX_LINE_BYTES)
            if line is None:
                return
            if line[:1] == b"k":
                calls_back = True
            elif line[:1] in b"ac":
                calls_back = False
                tag, _, request = line[1:].strip().partition(b" ")
                answer = await candidate.ask(request)
                self._answered |= line[:1] == b"c"
                await tester.send(self.answer(tag, answer))
            elif len(line) > MAX_REPORT_BYTES:
                raise LongLineError(f"a report of more than {MAX_REPORT_BYTES} bytes")
            else:
                await self._hear(line[:1], line[1:])
            self.finished = line[:1] == b"f"

    def _break_off(self, said: bytes, *, late: bool = False) -> None:
        """Note why the run has not come to its end. It is the candidate's doing, if that has done something for the tests."""
        self._said = said
        if self._answered and self._candidate.failure is None:
            self._candidate.failure = (Status.TIME_LIMIT, HELD_TESTS) if late else (Status.RUNTIME_ERROR, ENDED_TESTS)

    async def _hear(self, kind: bytes, content: bytes) -> None:
        """Note what the test code's process says of its tests."""
        if kind == b"b":
            await self.begin()
        elif kind == b"d":
            self.end(json.loads(content))
        elif kind == b"n":
            self.expected = min(int(json.loads(content)), MOST_TESTS)
        elif kind == b"s":
            self.skip()
        elif kind == b"m":
            self._answered = True
        elif kind == b"t":
            self.spoilt = True
        elif kind == b"u":
            self.ended = json.loads(content)
        elif kind == b"q":
            told = json.loads(content)
            self.questions = [Question(*question) for question in told.pop("questions")]
            self.told = told
        elif kind == b"r":
            test, number, answer = json.loads(content)
            self.answers.append((test, number, answer))
        elif kind == b"l":
            test, number, alike, of = json.loads(content)
            self.looks.append((test, number, alike, of))
        elif kind == b"p":
            revoked = json.loads(content)
            self.revoked.setdefault(revoked["test"], revoked["message"])

    @property
    def over_time(self) -> bool:
        """Whether the candidate has exceeded its time."""
        return self._candidate.failure is not None and self._candidate.failure[0] is Status.TIME_LIMIT

    @property
    def failed(self) -> bool:
        """Whether a test has failed."""
        return any(not result.passed for result in self._results)

    def answer(self, tag: bytes, answer: bytes | None) -> bytes:
        """Return an answer of the candidate's to the request of a tag, as the tester reads it."""
        if answer is not None:
            return b"v" + tag + b" " + answer
        assert self._candidate.failure is not None
        status, message = self._candidate.failure
        told = {"why": f"{status}: {message}".replace("\n", " "), "exited": self._candidate.exited}
        return b"x" + tag + b" " + json.dumps(told).encode() + b"\n"

    async def begin(self) -> None:
        """Begin a test: with a whole time limit, and with a process, if the last one lost it."""
        self.ended = None
        if self._results:
            self._candidate.spent_s = 0.0
            if self._candidate.failure is not None:
                await self._candidate.load()

    def end(self, outcome: dict[str, Any]) -> None:
        """Note that a test has ended. One whose candidate has died has not passed, whatever the test code makes of that."""
        status, message = Status(outcome["status"]), outcome["message"]
        if self.ended is not None:
            status, message = Status(self.ended["status"]), self.ended["message"]
            self.ended = None
        if self._candidate.failure is not None:
            status, message = self._candidate.failure
        name = outcome["name"] or self._name
        spent_s = self._candidate.spent_s
        self._results.append(TestResult(name=name, status=status, message=message, duration_s=spent_s))

    def skip(self) -> None:
        """Note that a test has been skipped. One that our own machinery has ended is not."""
        if self.ended is not None or self._candidate.failure is not None:
            self.end({"name": "", "status": Status.RUNTIME_ERROR, "message": ""})
        else:
            self.expected -= 1

    def all_results(self) -> list[TestResult]:
        """Return the results, and one for each test that was announced and never ended."""
        finished, said = self.finished, tail(self._said)
        results = list(self._results)
        if len(results) == 1:
            usage = self._candidate.usage
            one = {**vars(results[0]), "cpu_s": usage.cpu_s, "peak_memory_bytes": usage.peak_memory_bytes}
            results = [TestResult(**one)]
        status, message = (
            Status.CHECKER_ERROR,
            "the test code has no tests" if finished else f"the test code ended: {said}",
        )
        if self._candidate.failure is not None:
            status, message = self._candidate.failure
        elif finished and self._answered and not results:
            status, message = Status.WRONG_ANSWER, SKIPPED
        elif finished and self.failed:
            status, message = Status.NOT_RUN, EARLIER_FAILED
        missing = max(self.expected, 1) - len(results)
        if missing <= 0 and not finished:  # it ended before it could say what is to be asked again
            results = [replace(one, status=status, message=message) if one.passed else one for one in results]
        return results + [TestResult(name=self._name, status=status, message=message)] * missing
