"""A training step as the run's history has it: over which sequences of which groups, in which minibatches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

Count = Annotated[int, Field(ge=0, lt=2**31)]
GroupSizes = tuple[tuple[int, Count], ...]
"""(group id, number of its training sequences), by group id."""
Ranges = Annotated[str, Field(pattern=r"^[0-9]{1,9}(-[0-9]{1,9})?(,[0-9]{1,9}(-[0-9]{1,9})?)*$")]
Minibatch = tuple[tuple[int, Ranges], ...]
"""(group id, numbers of its sequences in the minibatch, such as "0-2,5"), by group id."""


@dataclass(frozen=True)
class TrainedStep:
    """One training step that a policy has taken. Made by `trained_step`."""

    step: int
    groups: GroupSizes
    minibatches: tuple[Minibatch, ...]
    """Which sequences each was made of. Every sequence of the batch is in one, also one that has nothing to teach."""
    optimizer_steps: Count
    """Steps that the optimizer took; it takes none for a gradient that is not finite."""

    @property
    def group_ids(self) -> list[int]:
        """The groups of its batch."""
        return [group for group, _ in self.groups]

    def to_json(self) -> dict[str, Any]:
        """Return the step as JSON."""
        return vars(self) | {"groups": list(self.groups), "minibatches": list(self.minibatches)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> TrainedStep:
        """Return the step that `to_json` gave.

        Raises:
            ValueError: It gave nothing like this.
        """
        return _READER.validate_python(value)


_READER = TypeAdapter(TrainedStep)


def trained_step(
    step: int, groups: GroupSizes, minibatches: Iterable[Iterable[tuple[int, int]]], optimizer_steps: int
) -> TrainedStep:
    """Return a step.

    Args:
        step: Its number.
        groups: The ids of its groups, and how many sequences each had.
        minibatches: [minibatch][sequence] (group id, number of the sequence in the group).
        optimizer_steps: How many it took.
    """
    return TrainedStep(step, groups, tuple(_compact(part) for part in minibatches), optimizer_steps)


def wrong_minibatches(trained: TrainedStep) -> Iterator[str]:
    """Yield what is wrong with how the sequences of a step were dealt to minibatches: each may be in one, and in one only."""
    sizes = dict(trained.groups)
    found: dict[int, list[tuple[int, int]]] = {}
    for part in trained.minibatches:
        for group, ranges in part:
            if group not in sizes:
                yield f"group {group} is in a minibatch of step {trained.step}, and not in its batch"
                continue
            found.setdefault(group, []).extend(_pairs(ranges))
    for group, pairs in found.items():
        end = 0  # one more than the largest number so far
        for first, last in sorted(pairs):
            if last >= sizes[group]:
                yield f"group {group} of step {trained.step} has no sequence {last}, a minibatch has"
            if first < end:
                yield f"sequence {first} of group {group} was trained on twice in step {trained.step}"
            end = max(end, last + 1)


def _compact(part: Iterable[tuple[int, int]]) -> Minibatch:
    by_group = groupby(sorted(part), key=lambda pair: pair[0])
    return tuple((group, _ranges([number for _, number in pairs])) for group, pairs in by_group)


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers in rising order, as "0-2,5"."""
    starts = [numbers[0], *(b for a, b in pairwise(numbers) if b != a + 1)]
    ends = [*(a for a, b in pairwise(numbers) if b != a + 1), numbers[-1]]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


def _pairs(ranges: str) -> Iterator[tuple[int, int]]:
    """(first, last) of each of the `ranges`."""
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        yield int(first), int(last or first)
