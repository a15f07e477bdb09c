"""What both sides have, as the candidate's side knows it, and what of it somebody holds: see `mirror`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Container, Iterable
from typing import Any

from agentrl.sandboxes.inside.changes import merge
from agentrl.sandboxes.inside.mirror import LARGEST_MIRRORED, Dereference, Encode, Mirror
from agentrl.sandboxes.inside.plain_data import Items, NotPlainError, inside, is_changeable


class MirrorsOfCandidate:
    """What both sides have, as the candidate's side knows it. `encode` gives a value as it is sent."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._mirrors: dict[int, Mirror] = {}
        self._numbers: dict[int, int] = {}
        self._count = 0
        self._arriving: dict[int, Any] = {}
        """The containers in what the tests send to be mirrored."""

    def __getitem__(self, number: int) -> Any:
        return self._mirrors[number].value

    def take(self, number: int, value: Any) -> None:
        """Have a value by a number: of the tests', that which they gave it."""
        parts, self._arriving = self._arriving, {}
        self._mirrors[number] = Mirror(number, value, self._encode, 1, parts)
        self._numbers[id(value)] = number

    def part(self, index: int, content: Any) -> Any:
        """Return a container in what the tests send to be mirrored, by its index there."""
        self._arriving[index] = content
        return content

    def number(self, value: Any) -> int | None:
        """Return the number of what the tests have too."""
        return self._numbers.get(id(value))

    def known_number(self, value: Any) -> int | None:
        """Return the number of what the tests have too, and know as it is."""
        number = self.number(value)
        return None if number is None or not self._mirrors[number].is_as_known else number

    def part_from_tests(self, value: Any) -> list[int]:
        """Forget the number of a value that the tests have made, if it has become something else than they know; such numbers."""
        number = self.number(value)
        if number is None or number > 0 or self._mirrors[number].changed() is None:
            return []
        self.forget([number])
        return [number]

    def mirror(self, holder: list[Any]) -> int | None:
        """Return the number of what the tests get, the only one in `holder`; None where it is theirs alone, since nobody else holds it, or is too large."""
        number = self.number(holder[0])
        if number is None and is_changeable(holder[0]) and len(holder[0]) <= LARGEST_MIRRORED and _is_held(holder):
            number = self.mirror_for_call(holder[0])
        return number

    def mirror_for_call(self, value: Any) -> int:
        """Return the number of what the tests' function is called with, until they release it."""
        number = self.number(value)
        if number is None:
            self._count += 1
            number = self._count
            self.take(number, value)
        return number

    def changed(self, own: Container[int] = (), *, small: bool = False) -> dict[int, Any]:
        """Return what has become of everything that both have, by number, as far as the tests do not know it.

        With `small`, of what is quickly looked at. What cannot be sent any more has become None, and is the candidate's alone from here
        on, if it is not in `own`.

        Raises:
            NotPlainError: Something in `own` cannot be sent any more.
        """
        changed = {}
        for number, one in [*self._mirrors.items()]:
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
        """Return whether anything that is quickly looked at has become something that the tests may not know."""
        return any(not one.is_large and not one.is_as_known for one in self._mirrors.values())

    def tell(self, numbers: Iterable[int]) -> None:
        """Note that the tests know what these are."""
        for number in numbers:
            self._mirrors[number].know()

    def unheld(self) -> list[int]:
        """Forget what nobody holds any more, and return its numbers."""
        found = [number for number, one in self._mirrors.items() if not one.may_stay]
        self.forget(found)
        return found

    def take_back(self, request: dict[str, Any], dereference: Dereference) -> None:
        """Make the changes that a request tells of, and forget what it releases."""
        contents = [content for content in request.get("contents", ()) if content[0] in self._mirrors]
        as_known = {number for number, *_ in contents if self._mirrors[number].changed() is None}
        for number, before, after in contents:
            one = self._mirrors[number]
            old, new = one.read(before, dereference), one.read(after, dereference)
            for index, content in new.items():
                if index in old and index in one.parts:
                    merge(one.parts[index], old[index], content)
            one.parts = {index: one.parts.get(index, content) for index, content in new.items()}
        for number, *_ in contents:
            if number in as_known:
                self._mirrors[number].know()
            else:  # the tests have something else than this side
                self._mirrors[number].text = ""
        self.forget(request.get("released", ()))

    def items(self) -> dict[int, list[tuple[int, int]]]:
        """Return each container that both have with a number of a value that it is in, and its index there, by its id."""
        return {
            id(part): [(number, index)] for number, one in self._mirrors.items() for index, part in one.parts.items()
        }

    def content(self, number: int, items: Items) -> Any:
        """Return what has a number, as it is sent, with the numbers of what is in other values too."""
        own = self._mirrors[number].items()
        for id_, where in own.items():
            where += [other for other in items.get(id_, ()) if other[0] != number]
        return self._encode(self._mirrors[number].value, {**items, **own})

    def forget(self, numbers: Iterable[int]) -> None:
        """Note that what has these numbers is the candidate's alone."""
        for number in [*numbers]:
            if number in self._mirrors:
                del self._numbers[id(self._mirrors.pop(number).value)]


def _is_held(holder: list[Any]) -> bool:
    """Return whether anybody holds the one value in a list, or a container in it."""
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
