"""The last look: what passes in two processes must pass in one as well, as plain Python runs it. The other end is `inside/one_process.py`."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import anyio

from agentrl.sandboxes.grading.statuses import SHOWN_CHARACTERS
from agentrl.sandboxes.grading.verdict import Status, TestResult
from agentrl.sandboxes.inside.answer_bounds import Bounds, OutOfBoundsError, check_bounds
from agentrl.sandboxes.process import LongLineError, Process
from agentrl.sandboxes.sandbox import Sandbox
from agentrl.sandboxes.seams import EndReason, Limits

ONE_PROCESS = "from agentrl.sandboxes.inside.one_process import main; main()"
MAX_REPORT_BYTES = 2**20
"""Of what is said of the tests, which is read here. The program may have forged it."""
ITEMS_OF_A_TEST = 4
MORE_ITEMS = 10_000
"""A report has at most so many items for each test, and so many more, for the event loop stands still while it is read."""
OVER_A_LIMIT = (Status.TIME_LIMIT, Status.MEMORY_LIMIT, Status.OUTPUT_LIMIT, Status.CRASHED)
FAILS = "it does not pass in one process with its tests, as plain Python runs them"


async def fails_in_one_process(
    sandbox: Sandbox,
    source: str,
    job: Mapping[str, Any],
    results: Sequence[TestResult],
    limits: Limits,
    deadline: float,
) -> dict[str, str]:
    """Run test code and program in one process, and return which of the tests that have passed do not pass there.

    Tests that have failed run too, since what they do may be what others need. One may end or hang the process that all share: they
    are left out where they have exceeded a limit already, and where the run does not come to its end, it has those alone that passed.

    Args:
        sandbox: The candidate's. It is as new before and after it.
        source: The program.
        job: What the tests' process was given.
        results: What has become of the tests.
        limits: Those of the run, its time among them.
        deadline: A time of the event loop's clock, at which the run ends at the latest.

    Returns:
        Why, by the names of the tests. What needs more memory than the sandbox has for both is not counted against the program.

    Raises:
        SandboxError: The sandbox cannot be made as new.
        SandboxLostError: It is gone.
    """
    passed = {result.name for result in results if result.passed}
    failed = {result.name: result.status for result in results if not result.passed}
    over = [name for name, status in failed.items() if status in OVER_A_LIMIT]
    cases = Counter(map(_function, failed))
    found: dict[str, str] | str = {}
    if passed:
        chosen = {"left_out": over, "only": None}
        found = await _look(sandbox, source, {**job, **chosen}, passed, cases, limits, deadline)
    if isinstance(found, str) and len(over) < len(failed):
        chosen = {"left_out": [*failed], "only": sorted(map(_function, passed))}
        found = await _look(sandbox, source, {**job, **chosen}, passed, cases, limits, deadline)
    return dict.fromkeys(passed, f"{FAILS}: {found}") if isinstance(found, str) else found


async def _look(
    sandbox: Sandbox,
    source: str,
    job: Mapping[str, Any],
    passed: Collection[str],
    failed_cases: Counter[str],
    limits: Limits,
    deadline: float,
) -> dict[str, str] | str:
    """Return which of the tests that have passed do not pass; or why the run has not come to its end."""
    await sandbox.reset()
    limits = limits.but(timeout_s=min(limits.timeout_s, max(0.01, deadline - anyio.current_time())))
    secret = secrets.token_hex()
    sent = {**job, "source": source, "secret": secret}
    async with await sandbox.start_python(ONE_PROCESS, limits=limits) as process:
        await process.send(json.dumps(sent).encode() + b"\n")
        report = await _report(process, secret.encode())
        ended = None if report else await process.wait()
    await sandbox.reset()
    if ended is not None:
        return {} if ended.end_reason is EndReason.OUT_OF_MEMORY else f"the run ends by {ended.end_reason}"
    bounds = Bounds(length=MAX_REPORT_BYTES, items=MORE_ITEMS + ITEMS_OF_A_TEST * (len(passed) + failed_cases.total()))
    try:
        check_bounds(report, bounds)
        return _failed(json.loads(report), passed, failed_cases)
    except (
        OutOfBoundsError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
    ):  # the program has said it
        return "the run says nonsense"


async def _report(process: Process, secret: bytes) -> bytes:
    """Return what the process says of the tests, as JSON; empty where it says, or does, anything else."""
    try:
        line = await process.read_line(MAX_REPORT_BYTES)
    except LongLineError:
        return b""
    return line.removeprefix(secret) if line is not None and line.startswith(secret) else b""


def _failed(report: Any, passed: Collection[str], failed_cases: Mapping[str, int]) -> dict[str, str] | str:
    """Return which of the tests that have passed fail, or are not there, by a report of those in one process; or why that is broken.

    A parameter of the program's own may have another name where it is no stand-in: of such a test, as many cases may fail as have failed.
    """
    if report["broken"] is not None:
        return str(report["broken"])[:SHOWN_CHARACTERS]
    known = {str(name) for name in report["passed"]}
    failed = {str(name): str(text)[:SHOWN_CHARACTERS] for name, text in report["failed"].items()}
    others = {_function(name): text for name, text in failed.items() if name not in passed}
    cases = Counter(_function(name) for name in failed.keys() - passed)
    functions = {_function(name) for name in known}
    found: dict[str, str] = {}
    for name in passed:
        if name in known:
            continue
        function = _function(name)
        if name in failed or cases[function] > failed_cases.get(function, 0):
            found[name] = f"{FAILS}: {failed.get(name) or others[function]}"
        elif function not in functions:
            found[name] = f"{FAILS}: {next(iter(failed.values()), 'it is not run there')}"
    return found


def _function(name: str) -> str:
    """Return the name of a test without its parameters."""
    return name.partition("[")[0]
