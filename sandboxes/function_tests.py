"""Tests that call a candidate's functions: the host between the candidate's box and the one that holds the test code."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Self

import anyio

from agentrl.sandboxes.answers import ExpectedValue, raised
from agentrl.sandboxes.apart import compare_answer
from agentrl.sandboxes.box import Box, LongLineError, Process
from agentrl.sandboxes.inside.answer_bounds import Bounds
from agentrl.sandboxes.inside.plain_data import encode
from agentrl.sandboxes.inside.questions import Question
from agentrl.sandboxes.open_questions import Questions, constants
from agentrl.sandboxes.protocol import Completed, Ended, Limits
from agentrl.sandboxes.verdict import AssertTest, CallTest, Status, TestFile, TestResult
from agentrl.sandboxes.wanted_names import Wanted, wanted_names

CANDIDATE = "from agentrl.sandboxes.inside.candidate import main; main()"
TESTER = "from agentrl.sandboxes.inside.tester import main; main()"
TEST_CODE_TIMEOUT_S = 600.0
TEST_CODE_OUTPUT_MB = 64.0
"""For the process that runs test code. The candidate's share of its time has limits of its own."""
TESTER_GRACE_S = 2.0
"""How long after a verdict's deadline test code may still report what has become of its tests."""
ANSWERS_MB = 16
"""What a candidate may answer in all."""
MAX_ANSWER_BYTES = Bounds().length
"""Of one answer. On its way to the test code it is copied a few times."""
MAX_LINE_BYTES = 32 * 2**20
"""Of what test code's process says at once."""
MOST_TESTS = 10_000
"""Of one file, which get a result each."""
ENDED_TESTS = "it had the tests do what ended their process"
DEADLINE_OVER = "the verdict's deadline was over"
SHOWN_CHARACTERS = 2000

_STATUS_OF_END = {
    Ended.TIMEOUT: Status.TIME_LIMIT,
    Ended.OUT_OF_MEMORY: Status.MEMORY_LIMIT,
    Ended.OUTPUT_LIMIT: Status.OUTPUT_LIMIT,
}


def tail(output: bytes) -> str:
    """The end of some output, to show."""
    # No character of UTF-8 has more than four bytes.
    return output.rstrip()[-4 * SHOWN_CHARACTERS :].decode(errors="replace").strip()[-SHOWN_CHARACTERS:]


def status_of(done: Completed) -> tuple[Status, str]:
    """What a run's end alone says: PASSED when it ended by itself with exit code 0."""
    if done.ok:
        return Status.PASSED, ""
    if done.ended in _STATUS_OF_END:
        return _STATUS_OF_END[done.ended], ""
    how = f"signal {done.signal}" if done.ended is Ended.SIGNAL else f"exit code {done.exit_code}"
    return Status.RUNTIME_ERROR, tail(done.stderr) or how


class _Candidate:
    """The candidate's process, started when it is needed, and again after it has ended."""

    def __init__(
        self, box: Box, source: str, module: str, limits: Limits, deadline: float, *, cpu_s: float | None
    ) -> None:
        self.failure: tuple[Status, str] | None = None
        """Why the process has ended, if it has."""
        self.spent_s = 0.0
        """How long the candidate has been asked for, in this test."""
        self.usage = Completed(ended=Ended.KILLED)
        self._box = box
        self._load = json.dumps({"op": "load", "source": source, "module": module}).encode()
        self._time_s = limits.timeout_s
        self._deadline = deadline
        output_mb = max(limits.output_mb, ANSWERS_MB)
        self._limits = Limits(
            **{**vars(limits), "timeout_s": TEST_CODE_TIMEOUT_S, "cpu_s": cpu_s, "output_mb": output_mb}
        )
        self._process: Process | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._end()

    async def load(self) -> bytes | None:
        """Start the process and load the program; the answer, or None when there is none."""
        await self._end()
        self.failure = None
        if anyio.current_time() >= self._deadline:
            self.failure = (Status.TIME_LIMIT, DEADLINE_OVER)
            return None
        self._process = await self._box.start_python(CANDIDATE, limits=self._limits)
        return await self.ask(self._load)

    async def ask(self, request: bytes) -> bytes | None:
        """The answer to one request; None when the process has ended or the test's time is over, see `failure`."""
        if self.failure is not None or self._process is None:
            return None
        started = anyio.current_time()
        answer = None
        too_long = False
        with self._bound(started) as bound:
            await self._process.send(request + b"\n")
            try:
                answer = await self._process.read_line(MAX_ANSWER_BYTES)
            except LongLineError:
                too_long = True
        if self._spend(started, bound):
            return None
        if too_long:
            self.failure = (Status.OUTPUT_LIMIT, f"it answered more than {MAX_ANSWER_BYTES >> 20} MB at once")
        elif answer is None or not answer.endswith(b"\n"):
            self.usage = await self._process.wait()
            status, message = status_of(self.usage)
            self.failure = (Status.RUNTIME_ERROR, "it ended without an answer") if self.usage.ok else (status, message)
        else:
            return answer
        return None

    async def wait_for(self, line: Callable[[], Awaitable[bytes | None]]) -> bytes | None:
        """The next line of the test code's, which does what the candidate has asked of it: that takes the candidate's time, and whatever
        becomes of it is the candidate's doing. None when there is none, see `failure`."""
        started = anyio.current_time()
        found = None
        with self._bound(started) as bound:
            try:
                found = await line()
            except LongLineError:
                self.failure = (Status.OUTPUT_LIMIT, "it had the tests answer more than it may answer itself")
        if not self._spend(started, bound) and found is None and self.failure is None:
            self.failure = (Status.RUNTIME_ERROR, ENDED_TESTS)
        return found

    def _bound(self, started: float) -> anyio.CancelScope:
        return anyio.CancelScope(deadline=min(started + self._time_s - self.spent_s, self._deadline))

    def _spend(self, started: float, bound: anyio.CancelScope) -> bool:
        """Count the time since `started`; whether it was too long."""
        self.spent_s += anyio.current_time() - started
        if bound.cancelled_caught:
            self.failure = (Status.TIME_LIMIT, DEADLINE_OVER if anyio.current_time() >= self._deadline else "")
        return bound.cancelled_caught

    async def _end(self) -> None:
        if self._process is not None:
            async with self._process:
                if self._process.running:
                    await self._process.kill()
                    self.usage = await self._process.wait()
            self._process = None


async def judge_call(box: Box, source: str, test: CallTest, name: str, limits: Limits, deadline: float) -> TestResult:
    """Call one function once, and compare what comes back on this side. `deadline` is a time of the event loop's clock."""
    request = {
        "op": "call",
        "path": test.function,
        "args": [encode(value) for value in test.args],
        "kwargs": {key: encode(value) for key, value in test.kwargs.items()},
        "in_place": test.argument is not None,
    }
    async with _Candidate(box, source, "solution", limits, deadline, cpu_s=limits.cpu_s) as candidate:
        error = None
        answer = await candidate.load()
        if answer is not None and (error := raised(answer)) is None:
            answer = await candidate.ask(json.dumps(request).encode())
            error = None if answer is None else raised(answer)
        if candidate.failure is not None:
            status, message = candidate.failure
        elif error is not None:
            status, message = Status.RUNTIME_ERROR, error
        else:
            assert answer is not None
            status, message = await compare_answer(_expectation(test), answer, deadline)
    return TestResult(
        name=name,
        status=status,
        message=message,
        duration_s=candidate.spent_s,
        cpu_s=candidate.usage.cpu_s,
        peak_memory_bytes=candidate.usage.peak_memory_bytes,
    )


def _expectation(test: CallTest) -> ExpectedValue:
    before = None if test.argument is None else test.args[test.argument]
    return ExpectedValue(test.expected, test.tolerance, test.nan_equal, test.argument, before)


async def run_test_code(
    box: Box,
    test_box: Box,
    source: str,
    test: AssertTest | TestFile,
    name: str,
    limits: Limits,
    deadline: float,
    *,
    fail_fast: bool = False,
) -> list[TestResult]:
    """Run test code in `test_box` against the candidate in `box`, passing calls one way and answers the other.

    What the tests have asked of the candidate's operators is asked again in further runs, each in new processes, with other operands:
    a test that would have passed with any of them has not passed.

    `deadline` is a time of the event loop's clock: at its end, whoever is waited for has failed, the candidate or the test code.
    """
    job = _job(test, name, test.module if isinstance(test, TestFile) else "solution")
    # A file's tests share the candidate's process, whose CPU seconds are then no single test's.
    cpu_s = limits.cpu_s if isinstance(test, AssertTest) else None

    async def run(replay: dict[str, Any] | None, session: _Session, *, fail_fast: bool = False) -> None:
        await test_box.clear()
        left_s = max(0.0, deadline - anyio.current_time()) + TESTER_GRACE_S
        timeout_s = min(TEST_CODE_TIMEOUT_S, left_s)
        own_limits = test_box.spec.limits.but(timeout_s=timeout_s, output_mb=TEST_CODE_OUTPUT_MB)
        tester = await test_box.start_python(TESTER, limits=own_limits)
        async with tester, _Candidate(box, source, str(job["module"]), limits, deadline, cpu_s=cpu_s) as candidate:
            # A program must not tell which run this is by how many processes or files there were before, or how old the box is.
            await box.reset()
            if isinstance(test, TestFile):
                for path in test.shared:
                    await box.write(path, test.file(path))
            await tester.send(b"v" + json.dumps({**job, "replay": replay}).encode() + b"\n")
            await session.follow(tester, candidate, fail_fast=fail_fast)

    session = _Session(name)
    await run(None, session, fail_fast=fail_fast)
    results = session.all_results()
    passed = {result.name for result in results if result.passed}
    questions = Questions([question for question in session.questions if question.test in passed])
    known = {**session.told, "constants": constants(source)} if questions.open_tests else {}
    revoked = session.revoked
    for replay in questions.runs():
        if anyio.current_time() >= deadline:
            revoked |= dict.fromkeys(questions.open_tests, f"{DEADLINE_OVER} before it could be run again")
            break
        replayed = _Session(name)
        await run({**replay, **known}, replayed)
        revoked |= replayed.revoked
        # With more to do, what is slow may not come to its questions in time.
        like_first = replay["keeps"] and not replay["shifts"] and not replayed.over_time
        questions.note(replayed.answers, replayed.looks, like_first=like_first)
        questions.leave_out(revoked)
        if fail_fast and revoked:
            break
    revoked |= questions.same_whatever_is_asked()
    return [
        replace(result, status=Status.WRONG_ANSWER, message=revoked[result.name])
        if result.passed and result.name in revoked
        else result
        for result in results
    ]


class _Session:
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
        self._name = name
        self._finished = False
        self._called_back = False
        """Whether the candidate's last answer was to have the tests do something."""
        self._said = b""
        self._results: list[TestResult] = []

    async def follow(self, tester: Process, candidate: _Candidate, *, fail_fast: bool) -> None:
        """Pass on what test code and candidate say to each other, to the end."""
        self._candidate = candidate
        await tester.send(self.answer(await candidate.load()))
        try:
            while not self._finished and (line := await tester.read_line(MAX_LINE_BYTES)) is not None:
                if line[:1] == b"k":
                    line = await candidate.wait_for(lambda: tester.read_line(MAX_ANSWER_BYTES))
                    if line is None:
                        return
                if line[:1] == b"c":
                    answer = await candidate.ask(line[1:].strip())
                    self._called_back = answer is not None and b'"callback"' in answer
                    await tester.send(self.answer(answer))
                else:
                    await self._hear(line[:1], line[1:])
                self._finished = line[:1] == b"f" or (fail_fast and self.failed)
        except LongLineError as error:
            self._said = str(error).encode()
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            self._said = f"it says nonsense: {error!r}".encode()
        else:
            self._said = b"" if self._finished else (await tester.wait()).stderr
            if not self._finished and self._called_back and candidate.failure is None:
                candidate.failure = (Status.RUNTIME_ERROR, ENDED_TESTS)

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

    def answer(self, answer: bytes | None) -> bytes:
        """An answer of the candidate's as the tester reads it."""
        if answer is not None:
            return b"v" + answer
        assert self._candidate.failure is not None
        status, message = self._candidate.failure
        return f"x{status}: {message}".replace("\n", " ").encode() + b"\n"

    async def begin(self) -> None:
        """A test begins: with a whole time limit, and with a process, if the last one lost it."""
        self.ended = None
        if self._results:
            self._candidate.spent_s = 0.0
            if self._candidate.failure is not None:
                await self._candidate.load()

    def end(self, outcome: dict[str, Any]) -> None:
        """A test has ended. One whose candidate has died has not passed, whatever the test code makes of that."""
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
        """A test has been skipped. One that our own machinery has ended is not."""
        if self.ended is not None or self._candidate.failure is not None:
            self.end({"name": "", "status": Status.RUNTIME_ERROR, "message": ""})
        else:
            self.expected -= 1

    def all_results(self) -> list[TestResult]:
        """The results, and one for each test that was announced and never ended."""
        finished, said = self._finished, tail(self._said)
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
        elif finished and self.failed:
            status, message = Status.NOT_RUN, "an earlier test failed"
        missing = max(self.expected, 1) - len(results)
        if missing <= 0 and not finished:  # it ended before it could say what is to be asked again
            results = [replace(one, status=status, message=message) if one.passed else one for one in results]
        return results + [TestResult(name=self._name, status=status, message=message)] * missing


def _job(test: AssertTest | TestFile, name: str, module: str) -> dict[str, Any]:
    wanted = wanted_names([test])
    job = {
        "name": name,
        "code": test.code,
        "module": module,
        "in_place": test.in_place,
        "names": list(wanted),
        "functions": [name for name, kind in wanted.items() if kind is Wanted.FUNCTION],
        "prelude": "",
        "entry_point": None,
        "candidate_names": (),
    }
    if isinstance(test, TestFile):
        laid_out = {path: base64.b64encode(test.file(path)).decode() for path in test.files}
        return {**job, "kind": test.framework, "files": laid_out}
    return {
        **job,
        "kind": "assert",
        "prelude": test.prelude,
        "entry_point": test.entry_point,
        "candidate_names": test.candidate_names,
    }
