"""The last look: what passes in two processes must pass in one as well, as plain Python runs it. The other end is `inside/one_process.py`."""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import anyio

from agentrl.sandboxes.grading.candidate_process import TEST_CODE_TIMEOUT_S
from agentrl.sandboxes.grading.exchange import MAX_REPORT_BYTES
from agentrl.sandboxes.grading.tester_process import TEST_CODE_OUTPUT_MB
from agentrl.sandboxes.grading.verdict import Status, TestResult
from agentrl.sandboxes.process import LongLineError, Process
from agentrl.sandboxes.protocol import EndReason
from agentrl.sandboxes.sandbox import Sandbox

ONE_PROCESS = "from agentrl.sandboxes.inside.one_process import main; main()"
OVER_A_LIMIT = (Status.TIME_LIMIT, Status.MEMORY_LIMIT, Status.OUTPUT_LIMIT, Status.CRASHED)
FAILS = "it does not pass in one process with its tests, as plain Python runs them"


async def fails_in_one_process(
    sandbox: Sandbox, source: str, job: Mapping[str, Any], results: Sequence[TestResult], deadline: float
) -> dict[str, str]:
    """Run test code and program in one process, and return which of the tests that have passed do not pass there.

    Tests that have failed run too, since what they do may be what others need. One may end or hang the process that all share: they
    are left out where they have exceeded a limit already, and all of them where the run does not come to its end.

    Args:
        sandbox: The candidate's. It is as new before and after it.
        source: The program.
        job: What the tests' process was given.
        results: What has become of the tests.
        deadline: A time of the event loop's clock.

    Returns:
        Why, by the names of the tests. What needs more memory than the sandbox has for both is not counted against the program.

    Raises:
        SandboxError: The sandbox cannot be made as new.
        SandboxLostError: It is gone.
    """
    passed = {result.name for result in results if result.passed}
    failed = {result.name: result.status for result in results if not result.passed}
    over = [name for name, status in failed.items() if status in OVER_A_LIMIT]
    found = await _look(sandbox, source, job, passed, over, deadline) if passed else {}
    if found is None and len(over) < len(failed):
        found = await _look(sandbox, source, job, passed, [*failed], deadline)
    return dict.fromkeys(passed, f"{FAILS}: they do not come to an end") if found is None else found


async def _look(
    sandbox: Sandbox,
    source: str,
    job: Mapping[str, Any],
    passed: Collection[str],
    left_out: Sequence[str],
    deadline: float,
) -> dict[str, str] | None:
    """Return which of the tests that have passed do not pass; None where the run has not come to its end."""
    await sandbox.reset()
    timeout_s = min(TEST_CODE_TIMEOUT_S, max(0.01, deadline - anyio.current_time()))
    limits = sandbox.spec.limits.but(timeout_s=timeout_s, output_mb=TEST_CODE_OUTPUT_MB)
    secret = secrets.token_hex()
    sent = {**job, "source": source, "secret": secret, "left_out": left_out}
    async with await sandbox.start_python(ONE_PROCESS, limits=limits) as process:
        await process.send(json.dumps(sent).encode() + b"\n")
        report = await _report(process, secret.encode())
        ended = None if report else await process.wait()
    await sandbox.reset()
    if ended is not None:
        return {} if ended.end_reason is EndReason.OUT_OF_MEMORY else None
    try:
        return _failed(json.loads(report), passed)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):  # the program has said it
        return None


async def _report(process: Process, secret: bytes) -> bytes:
    """Return what the process says of the tests, as JSON; empty where it ends, or says too much, without."""
    try:
        while line := await process.read_line(MAX_REPORT_BYTES):
            if line.startswith(secret):
                return line.removeprefix(secret)
    except LongLineError:
        pass
    return b""


def _failed(report: Any, passed: Collection[str]) -> dict[str, str] | None:
    """Return which of the tests that have passed fail, or are not there, by a report of those in one process; None where that is broken."""
    if report["broken"] is not None:
        return None
    known = {str(name) for name in report["passed"]}
    failed = {str(name): str(text) for name, text in report["failed"].items()}
    others = {_function(name): text for name, text in failed.items() if name not in passed}
    functions = {_function(name) for name in known}
    found: dict[str, str] = {}
    for name in passed:
        if name in known:
            continue
        # A parameter of the program's may have another name where it is no stand-in.
        function = _function(name)
        if name in failed or function in others:
            found[name] = f"{FAILS}: {failed.get(name) or others[function]}"
        elif function not in functions:
            found[name] = f"{FAILS}: {next(iter(failed.values()), 'it is not run there')}"
    return found


def _function(name: str) -> str:
    """Return the name of a test without its parameters."""
    return name.partition("[")[0]
