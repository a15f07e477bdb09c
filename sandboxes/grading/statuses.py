"""Turn the end of a run into the status of a test."""

from __future__ import annotations

from agentrl.sandboxes.grading.verdict import Status
from agentrl.sandboxes.seams import EndReason, ExecResult

DEADLINE_OVER = "the verdict's deadline was over"
EARLIER_FAILED = "an earlier test failed"
SHOWN_CHARACTERS = 2000

_STATUS_OF_END = {
    EndReason.TIMEOUT: Status.TIME_LIMIT,
    EndReason.OUT_OF_MEMORY: Status.MEMORY_LIMIT,
    EndReason.OUTPUT_LIMIT: Status.OUTPUT_LIMIT,
}


def tail(output: bytes) -> str:
    """Return the end of some output, to show."""
    # No character of UTF-8 has more than four bytes.
    return output.rstrip()[-4 * SHOWN_CHARACTERS :].decode(errors="replace").strip()[-SHOWN_CHARACTERS:]


def status_of(done: ExecResult) -> tuple[Status, str]:
    """Return what a run's end alone says: PASSED when it ended by itself with exit code 0."""
    if done.ok:
        return Status.PASSED, ""
    if done.end_reason in _STATUS_OF_END:
        return _STATUS_OF_END[done.end_reason], ""
    how = f"signal {done.signal}" if done.end_reason is EndReason.SIGNAL else f"exit code {done.exit_code}"
    return Status.RUNTIME_ERROR, tail(done.stderr) or how
