"""What the end of a run says of a test."""

from __future__ import annotations

from agentrl.sandboxes.grading.verdict import Status
from agentrl.sandboxes.protocol import Completed, Ended

DEADLINE_OVER = "the verdict's deadline was over"
EARLIER_FAILED = "an earlier test failed"
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
