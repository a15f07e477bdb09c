"""What the candidate has raised, as the tests get it."""

from __future__ import annotations

from typing import Any

from agentrl.sandboxes.inside.own_faults import OURS
from agentrl.sandboxes.inside.remote_values import RemoteValues
from agentrl.sandboxes.inside.wire import Wire


class Raised:
    """The exceptions of the candidate's."""

    def __init__(self, wire: Wire, values: RemoteValues) -> None:
        self._wire = wire
        self._values = values
        self._stops: list[BaseException] = []
        """Each StopIteration out of a function, and not of an iterator, since that was looked at last."""

    def has(self, error: BaseException) -> bool:
        """Return whether an exception is one of the candidate's."""
        return self._values.has(error)

    def check_stops(self) -> None:
        """End the test where a StopIteration out of a function, and not of an iterator, was seen by none of the test's own code.

        Where a test maps a function over its cases, it would end them early.
        """
        stops, self._stops = self._stops, []
        if not all(map(_seen_outside, stops)):
            self._wire.wrong("the candidate raised StopIteration where the test iterates, and not in an iterator")

    def error(self, raised: Any, request: dict[str, Any]) -> BaseException:
        """Return what to raise here."""
        error: Any
        try:
            error = self._values.value(raised["error"])
        except (TypeError, KeyError):
            self._wire.wrong("the candidate raises nonsense")
        if not isinstance(error, BaseException):
            self._wire.wrong("the candidate raises what is no exception")
        iterates = request["op"] in ("special", "method") and request["name"] in ("__next__", "send")
        if isinstance(error, StopIteration | StopAsyncIteration) and not iterates:
            self._stops.append(error)
        return error  # type: ignore[no-any-return]


def _seen_outside(error: BaseException) -> bool:
    """Return whether an exception has reached code that is not ours."""
    trace = error.__traceback__
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(OURS):
            return True
        trace = trace.tb_next
    return False
