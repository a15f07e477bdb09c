"""Lists, dicts, sets and the like that both sides have, each as its own copy: what one side changes is changed in the other's.

    tests                                           candidate
    {"lend": [-1, [1]]}, an argument         ─►     a list of its own, [1], known by -1 until the call has ended
    makes it of its own list    ◄─                  {"changed": [[-1, [1, 2]]]}, if the tests are told
    forgets the number          ◄─                  {"dropped": [-1]}: nobody holds it after the call, as `Logger(lines)` does
    a list of its own, [5]      ◄─                  {"ok": [5], "lent": 7}: what it gives and still holds itself
    {"contents": [[7, [5], [5, 6]]]}, and "released" once nobody holds it   ─►   makes it of its list 7
    {"lent": 7}, as an argument              ─►     that list

So `stack.items.append(1)` does to the candidate's stack what it does in one process, and so does a change to a list that a method
gave out and should have copied. What the tests hold changes where they are told of changes: of arguments by calls that return None,
and of all in a run that sees everything. In the first run a candidate could answer once it has seen what is expected.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Container, Iterable
from typing import Any

from agentrl.sandboxes.inside.changes import merge, replace_content
from agentrl.sandboxes.inside.plain_data import CHANGEABLE, NotPlainError, inside, is_changeable

LARGEST_LENT = 1_000
"""Items of a container that is lent beyond a call. A larger one is a copy, and changes of it are the test's own."""
LARGEST_LOANS = 50_000
"""Characters of JSON of all that a test has borrowed: every request looks at it. What came first is then a copy."""
SMALL = 300
"""Items of an argument, in all, that is looked at each time the candidate calls the tests back; of a larger one at the end alone."""


class Lender:
    """What both sides have, as the candidate's side knows it. `encode` gives a value as it is sent."""

    def __init__(self, encode: Callable[[Any], Any]) -> None:
        self._encode = encode
        self._lent: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self._count = 0
        self._known: dict[int, str] = {}
        """What the tests know of each, as JSON: in Python, True is equal to 1."""
        self._large: set[int] = set()

    def __getitem__(self, number: int) -> Any:
        return self._lent[number]

    def take(self, number: int, value: Any) -> None:
        """Have something of the tests', by the number that they gave it."""
        self._have(number, value, self._encode(value))

    def _have(self, number: int, value: Any, content: Any) -> None:
        self._lent[number] = value
        self._numbers[id(value)] = number
        self._known[number] = json.dumps(content)
        if not _is_small(content):
            self._large.add(number)

    def number(self, value: Any) -> int | None:
        """The number of what the tests have too."""
        return self._numbers.get(id(value))

    def lend(self, holder: list[Any], content: Any) -> int | None:
        """The number of what the tests get with a content, the only one in `holder`; None where it is theirs alone, since nobody else
        holds it, or is too large."""
        number = self.number(holder[0])
        if number is None and _is_lendable(holder[0]) and _is_held(holder):
            self._count += 1
            number = self._count
            self._have(number, holder[0], content)
        return number

    def lend_for_call(self, value: Any, content: Any) -> int:
        """The number of what the tests' function is called with, until they release it."""
        number = self.number(value)
        if number is None:
            self._count += 1
            number = self._count
            self._have(number, value, content)
        return number

    def changed(self, own: Container[int] = (), *, small: bool = False) -> dict[int, Any]:
        """What has become of everything that both have, by number, as far as the tests do not know it; with `small`, of what is quickly looked at.

        Raises NotPlainError for what is in `own` and cannot be sent any more. Anything else of this kind has become None, and is the
        candidate's alone from here on.
        """
        changed = {}
        for number, known in [*self._known.items()]:
            if small and number in self._large:
                continue
            try:
                content = self._encode(self._lent[number])
            except (NotPlainError, RecursionError) as error:
                if number in own:
                    raise NotPlainError(str(error)) from None
                del self._known[number]
                content = None
            if json.dumps(content) != known:
                changed[number] = content
        return changed

    def tell(self, changed: dict[int, Any]) -> None:
        """Note that the tests know this from here on."""
        self._known.update((number, json.dumps(content)) for number, content in changed.items())

    def is_held(self, number: int) -> bool:
        """Whether anybody of the candidate's holds what the tests have too, or a container in it, and it may stay lent."""
        value = [self._lent[number]]
        return len(value[0]) <= LARGEST_LENT and _is_held(value, but=1)

    def unheld(self) -> list[int]:
        """Forget what nobody holds any more, and return its numbers."""
        found = [number for number in self._lent if not self.is_held(number)]
        self.forget(found)
        return found

    def take_back(self, request: dict[str, Any], decode: Callable[[Any], Any]) -> None:
        """Make the changes that a request tells of, and forget what it releases."""
        for number, before, after in request.get("contents", ()):
            if number in self._lent:
                new = decode(after)
                self._known[number] = json.dumps(self._encode(new))  # objects have another form where they come from
                merge(self._lent[number], decode(before), new)
        self.forget(request.get("released", ()))

    def items(self) -> dict[int, list[Any]]:
        """Where each container in what both sides have is, by its id: the number, and an index for each step to it."""
        found: dict[int, list[Any]] = {}

        def look(number: int, path: list[int], container: Any) -> None:
            if type(container) in CHANGEABLE and found.setdefault(id(container), [number, path])[1] is not path:
                return
            for index, inner in enumerate(inside(container)):
                if is_changeable(inner):
                    look(number, [*path, index], inner)

        for number, value in self._lent.items():
            look(number, [], value)
        return found

    def forget(self, numbers: Iterable[int]) -> None:
        """What has these numbers is the candidate's alone."""
        for number in [*numbers]:
            if number in self._lent:
                del self._numbers[id(self._lent.pop(number))]
                self._known.pop(number, None)
                self._large.discard(number)


class _Loan:
    def __init__(self, value: Any, before: Any) -> None:
        self.value = value
        self.is_large = not _is_small(before)
        self.know(before)

    def know(self, content: Any) -> None:
        """Have a content that the other side knows."""
        self.before = content
        self.text = json.dumps(content)


class Borrowed:
    """What both sides have, as the tests' side knows it: what the tests have made has a number below 0. `encode` gives a value as it is
    sent."""

    def __init__(self, encode: Callable[[Any], Any]) -> None:
        self._encode = encode
        self._loans: dict[int, _Loan] = {}
        self._count = 0
        self._named: set[int] = set()
        """What the next request names."""
        self._in_calls: Counter[int] = Counter()
        """What the candidate has been called with, and not yet answered."""
        self._dropped: set[int] = set()

    def number(self, value: Any) -> int | None:
        """The number of a value that the candidate has too, to name it in the next request; None for any other."""
        if not is_changeable(value):
            return None
        number = next((number for number, loan in self._loans.items() if loan.value is value), None)
        if number is not None:
            self._named.add(number)
        return number

    def lend(self, value: Any, content: Any) -> int:
        """Give a value of the test's, with its content, a number for a call."""
        self._count -= 1
        self._loans[self._count] = _Loan(value, content)
        return self._count

    def begin_call(self, numbers: Iterable[int]) -> None:
        """The candidate is called with what has these numbers: they stay until the tests have what the answer gives."""
        self._in_calls.update(numbers)

    def end_call(self, numbers: Iterable[int]) -> None:
        """The tests have what such a call has given."""
        self._in_calls -= Counter(numbers)
        for number in self._dropped.difference(self._in_calls):
            self._loans.pop(number, None)
        self._dropped.intersection_update(self._in_calls)

    def drop(self, numbers: Iterable[int]) -> None:
        """Forget what nobody of the candidate's holds any more, once no call runs that was given it."""
        self._dropped.update(numbers)

    def note(self, number: Any, value: Any) -> Any:
        """The value that the test gets for one that an answer says is lent: the one that it has, if that has the same content."""
        if not isinstance(number, int) or not is_changeable(value):
            return value
        content = self._encode(value)
        known = self._loans.get(number)
        if known is not None and type(known.value) is type(value) and known.text == json.dumps(content):
            return known.value
        if number > 0:
            self._loans[number] = _Loan(value, content)
        return value

    def item(self, number: Any, path: Iterable[Any], value: Any) -> Any:
        """The item of a value that both have which an answer says is given back, if there is one here and it has the content of `value`:
        the candidate may have changed its own unseen."""
        if number not in self._loans:
            return value
        found = self._loans[number].value
        for index in path:
            found = dict(enumerate(inside(found))).get(index)
        if type(found) is not type(value) or type(found) not in CHANGEABLE:
            return value
        return found if json.dumps(self._encode(found)) == json.dumps(self._encode(value)) else value

    def hear(self, number: Any, value: Any, *, of_call: bool) -> None:
        """Give what both have the content that the candidate has made of it. Where the tests have changed it too, theirs stays, but for
        what the call was given (`of_call`)."""
        loan = self._loans.get(number)
        if loan is not None and (of_call or json.dumps(self._encode(loan.value)) == loan.text):
            replace_content(loan.value, value)
            loan.know(self._encode(loan.value))

    def changes(self) -> dict[str, Any]:
        """What the next request tells the candidate."""
        contents, released = [], []
        stay = self._named.union(self._in_calls)
        size = sum(len(loan.text) for number, loan in self._loans.items() if number not in stay)
        for number, loan in list(self._loans.items()):
            if number in self._in_calls and loan.is_large:
                continue
            content = self._encode(loan.value)
            if json.dumps(content) != loan.text:
                contents.append([number, loan.before, content])
                loan.know(content)
            if number not in stay and (size > LARGEST_LOANS or not _may_stay(loan)):
                released.append(number)
                size -= len(self._loans.pop(number).text)
        self._named.clear()
        return {"contents": contents, "released": released} if contents or released else {}

    def clear(self) -> None:
        """Forget everything: the process that gave it has ended."""
        self._loans.clear()
        self._in_calls.clear()
        self._dropped.clear()


def _may_stay(loan: _Loan) -> bool:
    """Whether the test has a name for the value, or for a container in it, and it is not too large."""
    return len(loan.value) <= LARGEST_LENT and (
        sys.getrefcount(loan.value) > _UNHELD or _most_held(loan.value) > _UNHELD_INSIDE
    )


def _is_lendable(value: Any) -> bool:
    return is_changeable(value) and len(value) <= LARGEST_LENT


def _is_held(holder: list[Any], but: int = 0) -> bool:
    """Whether anybody holds the one value in a list, `but` so many who do, or a container in it."""
    return sys.getrefcount(holder[0]) > _UNHELD + but or _most_held(holder[0]) > _UNHELD_INSIDE


def _most_held(container: Any) -> int:
    """The largest count of references to a container in this one, however deep."""
    most = 0
    for inner in inside(container):
        if is_changeable(inner):
            most = max(most, sys.getrefcount(inner), _most_held(inner))
    return most


_SAMPLE: list[Any] = [[]]
_UNHELD = sys.getrefcount(_SAMPLE[0])
_UNHELD_INSIDE = _most_held([[]])


def _is_small(content: Any) -> bool:
    """Whether a content, as it is sent, has few items."""
    left, look = SMALL, [content]
    while look and left > 0:
        one = look.pop()
        items = [*one.values()] if isinstance(one, dict) else one if isinstance(one, list) else ()
        left -= len(items)
        look += items
    return left > 0
