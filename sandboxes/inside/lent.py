"""Lists, dicts, sets and the like that both sides have, each as its own copy: what one side changes is changed in the other's.

    tests                                           candidate
    {"lend": [-1, [1]]}, an argument         ─►     a list of its own, [1], known by -1 until the call has ended
    makes it of its own list    ◄─                  {"changed": [[-1, {"item": [-1, 0, [1, 2]]}]]}, if the tests are told
    forgets the number          ◄─                  {"dropped": [-1]}: nobody holds it after the call, as `Logger(lines)` does
    a list of its own, [5]      ◄─                  {"ok": [5], "lent": 7}: what it gives and still holds itself
    {"contents": [[7, before, after]]}, and "released" once nobody holds it   ─►   makes it of its list 7
    {"lent": 7}, as an argument              ─►     that list

The containers within such a value have an index too, from the side that has told of them first: {"item": [7, 0, [5]]} is that of index 0
in value 7, with its content. So one that was moved is told from one that was changed, and from another that has its content.

So `stack.items.append(1)` does to the candidate's stack what it does in one process, and so does a change to a list that a method
gave out and should have copied. What the tests hold changes where they are told of changes: of arguments by calls that return None,
and of all in a run that sees everything. In the first run a candidate could answer once it has seen what is expected.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from agentrl.sandboxes.inside.changes import merge, set_content
from agentrl.sandboxes.inside.plain_data import (
    CHANGEABLE,
    NO_ITEMS,
    PLAIN_BASES,
    PLAIN_CLASSES,
    Items,
    NotPlainError,
    decode,
    inside,
    is_changeable,
)

LARGEST_LENT = 1_000
"""Items of a container that is lent beyond a call. A larger one is a copy, and changes of it are the test's own."""
LARGEST_LOANS = 50_000
"""Characters of JSON of all that a test has borrowed: every request looks at it. What came first is then a copy, and so is one of more."""
NO_PARTS: dict[int, Any] = {}
SMALL = 2_000
"""Characters of JSON of an argument that is looked at each time the candidate calls the tests back: a larger one is at the end alone."""


class Encode(Protocol):
    """Gives a value as it is sent."""

    def __call__(self, value: Any, items: Items = ...) -> Any: ...


Dereference = Callable[[Any], Any]
"""Gives what stands for something that is no plain data, as `plain_data.decode` wants it."""


class _Copy:
    """One side's copy of a value that both have. `first` is the first index that this side gives a container in it: the other side gives
    odd ones where this one gives even ones."""

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
        """What it is now, as it is sent."""
        return self._encode(self.value, self.items())

    def items(self) -> dict[int, list[tuple[int, int]]]:
        """Each container in it with the number of this value and its index, by its id."""
        return {id(part): [(self.number, index)] for index, part in self._indexed().items()}

    def _indexed(self) -> dict[int, Any]:
        """The containers in it by their indexes: new ones too, which have theirs from when the other side knows of them."""
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
        """What it is now, as it is sent, if that is not what both sides know; else None."""
        if self.is_as_known:
            return None
        content = self.content()
        return None if json.dumps(content) == self.text else content

    @property
    def is_large(self) -> bool:
        """Whether it takes long to look at."""
        return len(self.text) > SMALL

    def read(self, data: Any, dereference: Dereference) -> dict[int, Any]:
        """What its parts are in the copy of the other side, by their indexes. What is in them are the parts themselves, and new ones. Raises
        NotPlainError."""
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
        return is_held and len(self.value) <= LARGEST_LENT


class Lender:
    """What both sides have, as the candidate's side knows it. `encode` gives a value as it is sent."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._copies: dict[int, _Copy] = {}
        self._numbers: dict[int, int] = {}
        self._count = 0
        self._arriving: dict[int, Any] = {}
        """The containers in what the tests are lending."""

    def __getitem__(self, number: int) -> Any:
        return self._copies[number].value

    def take(self, number: int, value: Any) -> None:
        """Have a value by a number: of the tests', that which they gave it."""
        parts, self._arriving = self._arriving, {}
        self._copies[number] = _Copy(number, value, self._encode, 1, parts)
        self._numbers[id(value)] = number

    def part(self, index: int, content: Any) -> Any:
        """A container in what the tests lend, by its index there."""
        self._arriving[index] = content
        return content

    def number(self, value: Any) -> int | None:
        """The number of what the tests have too."""
        return self._numbers.get(id(value))

    def known_number(self, value: Any) -> int | None:
        """The number of what the tests have too, and know as it is."""
        number = self.number(value)
        return None if number is None or not self._copies[number].is_as_known else number

    def part_from_tests(self, value: Any) -> list[int]:
        """Forget the number of a value that the tests have made, if it has become something else than they know; such numbers."""
        number = self.number(value)
        if number is None or number > 0 or self._copies[number].changed() is None:
            return []
        self.forget([number])
        return [number]

    def lend(self, holder: list[Any]) -> int | None:
        """The number of what the tests get, the only one in `holder`; None where it is theirs alone, since nobody else holds it, or is too
        large."""
        number = self.number(holder[0])
        if number is None and is_changeable(holder[0]) and len(holder[0]) <= LARGEST_LENT and _is_held(holder):
            number = self.lend_for_call(holder[0])
        return number

    def lend_for_call(self, value: Any) -> int:
        """The number of what the tests' function is called with, until they release it."""
        number = self.number(value)
        if number is None:
            self._count += 1
            number = self._count
            self.take(number, value)
        return number

    def changed(self, own: Container[int] = (), *, small: bool = False) -> dict[int, Any]:
        """What has become of everything that both have, by number, as far as the tests do not know it; with `small`, of what is quickly
        looked at.

        Raises NotPlainError for what is in `own` and cannot be sent any more. Anything else of this kind has become None, and is the
        candidate's alone from here on.
        """
        changed = {}
        for number, one in [*self._copies.items()]:
            if small and one.is_large:
                continue
            try:
                content = one.changed()
                if content is not None:
                    changed[number] = content
            except (NotPlainError, RecursionError) as error:
                if number in own:
                    raise NotPlainError(str(error)) from None
                self.forget([number])
                changed[number] = None
        return changed

    def may_have_changed(self) -> bool:
        """Whether anything that is quickly looked at has become something that the tests may not know."""
        return any(not one.is_large and not one.is_as_known for one in self._copies.values())

    def tell(self, numbers: Iterable[int]) -> None:
        """Note that the tests know what these are."""
        for number in numbers:
            self._copies[number].know()

    def unheld(self) -> list[int]:
        """Forget what nobody holds any more, and return its numbers."""
        found = [number for number, one in self._copies.items() if not one.may_stay]
        self.forget(found)
        return found

    def take_back(self, request: dict[str, Any], dereference: Dereference) -> None:
        """Make the changes that a request tells of, and forget what it releases."""
        contents = [content for content in request.get("contents", ()) if content[0] in self._copies]
        as_known = {number for number, *_ in contents if self._copies[number].changed() is None}
        for number, before, after in contents:
            one = self._copies[number]
            old, new = one.read(before, dereference), one.read(after, dereference)
            for index, content in new.items():
                if index in old and index in one.parts:
                    merge(one.parts[index], old[index], content)
            one.parts = {index: one.parts.get(index, content) for index, content in new.items()}
        for number, *_ in contents:
            if number in as_known:
                self._copies[number].know()
            else:  # the tests have something else than this side
                self._copies[number].text = ""
        self.forget(request.get("released", ()))

    def items(self) -> dict[int, list[tuple[int, int]]]:
        """Each container that both have with a number of a value that it is in, and its index there, by its id."""
        return {
            id(part): [(number, index)] for number, one in self._copies.items() for index, part in one.parts.items()
        }

    def content(self, number: int, items: Items) -> Any:
        """What has a number, as it is sent, with the numbers of what is in other values too."""
        own = self._copies[number].items()
        for id_, where in own.items():
            where += [other for other in items.get(id_, ()) if other[0] != number]
        return self._encode(self._copies[number].value, {**items, **own})

    def forget(self, numbers: Iterable[int]) -> None:
        """What has these numbers is the candidate's alone."""
        for number in [*numbers]:
            if number in self._copies:
                del self._numbers[id(self._copies.pop(number).value)]


class Borrowed:
    """What both sides have, as the tests' side knows it: what the tests have made has a number below 0. `encode` gives a value as it is
    sent."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._copies: dict[int, _Copy] = {}
        self._count = 0
        self._named: set[int] = set()
        """What the next request names."""
        self._in_calls: Counter[int] = Counter()
        """What the candidate has been called with, and not yet answered."""
        self._dropped: set[int] = set()
        self._arriving: dict[Any, dict[Any, Any]] = {}
        """The containers in the answer that is read, by the value and the index that they have."""

    def number(self, value: Any) -> int | None:
        """The number of a value that the candidate has too, to name it in the next request; None for any other."""
        if not is_changeable(value):
            return None
        number = next((number for number, one in self._copies.items() if one.value is value), None)
        if number is not None:
            self._named.add(number)
        return number

    def lend(self, value: Any) -> tuple[int, Any]:
        """Give a value of the test's a number for a call; the number, and what the value is as it is sent."""
        self._count -= 1
        self._copies[self._count] = one = _Copy(self._count, value, self._encode, 0)
        return self._count, one.before

    def begin_call(self, numbers: Iterable[int]) -> None:
        """The candidate is called with what has these numbers: they stay until the tests have what the answer gives."""
        self._in_calls.update(numbers)

    def end_call(self, numbers: Iterable[int]) -> None:
        """The tests have what such a call has given."""
        self._in_calls -= Counter(numbers)
        for number in self._dropped.difference(self._in_calls):
            self._copies.pop(number, None)
        self._dropped.intersection_update(self._in_calls)

    def drop(self, numbers: Iterable[int]) -> None:
        """Forget what nobody of the candidate's holds any more, once no call runs that was given it."""
        self._dropped.update(numbers)

    def note(self, number: Any, value: Any) -> Any:
        """The value that the test gets for one that an answer says is lent: the one that it has, if that has the same content."""
        parts = self._arriving.pop(number, {})
        if type(number) is not int or not is_changeable(value) or len(value) > LARGEST_LENT:
            return value
        known = self._copies.get(number)
        if known is not None and self._are_alike(known.value, value):
            return known.value
        if number > 0:
            self._copies[number] = _Copy(number, value, self._encode, 0, parts)
        return value

    def __getitem__(self, number: int) -> Any:
        return self._copies[number].value

    def part(self, number: Any, index: Any, content: Any) -> Any:
        """The container of a value that both have which an answer says is given, if it has that content: the candidate may have changed its
        own unseen. Else a new one."""
        known = self._copies.get(number)
        own = None if known is None else known.parts.get(index)
        found = own if own is not None and self._are_alike(own, content) else content
        self._arriving.setdefault(number, {})[index] = found
        return found

    def forget_parts(self) -> None:
        """An answer has been read, with all the parts of values in it."""
        self._arriving.clear()

    def _are_alike(self, one: Any, other: Any) -> bool:
        if one is other or type(one) is not type(other) or len(one) != len(other):
            return one is other
        if type(one) in (list, tuple, deque) and all(map(_is_same_atom, one, other)):
            return True
        return json.dumps(self._encode(one)) == json.dumps(self._encode(other))

    def hear(self, number: Any, data: Any, dereference: Dereference) -> None:
        """Give what both have the content that the candidate has made of it. Raises NotPlainError for what is none."""
        known = self._copies.get(number)
        if known is not None:
            found = known.read(data, dereference)
            for index, content in found.items():
                if index in known.parts:
                    set_content(known.parts[index], content)
            known.parts = {**found, **known.parts}
            known.know()

    def changes(self) -> dict[str, Any]:
        """What the next request tells the candidate."""
        contents, released = [], []
        stay = self._named.union(self._in_calls)
        size = sum(len(one.text) for number, one in self._copies.items() if number not in stay)
        for number, one in [*self._copies.items()]:
            if number in self._in_calls and one.is_large:
                continue
            if number not in stay and len(one.text) > LARGEST_LOANS:
                released.append(number)
                size -= len(self._copies.pop(number).text)
                continue
            content = one.changed()
            if content is not None:
                contents.append([number, one.before, content])
                one.know()
            if number not in stay and (size > LARGEST_LOANS or not one.may_stay):
                released.append(number)
                size -= len(self._copies.pop(number).text)
        self._named.clear()
        return {"contents": contents, "released": released} if contents or released else {}

    def clear(self) -> None:
        """Forget everything: the process that gave it has ended."""
        self._copies.clear()
        self._in_calls.clear()
        self._dropped.clear()


def _parts(value: Any) -> list[Any]:
    """The containers in a value that a program may change, itself among them, in the order in which they are met."""
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


def _is_held(holder: list[Any]) -> bool:
    """Whether anybody holds the one value in a list, or a container in it."""
    return sys.getrefcount(holder[0]) > _UNHELD_IN_LIST or _most_held(holder[0]) > _UNHELD_INSIDE


def _most_held(container: Any) -> int:
    """Return the largest count of references to a container in this one, however deep, from outside of it."""
    met: dict[int, Any] = {}
    times: Counter[int] = Counter()
    _count_inside(container, met, times)
    return max((sys.getrefcount(item) - times[id_] for id_, item in met.items()), default=0)


def _count_inside(container: Any, met: dict[int, Any], times: Counter[int]) -> None:
    for item in inside(container):
        if is_changeable(item):
            times[id(item)] += 1
            if id(item) not in met:
                met[id(item)] = item
                _count_inside(item, met, times)


_SAMPLE: list[Any] = [[[]]]
_UNHELD_IN_LIST = sys.getrefcount(_SAMPLE[0])
_UNHELD_INSIDE = _most_held([[]])


class _Seen(NamedTuple):
    """What was in a container, to see that it has not changed."""

    ids: list[int]
    alive: list[Any]
    """What has these ids, so that nothing else gets them, but for what the copy has as its parts: references to those are counted."""


def _looks(part: Any) -> _Seen | None:
    """What is in a container; None where something in it may change and be the same."""
    if type(part) is bytearray:
        return _Seen([], [bytes(part)])
    held = [*part, *part.values()] if isinstance(part, dict) else [*part]
    if any(map(_may_change_unseen, held)):
        return None
    return _Seen([*map(id, held)], [item for item in held if type(item) not in CHANGEABLE])


def _may_change_unseen(item: Any) -> bool:
    """Whether an item may have something else in it, and be the same: a list of a class that derives from `list`, also in a tuple."""
    if type(item) in (tuple, frozenset):
        return any(map(_may_change_unseen, item))
    return type(item) not in PLAIN_CLASSES and isinstance(item, PLAIN_BASES)


def _looks_as(part: Any, seen: _Seen | None) -> bool:
    if seen is None:
        return False
    if type(part) is bytearray:
        return bool(part == seen.alive[0])
    return [*map(id, part), *(map(id, part.values()) if isinstance(part, dict) else ())] == seen.ids


def _is_same_atom(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and type(one) in (int, str, bool, bytes) and bool(one == other))


def _count_of_unheld() -> tuple[int, int]:
    """How many references a value has that nobody but its copy holds, and a part of it."""
    one = _Copy(0, ([],), lambda value, items=NO_ITEMS: None, 0)
    return sys.getrefcount(one.value), max(sys.getrefcount(part) for part in one.parts.values())


_UNHELD, _UNHELD_PART = _count_of_unheld()
