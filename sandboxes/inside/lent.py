"""Lists, dicts, sets and the like that a candidate has given, or kept of its arguments: what a test changes in one is changed in the
candidate's own.

    candidate                          tests
    {"ok": [1], "lent": 7}      ─►     a list of its own, [1], which the test appends 2 to
    applies it to its list 7    ◄─     the next request, with {"contents": [[7, [1], [1, 2]]], "released": []}

So `stack.items.append(1)` does to the candidate's stack what it does in one process, and so does a change to a list that a method
gave out and should have copied. It is never the other way round: what a test holds stays what it was given, or a candidate could
answer once it has seen what is expected. What a test gives back, as `stack.items = items` does, goes as {"lent": 7}: it is that list.

An argument that somebody holds after a call, as `Logger(lines)` holds its list, is lent too: {"ok": ..., "kept": {"0": 8}}. What the
candidate makes of it is told where changes of arguments are, by calls that return None: {"ok": null, "kept_changed": [[8, ["line"]]]}.
"""

from __future__ import annotations

import copy
import json
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

from agentrl.sandboxes.inside.plain_data import NotPlainError

MUTABLE = (list, dict, set, bytearray, deque, Counter, OrderedDict, defaultdict)
LARGEST_LENT = 1_000
"""Items of a container that is lent. A larger one is a copy, and changes of it are the test's own."""
LARGEST_LOANS = 50_000
"""Characters of JSON of all that a test has borrowed: every request looks at it. What came first is then a copy."""


class BothChangedError(BaseException):
    """The tests have changed a container in a way that does not go together with what the candidate did to it."""


class Lender:
    """What the candidate has given, by number, until the tests hold it no more."""

    def __init__(self) -> None:
        self._lent: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self._count = 0
        self._known: dict[int, Any] = {}
        """What the tests know of the arguments that were kept, as it is sent."""

    def __getitem__(self, number: int) -> Any:
        return self._lent[number]

    def lend(self, value: Any) -> dict[str, int]:
        """What an answer says of a value beside the value itself."""
        if type(value) not in MUTABLE or len(value) > LARGEST_LENT:
            return {}
        number = self._numbers.get(id(value))
        if number is None:
            self._count += 1
            number = self._numbers[id(value)] = self._count
            self._lent[number] = value
        return {"lent": number}

    def keep(self, argument: Any, content: Any) -> int | None:
        """The number of an argument that somebody holds, and whose content the tests know; None where it is not lent."""
        number = self.lend(argument).get("lent")
        if number is not None:
            self._known[number] = content
        return number

    def changes(self, encode: Callable[[Any], Any]) -> list[list[Any]]:
        """What has become of the arguments that were kept, as far as the tests do not know it. They know it from here on."""
        changed = self._changed(encode)
        self._known.update(changed)
        return [[number, content] for number, content in changed.items()]

    def has_changed(self, encode: Callable[[Any], Any]) -> bool:
        """Whether an argument that was kept has become something that the tests do not know."""
        return bool(self._changed(encode))

    def _changed(self, encode: Callable[[Any], Any]) -> dict[int, Any]:
        changed = {}
        for number, known in [*self._known.items()]:
            try:
                content = encode(self._lent[number])
            except (NotPlainError, RecursionError):  # from here on it is the candidate's alone
                del self._known[number]
                continue
            if content != known:
                changed[number] = content
        return changed

    def take_back(self, request: dict[str, Any], decode: Callable[[Any], Any]) -> None:
        """Make the changes that a request tells of, and forget what it releases."""
        for number, before, after in request.get("contents", ()):
            merge(self._lent[number], decode(before), decode(after))
            if number in self._known:
                self._known[number] = after
        for number in request.get("released", ()):
            del self._numbers[id(self._lent.pop(number))]
            self._known.pop(number, None)


def is_held_after_call(arguments: list[Any], index: int) -> bool:
    """Whether more than two lists have references to an argument."""
    return type(arguments[index]) in MUTABLE and sys.getrefcount(arguments[index]) > _UNHELD_AFTER_CALL


_UNHELD_TWICE: list[Any] = [[]]
_UNHELD_ARGUMENTS = [*_UNHELD_TWICE]
_UNHELD_AFTER_CALL = sys.getrefcount(_UNHELD_ARGUMENTS[0])


class _Loan:
    def __init__(self, value: Any, before: Any, *, is_argument: bool = False) -> None:
        self.value = value
        self.is_argument = is_argument
        """Whether the test has made it, and the candidate has kept it."""
        self.before = before
        """Its content when it was given, or last told of."""
        self.size = len(json.dumps(before))


class Borrowed:
    """What the tests have been given. `encode` gives a value as it is sent."""

    def __init__(self, encode: Callable[[Any], Any]) -> None:
        self._encode = encode
        self._loans: dict[int, _Loan] = {}
        self._named: set[int] = set()

    def number(self, value: Any) -> int | None:
        """The number of a value that is lent, to name it in the next request; None for any other."""
        if type(value) not in MUTABLE:
            return None
        number = next((number for number, loan in self._loans.items() if loan.value is value), None)
        if number is not None:
            self._named.add(number)
        return number

    def told(self, value: Any) -> None:
        """Note that the candidate has told what it has made of a value: what it is now need not be told to it."""
        for loan in self._loans.values():
            if loan.value is value:
                loan.before = self._encode(value)

    def note(self, number: Any, value: Any) -> Any:
        """The value that the test gets for one that an answer says is lent: the one that it has, if that has the same content."""
        if not isinstance(number, int) or type(value) not in MUTABLE or len(value) > LARGEST_LENT:
            return value
        content = self._encode(value)
        known = self._loans.get(number)
        if known is not None and type(known.value) is type(value) and known.before == content:
            return known.value
        self._loans[number] = _Loan(value, content)
        return value

    def keep(self, number: Any, argument: Any) -> None:
        """Note that the candidate holds an argument: from now on it is the same for both."""
        is_new = all(loan.value is not argument for loan in self._loans.values())
        if isinstance(number, int) and type(argument) in MUTABLE and len(argument) <= LARGEST_LENT and is_new:
            self._loans[number] = _Loan(argument, self._encode(argument), is_argument=True)

    def hear(self, number: Any, content: Any) -> None:
        """Give an argument that was kept what the candidate has made of it. What the candidate has given never changes by itself."""
        loan = self._loans.get(number)
        if loan is not None and loan.is_argument and self._encode(loan.value) == loan.before:
            replace_content(loan.value, content)
            loan.before = self._encode(loan.value)

    def changes(self) -> dict[str, Any]:
        """What the next request tells the candidate."""
        contents, released = [], []
        size = sum(loan.size for loan in self._loans.values())
        for number, loan in list(self._loans.items()):
            content = self._encode(loan.value)
            if content != loan.before:
                contents.append([number, loan.before, content])
                loan.before = content
            if number not in self._named and (size > LARGEST_LOANS or not _is_held(loan)):
                released.append(number)
                size -= self._loans.pop(number).size
        self._named.clear()
        return {"contents": contents, "released": released} if contents or released else {}

    def clear(self) -> None:
        """Forget everything: the process that gave it has ended."""
        self._loans.clear()


def _is_held(loan: _Loan) -> bool:
    """Whether the test has a name for the value, or for a container in it."""
    return sys.getrefcount(loan.value) > _UNHELD or _most_held(loan.value) > _UNHELD_INSIDE


def _most_held(container: Any) -> int:
    """The largest count of references to a container in this one, however deep."""
    most = 0
    for inner in container.values() if isinstance(container, dict) else container:
        if type(inner) in MUTABLE:
            most = max(most, sys.getrefcount(inner), _most_held(inner))
    return most


_SAMPLE = _Loan([], None)
_UNHELD = sys.getrefcount(_SAMPLE.value)
_UNHELD_INSIDE = _most_held([[]])


def snapshot(value: Any) -> Any:
    """An argument as it is now, which keeps none of the test's containers."""
    if type(value) is list:
        return [snapshot(item) for item in value]
    if type(value) is tuple:
        return tuple(snapshot(item) for item in value)
    if type(value) is dict:
        return {key: snapshot(item) for key, item in value.items()}
    return copy.copy(value) if type(value) in MUTABLE else value


def merge(container: Any, before: Any, after: Any) -> None:
    """Do to a container of the candidate's what the tests have done to their copy of it, which was `before` and is `after`. The
    candidate may have changed it meanwhile. Raises BothChangedError."""
    if isinstance(container, dict) and isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() - after.keys():
            container.pop(key, None)
        for key, new in after.items():
            old, own = before.get(key), container.get(key)
            if key in before and old == new:
                continue
            if type(own) in MUTABLE and type(own) is type(old) is type(new):
                merge(own, old, new)
            else:
                container[key] = new
    elif isinstance(container, set) and isinstance(before, set) and isinstance(after, set):
        container -= before - after
        container |= after - before
    elif container == before:
        replace_content(container, after)
    elif isinstance(container, list | deque) and list(after)[: len(before)] == list(before):
        container.extend(list(after)[len(before) :])
    else:
        raise BothChangedError(f"to change a {type(container).__name__} that the candidate changes too")


def replace_content(container: Any, value: Any) -> None:
    """Give a container the content of another of its kind, and so for the lists, dicts and sets in it, which stay the same objects."""
    if isinstance(container, list) and isinstance(value, list):
        for index, (old, new) in enumerate(zip(container, value)):  # noqa: B905  one may be longer
            value[index] = _kept(old, new)
        container[:] = value
    elif isinstance(container, bytearray) and isinstance(value, bytearray):
        container[:] = value
    elif isinstance(container, dict) and isinstance(value, dict):
        kept = {key: _kept(container.get(key), new) for key, new in value.items()}
        container.clear()
        container.update(kept)
    elif isinstance(container, set) and isinstance(value, set):
        container.clear()
        container.update(value)
    elif isinstance(container, deque) and isinstance(value, deque):
        container.clear()
        container.extend(value)


def _kept(old: Any, new: Any) -> Any:
    """The old object with the new content where the two are of one kind, so that its other names see it too."""
    if type(old) is type(new) and isinstance(old, list | dict | set | bytearray):
        replace_content(old, new)
        return old
    return new
