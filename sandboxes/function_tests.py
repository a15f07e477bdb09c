"""Tests that call a candidate's functions: the host between the candidate's box and the one that holds the test code."""

from __future__ import annotations

import base64
import json
from typing import Any, Self

import anyio

from agentrl.sandboxes.box import Box, Process
from agentrl.sandboxes.comparison import same_value
from agentrl.sandboxes.inside.plain_data import decode, encode
from agentrl.sandboxes.protocol import Completed, Ended, Limits
from agentrl.sandboxes.verdict import AssertTest, CallTest, Status, TestFile, TestResult
from agentrl.threads import in_thread

CANDIDATE = "from agentrl.sandboxes.inside.candidate import main; main()"
TESTER = "from agentrl.sandboxes.inside.tester import main; main()"
CANDIDATE_MODULES = ("plain_data", "special_methods", "candidate_objects", "candidate")
TESTER_MODULES = ("plain_data", "wire", "names", "special_methods", "stand_ins", "probes", "remote", "tester")
TEST_CODE_TIMEOUT_S = 600.0
TEST_CODE_OUTPUT_MB = 64.0
"""For the process that runs test code. The candidate's share of its time has limits of its own."""
ANSWERS_MB = 16
"""What a candidate may answer in all."""
LONG_ANSWER = 1 << 16
"""Bytes from which an answer is read in a thread."""
SHOWN_CHARACTERS = 2000

_STATUS_OF_END = {
    Ended.TIMEOUT: Status.TIME_LIMIT,
    Ended.OUT_OF_MEMORY: Status.MEMORY_LIMIT,
    Ended.OUTPUT_LIMIT: Status.OUTPUT_LIMIT,
}


def tail(output: bytes) -> str:
    """The end of some output, to show."""
    return output.decode(errors="replace").strip()[-SHOWN_CHARACTERS:]


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

    def __init__(self, box: Box, source: str, module: str, limits: Limits, *, cpu_s: float | None) -> None:
        self.failure: tuple[Status, str] | None = None
        """Why the process has ended, if it has."""
        self.spent_s = 0.0
        """How long the candidate has been asked for, in this test."""
        self.usage = Completed(ended=Ended.KILLED)
        self._box = box
        self._load = json.dumps({"op": "load", "source": source, "module": module}).encode()
        self._time_s = limits.timeout_s
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
        self._process = await self._box.start_python(CANDIDATE, modules=CANDIDATE_MODULES, limits=self._limits)
        return await self.ask(self._load)

    async def ask(self, request: bytes) -> bytes | None:
        """The answer to one request; None when the process has ended or the test's time is over, see `failure`."""
        if self.failure is not None or self._process is None:
            return None
        started = anyio.current_time()
        answer = None
        with anyio.move_on_after(self._time_s - self.spent_s) as bound:
            await self._process.send(request + b"\n")
            answer = await self._process.read_line()
        self.spent_s += anyio.current_time() - started
        if bound.cancelled_caught:
            self.failure = (Status.TIME_LIMIT, "")
        elif answer is None or not answer.endswith(b"\n"):
            self.usage = await self._process.wait()
            status, message = status_of(self.usage)
            self.failure = (Status.RUNTIME_ERROR, "it ended without an answer") if self.usage.ok else (status, message)
        else:
            return answer
        return None

    async def _end(self) -> None:
        if self._process is not None:
            async with self._process:
                if self.failure is None:
                    await self._process.kill()
                    self.usage = await self._process.wait()
            self._process = None


async def judge_call(box: Box, source: str, test: CallTest, name: str, limits: Limits) -> TestResult:
    """Call one function once, and compare what comes back here."""
    request = {
        "op": "call",
        "path": test.function,
        "args": [encode(value) for value in test.args],
        "kwargs": {key: encode(value) for key, value in test.kwargs.items()},
        "in_place": test.argument is not None,
    }
    async with _Candidate(box, source, "solution", limits, cpu_s=limits.cpu_s) as candidate:
        answer = await candidate.load()
        if answer is not None and _raised(answer) is None:
            answer = await candidate.ask(json.dumps(request).encode())
        if candidate.failure is not None:
            status, message = candidate.failure
        else:
            assert answer is not None
            if len(answer) > LONG_ANSWER:
                status, message = await in_thread(_judge_answer, answer, test)
            else:
                status, message = _judge_answer(answer, test)
    return TestResult(
        name=name,
        status=status,
        message=message,
        duration_s=candidate.spent_s,
        cpu_s=candidate.usage.cpu_s,
        peak_memory_bytes=candidate.usage.peak_memory_bytes,
    )


def _judge_answer(answer: bytes, test: CallTest) -> tuple[Status, str]:
    raised = _raised(answer)
    if raised is not None:
        return Status.RUNTIME_ERROR, raised
    try:
        content = json.loads(answer)
        if test.argument is None:
            got = decode(content["ok"])
        elif (changed := content["changed"].get(str(test.argument))) is not None:
            got = decode(changed)
        else:
            got = test.args[test.argument]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return Status.WRONG_ANSWER, f"the answer is not plain data: {error}"
    try:
        agrees = same_value(got, test.expected, test.tolerance)
    except RecursionError:
        agrees = False
    if agrees:
        return Status.PASSED, ""
    return Status.WRONG_ANSWER, f"{_shown(got)}, expected {_shown(test.expected)}"


def _raised(answer: bytes) -> str | None:
    """What the candidate raised, as text; None when it did not, or when the answer makes no sense."""
    if not answer.startswith(b'{"raised"'):
        return None
    try:
        raised = json.loads(answer)["raised"]
        return f"{raised['classes'][0]}: {raised['text']}"[:SHOWN_CHARACTERS]
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return "an exception"


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return f"a {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}…"


async def run_test_code(
    box: Box, test_box: Box, source: str, test: AssertTest | TestFile, name: str, limits: Limits
) -> list[TestResult]:
    """Run test code in `test_box` against the candidate in `box`, passing calls one way and answers the other."""
    module = test.module if isinstance(test, TestFile) else "solution"
    job = _job(test, name, module)
    # A file's tests share the candidate's process, whose CPU seconds are then no single test's.
    cpu_s = limits.cpu_s if isinstance(test, AssertTest) else None
    own_limits = test_box.spec.limits.but(timeout_s=TEST_CODE_TIMEOUT_S, output_mb=TEST_CODE_OUTPUT_MB)
    tester = await test_box.start_python(TESTER, modules=TESTER_MODULES, limits=own_limits)
    async with tester, _Candidate(box, source, module, limits, cpu_s=cpu_s) as candidate:
        await tester.send(b"v" + json.dumps(job).encode() + b"\n")
        session = _Session(name, candidate)
        await tester.send(session.answer(await candidate.load()))
        finished = False
        while not finished and (line := await tester.read_line()) is not None:
            content = line[1:].strip()
            if line[:1] == b"c":
                await tester.send(session.answer(await candidate.ask(content)))
            elif line[:1] == b"b":
                await session.begin()
            elif line[:1] == b"d":
                session.end(json.loads(content))
            elif line[:1] == b"n":
                session.expected = json.loads(content)
            elif line[:1] == b"s":
                session.skip()
            elif line[:1] == b"u":
                session.ended = json.loads(content)
            elif line[:1] == b"p":
                session.revoke(json.loads(content))
            finished = line[:1] == b"f"
        said = b"" if finished else (await tester.wait()).stderr
    return session.all_results(finished=finished, said=tail(said))


class _Session:
    """The results of one run of test code, as they come in."""

    def __init__(self, name: str, candidate: _Candidate) -> None:
        self.expected = 1
        """How many tests the test code has announced."""
        self.ended: dict[str, Any] | None = None
        """Why our own machinery has ended the test that runs, whatever its code makes of that."""
        self._name = name
        self._candidate = candidate
        self._results: list[TestResult] = []

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

    def revoke(self, found: dict[str, Any]) -> None:
        """A test that has passed is none that passes: what its candidate answers fails a probe."""
        index = found["index"]
        if index < len(self._results) and self._results[index].passed:
            changed = {"status": Status.WRONG_ANSWER, "message": found["message"]}
            self._results[index] = TestResult(**{**vars(self._results[index]), **changed})

    def all_results(self, *, finished: bool, said: str) -> list[TestResult]:
        """The results, and one for each test that was announced and never ended."""
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
        missing = max(self.expected, 1) - len(results)
        return results + [TestResult(name=self._name, status=status, message=message)] * missing


def _job(test: AssertTest | TestFile, name: str, module: str) -> dict[str, Any]:
    job = {
        "name": name,
        "code": test.code,
        "module": module,
        "in_place": test.in_place,
        "prelude": "",
        "entry_point": None,
    }
    if isinstance(test, TestFile):
        files = {path: (data.encode() if isinstance(data, str) else data) for path, data in test.files.items()}
        laid_out = {path: base64.b64encode(data).decode() for path, data in files.items()}
        return {**job, "kind": test.framework, "files": laid_out}
    return {**job, "kind": "assert", "prelude": test.prelude, "entry_point": test.entry_point}
