"""Lists, dicts, sets and the like that both sides have, each as its own copy: what one side changes is changed in the other's.

    tests                                           candidate
    {"mirror": [-1, [1]]}, an argument         ─►     a list of its own, [1], known by -1 until the call has ended
    makes it of its own list    ◄─                  {"changed": [[-1, {"item": [-1, 0, [1, 2]]}]]}, if the tests are told
    forgets the number          ◄─                  {"dropped": [-1]}: nobody holds it after the call, as `Logger(lines)` does
    a list of its own, [5]      ◄─                  {"ok": [5], "mirrored": 7}: what it gives and still holds itself
    {"contents": [[7, before, after]]}, and "released" once nobody holds it   ─►   makes it of its list 7
    {"mirrored": 7}, as an argument              ─►     that list

The containers within such a value have an index too, from the side that has told of them first: {"item": [7, 0, [5]]} is that of index 0
in value 7, with its content. So one that was moved is told from one that was changed, and from another that has its content.

So `stack.items.append(1)` does to the candidate's stack what it does in one process, and so does a change to a list that a method
gave out and should have copied. What the tests hold changes where they are told of changes: of arguments by calls that return None,
and of all in a run that sees everything. In the first run a candidate could answer once it has seen what is expected.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from agentrl.sandboxes.inside.plain_data import (
    CHANGEABLE,
    NO_ITEMS,
    PLAIN_BASES,
    PLAIN_CLASSES,
    Items,
    NotPlainError,
    inside,
    is_changeable,
)
from agentrl.sandboxes.inside.plain_decoding import decode

LARGEST_MIRRORED = 1_000
"""Items of a container that is mirrored beyond a call. A larger one is a copy, and changes of it are the test's own."""
NO_PARTS: dict[int, Any] = {}
SMALL = 2_000
"""Characters of JSON of an argument that is looked at each time the candidate calls the tests back: a larger one is at the end alone."""


class Encode(Protocol):
    """Gives a value as it is sent."""

    def __call__(self, value: Any, items: Items = ...) -> Any:
        """Return a value as it is sent."""
        ...


Dereference = Callable[[Any], Any]
"""Gives what stands for something that is no plain data, as `decode` wants it."""


class Mirror:
    """One side's copy of a value that both have, the mirror of the other's.

    `first` is the first index that this side gives a container in it: the other side gives odd ones where this one gives even ones.
    """

    def __init__(
        self, number: int, value: Any, encode: Encode, first: int, parts: Mapping[int, Any] = NO_PARTS
    ) -> None:
        self.number = number
        self.value = value
        self.parts: dict[int, Any] = {**parts}
        """The containers in it, itself among them, by their indexes, when both sides last knew of each other's."""
        self._encode = encode
        self._next = first
        self.before: Any = None
        """What it was then, as it is sent."""
        self.text = ""
        """The same as JSON: in Python, True is equal to 1."""
        self._seen: dict[int, _Seen | None] = {}
        self.know()

    def content(self) -> Any:
        """Return what it is now, as it is sent."""
        return self._encode(self.value, self.items())

    def items(self) -> dict[int, list[tuple[int, int]]]:
        """Return each container in it with the number of this value and its index, by its id."""
        return {id(part): [(self.number, index)] for index, part in self._indexed().items()}

    def _indexed(self) -> dict[int, Any]:
        """Return the containers in it by their indexes: new ones too, which have theirs from when the other side knows of them."""
        known = {id(part): index for index, part in self.parts.items()}
        found = {}
        index = self._next
        for part in _parts(self.value):
            if id(part) in known:
                found[known[id(part)]] = part
            else:
                found[index] = part
                index += 2
        return found

    def know(self) -> None:
        """Note that both sides have what it is now."""
        self.parts = self._indexed()
        self._next = max([self._next, *(index + 2 for index in self.parts if index % 2 == self._next % 2)])
        self.before = self._encode(self.value, {id(part): [(self.number, of)] for of, part in self.parts.items()})
        self.text = json.dumps(self.before)
        self._seen = {index: _looks(part) for index, part in self.parts.items()}

    @property
    def is_as_known(self) -> bool:
        """Whether it is what both sides know, as far as that is quickly seen."""
        return bool(self.text) and all(map(_looks_as, self.parts.values(), self._seen.values()))

    def changed(self) -> Any:
        """Return what it is now, as it is sent, if that is not what both sides know; else None."""
        if self.is_as_known:
            return None
        content = self.content()
        return None if json.dumps(content) == self.text else content

    @property
    def is_large(self) -> bool:
        """Whether it takes long to look at."""
        return len(self.text) > SMALL

    def read(self, data: Any, dereference: Dereference) -> dict[int, Any]:
        """Return what its parts are in the copy of the other side, by their indexes.

        What is in them are the parts themselves, and new ones. Raises NotPlainError.
        """
        found: dict[int, Any] = {}

        def part(reference: Any) -> Any:
            if "item" not in reference:
                return dereference(reference)
            number, index, content = reference["item"]
            own = self.parts.get(index, content)
            if number != self.number or type(own) is not type(content):
                raise NotPlainError("no part of this value")
            found[index] = content
            return own

        decode(data, part)
        return found

    @property
    def may_stay(self) -> bool:
        """Whether both sides may have it beyond a call: somebody else holds it, or a container in it."""
        is_held = type(self.value) is tuple and sys.getrefcount(self.value) > _UNHELD
        is_held = is_held or any(sys.getrefcount(part) > _UNHELD_PART for part in self.parts.values())
        return is_held and len(self.value) <= LARGEST_MIRRORED


def _parts(value: Any) -> list[Any]:
    """Return the containers in a value that a program may change, itself among them, in the order in which they are met."""
    parts: dict[int, Any] = {}
    _collect(value, parts)
    return [*parts.values()]


def _collect(value: Any, parts: dict[int, Any]) -> None:
    # A function within `_parts` would be in a cycle with what it has found, and references are counted here.
    if type(value) in CHANGEABLE:
        if id(value) in parts:
            return
        parts[id(value)] = value
    for item in inside(value):
        if is_changeable(item):
            _collect(item, parts)


class _Seen(NamedTuple):
    """What was in a container, to see that it has not changed."""

    ids: list[int]
    alive: list[Any]
    """What has these ids, so that nothing else gets them, but for what the copy has as its parts: references to those are counted."""


def _looks(part: Any) -> _Seen | None:
    """Return what is in a container; None where something in it may change and be the same."""
    if type(part) is bytearray:
        return _Seen([], [bytes(part)])
    held = [*part, *part.values()] if isinstance(part, dict) else [*part]
    if any(map(_may_change_unseen, held)):
        return None
    return _Seen([*map(id, held)], [item for item in held if type(item) not in CHANGEABLE])


def _may_change_unseen(item: Any) -> bool:
    """Return whether an item may have something else in it, and be the same: a list of a class that derives from `list`, also in a tuple."""
    if type(item) in (tuple, frozenset):
        return any(map(_may_change_unseen, item))
    return type(item) not in PLAIN_CLASSES and isinstance(item, PLAIN_BASES)


def _looks_as(part: Any, seen: _Seen | None) -> bool:
    if seen is None:
        return False
    if type(part) is bytearray:
        return bool(part == seen.alive[0])
    return [*map(id, part), *(map(id, part.values()) if isinstance(part, dict) else ())] == seen.ids


def _count_of_unheld() -> tuple[int, int]:
    """Return how many references a value has that nobody but its copy holds, and a part of it."""
    one = Mirror(0, ([],), lambda value, items=NO_ITEMS: None, 0)
    return sys.getrefcount(one.value), max(sys.getrefcount(part) for part in one.parts.values())


_UNHELD, _UNHELD_PART = _count_of_unheld()
