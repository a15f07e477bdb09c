"""What both sides have, as the tests' side knows it: see `mirror`."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

from agentrl.sandboxes.inside.changes import set_content
from agentrl.sandboxes.inside.mirror import LARGEST_MIRRORED, Dereference, Encode, Mirror
from agentrl.sandboxes.inside.plain_data import is_changeable

MOST_MIRRORED = 50_000
"""Characters of JSON of all that a test has mirrors of: every request looks at it. What came first is then a copy, and so is one of more."""


class MirrorsOfTests:
    """What both sides have, as the tests' side knows it: what the tests have made has a number below 0.

    `encode` gives a value as it is sent.
    """

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._mirrors: dict[int, Mirror] = {}
        self._count = 0
        self._named: set[int] = set()
        """What the next request names."""
        self._in_calls: Counter[int] = Counter()
        """What the candidate has been called with, and not yet answered."""
        self._dropped: set[int] = set()
        self._arriving: dict[Any, dict[Any, Any]] = {}
        """The containers in the answer that is read, by the value and the index that they have."""

    def number(self, value: Any) -> int | None:
        """Return the number of a value that the candidate has too, to name it in the next request; None for any other."""
        if not is_changeable(value):
            return None
        number = next((number for number, one in self._mirrors.items() if one.value is value), None)
        if number is not None:
            self._named.add(number)
        return number

    def mirror(self, value: Any) -> tuple[int, Any]:
        """Give a value of the test's a number for a call; the number, and what the value is as it is sent."""
        self._count -= 1
        self._mirrors[self._count] = one = Mirror(self._count, value, self._encode, 0)
        return self._count, one.before

    def begin_call(self, numbers: Iterable[int]) -> None:
        """Note that the candidate is called with what has these numbers: they stay until the tests have what the answer gives."""
        self._in_calls.update(numbers)

    def end_call(self, numbers: Iterable[int]) -> None:
        """Note that the tests have what such a call has given."""
        self._in_calls -= Counter(numbers)
        for number in self._dropped.difference(self._in_calls):
            self._mirrors.pop(number, None)
        self._dropped.intersection_update(self._in_calls)

    def drop(self, numbers: Iterable[int]) -> None:
        """Forget what nobody of the candidate's holds any more, once no call runs that was given it."""
        self._dropped.update(numbers)

    def note(self, number: Any, value: Any) -> Any:
        """Return the value that the test gets for one that an answer says is mirrored: the one that it has, if that has the same content."""
        parts = self._arriving.pop(number, {})
        if type(number) is not int or not is_changeable(value) or len(value) > LARGEST_MIRRORED:
            return value
        known = self._mirrors.get(number)
        if known is not None and self._are_alike(known.value, value):
            return known.value
        if number > 0:
            self._mirrors[number] = Mirror(number, value, self._encode, 0, parts)
        return value

    def __getitem__(self, number: int) -> Any:
        return self._mirrors[number].value

    def part(self, number: Any, index: Any, content: Any) -> Any:
        """Return the container of a value that both have which an answer says is given, if it has that content.

        The candidate may have changed its own unseen.

        Else a new one.
        """
        known = self._mirrors.get(number)
        own = None if known is None else known.parts.get(index)
        found = own if own is not None and self._are_alike(own, content) else content
        self._arriving.setdefault(number, {})[index] = found
        return found

    def forget_parts(self) -> None:
        """Note that an answer has been read, with all the parts of values in it."""
        self._arriving.clear()

    def _are_alike(self, one: Any, other: Any) -> bool:
        if one is other or type(one) is not type(other) or len(one) != len(other):
            return one is other
        if type(one) in (list, tuple, deque) and all(map(_is_same_atom, one, other)):
            return True
        return json.dumps(self._encode(one)) == json.dumps(self._encode(other))

    def hear(self, number: Any, data: Any, dereference: Dereference) -> None:
        """Give what both have the content that the candidate has made of it.

        Raises:
            NotPlainError: What is none.
        """
        known = self._mirrors.get(number)
        if known is not None:
            found = known.read(data, dereference)
            for index, content in found.items():
                if index in known.parts:
                    set_content(known.parts[index], content)
            known.parts = {**found, **known.parts}
            known.know()

    def changes(self) -> dict[str, Any]:
        """Return what the next request tells the candidate."""
        contents, released = [], []
        stay = self._named.union(self._in_calls)
        size = sum(len(one.text) for number, one in self._mirrors.items() if number not in stay)
        for number, one in [*self._mirrors.items()]:
            if number in self._in_calls and one.is_large:
                continue
            if number not in stay and len(one.text) > MOST_MIRRORED:
                released.append(number)
                size -= len(self._mirrors.pop(number).text)
                continue
            content = one.changed()
            if content is not None:
                contents.append([number, one.before, content])
                one.know()
            if number not in stay and (size > MOST_MIRRORED or not one.may_stay):
                released.append(number)
                size -= len(self._mirrors.pop(number).text)
        self._named.clear()
        return {"contents": contents, "released": released} if contents or released else {}

    def clear(self) -> None:
        """Forget everything: the process that gave it has ended."""
        self._mirrors.clear()
        self._in_calls.clear()
        self._dropped.clear()


def _is_same_atom(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and type(one) in (int, str, bool, bytes) and bool(one == other))
