"""How a test has ended, told to the host."""

from __future__ import annotations

from typing import Any

from agentrl.sandboxes.inside.own_faults import own_fault
from agentrl.sandboxes.inside.remote import Remote
from agentrl.sandboxes.inside.wire import TestEndedError, Wire


def send_outcome(
    wire: Wire, remote: Remote, job: dict[str, Any], name: str, error: BaseException | None, shown: str | None = None
) -> bool:
    """Tell the host how a test has ended, and return whether it has passed. `shown` describes the error where that itself does not do."""
    try:
        remote.raised.check_stops()
    except TestEndedError:  # which the host has noted
        pass
    status, message = "passed", ""
    if error is not None:
        status = "wrong_answer" if isinstance(error, AssertionError) else "runtime_error"
        message = (describe(error) if shown is None else shown) + _hint(remote)
        if (fault := own_fault(error, job["module"], job.get("files", ()), job["folders"])) is not None:
            status, message = "checker_error", fault
    wire.send(b"d", {"name": name, "status": status, "message": message})
    return status == "passed" and not wire.test_has_ended


def print_error() -> None:
    """Print the traceback of the exception that is handled."""
    import traceback

    traceback.print_exc()


def describe(error: BaseException) -> str:
    """Return the class and the text of an exception."""
    return f"{type(error).__name__}: {error}"[:2000].rstrip(": ")


def _hint(remote: Remote) -> str:
    """Return what may be the reason that a test fails whose program is right."""
    return (
        "\n(The program changed an argument and returned a value: the test sees such a change only with in_place = true.)"
        if remote.untold
        else ""
    )
