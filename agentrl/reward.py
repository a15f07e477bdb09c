"""`Reward`, which a workflow returns, checked where it is made."""

from __future__ import annotations

import json
import math
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from numbers import Complex, Real
from typing import Any

from agentrl.errors import BadRewardError
from agentrl.system.failure_text import cut_middle, place_of_returns, shown, storable

MAX_REWARD = 1e6
"""Bound of |reward|. The square of a larger one loses its last digits in float32, in which the trainer computes."""
MAX_METRIC = 1e30
"""Bound of |metric|: the sum of squares of as many as there will ever be is finite."""
MAX_METRICS = 256
"""Metrics of one episode that are kept; how many more it logged is the metric `metrics_left_out`."""
MAX_METRIC_NAME_CHARS = 100
MAX_DETAILS_CHARS = 64_000
"""Bound of the details of an episode, as JSON. The middle of what goes beyond it is left out, with a note of how much that is."""
METRICS_LEFT_OUT = "metrics_left_out"
DETAILS_LEFT_OUT = "details_left_out"
_MAX_NOTES_CHARS = 400
"""Room for the notes that stand in place of cut values. How many more values there are is the detail `DETAILS_LEFT_OUT`."""


@dataclass(frozen=True)
class Reward:
    """The reward of an episode, with numbers to chart beside it, and details to read: what a verdict said, a judge's reason.

    A number is a float, an int, a bool, or what converts to a float: an array or a tensor of one element. Raises
    BadRewardError for all else, for a number that is not finite, for a |value| above `MAX_REWARD` or a |metric| above
    `MAX_METRIC`, for a metric whose name is no text of up to `MAX_METRIC_NAME_CHARS` characters, and for details that JSON does not
    hold. Nothing is computed from details. They are kept with the episode, up to `MAX_DETAILS_CHARS`.
    """

    value: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", checked_number("the reward", self.value, MAX_REWARD))
        object.__setattr__(self, "metrics", add_metrics({}, self.metrics))
        object.__setattr__(self, "details", _checked_details(self.details))

    @classmethod
    def of(cls, returned: object, function: object = None, name: str = "run(episode)") -> Reward:
        """Return the reward in what a function returned: a `Reward`, a number, or a bool.

        Args:
            returned: Its value.
            function: The function, for the message of an error.
            name: What the message calls it.

        Raises:
            BadRewardError: It is anything else.
        """
        try:
            if isinstance(returned, Reward):  # its metrics may have been changed since it was made
                return cls(returned.value, returned.metrics, returned.details)
            if is_number(returned):
                return cls(returned)  # type: ignore[arg-type]
            missing = "; a reward is missing after `return`" if returned is None else ""
            if isinstance(returned, Coroutine):
                returned.close()
                missing = "; an await is missing before what it returns"
            kind = type(returned).__name__
            raise BadRewardError(
                f"{name} returned {shown(returned)} of type {kind}; return a number or a Reward{missing}"
            )
        except BadRewardError as error:
            place = place_of_returns(function)
            raise BadRewardError(f"{error} (returned at {place})" if place else str(error)) from error.__cause__


def checked_number(name: str, value: object, bound: float) -> float:
    """Return `value`, which messages call `name`, as a float.

    Raises:
        BadRewardError: It is no finite number within ±`bound`.
    """
    number = math.nan
    if is_number(value):
        try:
            number = float(value.item() if getattr(value, "shape", ()) else value)  # type: ignore[arg-type, attr-defined]
        except Exception as error:
            why = shown(error)
            raise BadRewardError(f"{name} is {shown(value)}, which does not convert to a float: {why}") from error
    if not abs(number) <= bound:
        raise BadRewardError(f"{name} is {shown(value)}; it must be a finite number from {-bound:g} to {bound:g}")
    return number


def add_metrics(kept: dict[str, float], metrics: Mapping[str, float]) -> dict[str, float]:
    """Add metrics to `kept`, which is returned, and count those beyond `MAX_METRICS`.

    Raises:
        BadRewardError: As `Reward` does.
    """
    for name, value in metrics.items():
        if not isinstance(name, str) or not 0 < len(name) <= MAX_METRIC_NAME_CHARS or storable(name) != name:
            raise BadRewardError(
                f"{shown(name)} is no name of a metric: it must be text of 1 to {MAX_METRIC_NAME_CHARS} characters"
            )
        number = checked_number(f"the metric {name!r}", value, MAX_METRIC)
        if name in kept or name == METRICS_LEFT_OUT or len(kept) < MAX_METRICS:
            kept[name] = number
        else:
            kept[METRICS_LEFT_OUT] = kept.get(METRICS_LEFT_OUT, 0.0) + 1
    return kept


def _checked_details(details: object) -> dict[str, Any]:
    """Return details as JSON holds them, each as long as there is room.

    Raises:
        BadRewardError: It does not hold them.
    """
    if not isinstance(details, Mapping):
        raise BadRewardError(f"details is {shown(details)}; it must be a mapping, such as {{'reason': 'too long'}}")
    kept: dict[str, Any] = {}
    room = MAX_DETAILS_CHARS
    for name, value in details.items():
        try:
            text = json.dumps({name: value}, ensure_ascii=False, allow_nan=False)
        except Exception as error:
            raise BadRewardError(f"details[{shown(name)}] is {shown(value)}, no JSON: {shown(error)}") from error
        if room < -_MAX_NOTES_CHARS or len(name) > max(room, _MAX_NOTES_CHARS):
            kept[DETAILS_LEFT_OUT] = kept.get(DETAILS_LEFT_OUT, 0) + 1
            continue
        if len(text) > room:  # of the same share of a text as of its JSON
            said = value if isinstance(value, str) else text
            text = json.dumps({name: cut_middle(said, max(0, room) * len(said) // len(text))})
        kept |= json.loads(text)
        room -= len(text)
    return kept


def is_number(value: object) -> bool:
    """Return whether a value stands for one real number: no text, no array of several elements, nothing complex."""
    if isinstance(value, str | bytes) or (isinstance(value, Complex) and not isinstance(value, Real)):
        return False
    kind = type(value)
    return (hasattr(kind, "__float__") or hasattr(kind, "__index__")) and math.prod(getattr(value, "shape", ())) == 1
