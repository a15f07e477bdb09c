"""Operators of a candidate's objects, as the tests use them.

What an object of a class that the tests do not name may not answer, and which questions are put to it, see `questions`.
"""

from __future__ import annotations

from itertools import islice
from types import SimpleNamespace
from typing import Any, NoReturn, Protocol

from agentrl.sandboxes.inside.mutants import Mutants
from agentrl.sandboxes.inside.other_operands import MEASURES, RATIOS, SHIFTS
from agentrl.sandboxes.inside.plain_data import NotPlainError
from agentrl.sandboxes.inside.plain_encoding import encode
from agentrl.sandboxes.inside.questions import (
    COLLECTIONS,
    EQUALITY,
    GATHERING,
    SEARCHES,
    SET_METHODS,
    Change,
    Operands,
    Round,
    class_name,
    is_made_by_its_class,
    is_number,
)
from agentrl.sandboxes.inside.stand_ins import RemoteClass, RemoteObject, reference, reference_of_class, vars_of
from agentrl.sandboxes.inside.wire import Wire

COMBINING = frozenset(
    f"__{side}{name}__"
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow"),
        *("and", "or", "xor", "lshift", "rshift", "matmul"),
    )
    for side in ("", "r", "i")
)
"""All operators of two operands but comparisons."""
OWN_METHODS = frozenset(
    {
        *(name for name in dir(str) if name.startswith("is")),
        *(
            "startswith",
            "endswith",
            "removeprefix",
            "removesuffix",
            "issubset",
            "issuperset",
            "isdisjoint",
            "is_integer",
        ),
    }
)
"""Methods that tell plain data from other plain data, and that classes of other things seldom have."""
DIFFERENCES = frozenset({"__sub__", "__rsub__", "__xor__", "__rxor__"})
CHANGING = frozenset({"__setitem__", "__delitem__", "__iadd__", "__isub__", "__ior__"})
"""Operators that change an object, or it has none of them."""
MAY_CHANGE = CHANGING.union(
    {"__call__", "__enter__", "__exit__"}, (name for name in COMBINING if name.startswith("__i"))
)
MOST_ITEMS = 100_000
"""Of an object of a class that the test does not name, which are looked through for one."""


class Asks(Protocol):
    """What is asked of the candidate."""

    wire: Wire

    def special(self, owner: Any, name: str, args: tuple[Any, ...]) -> Any:
        """Use an operator of the candidate's object."""
        ...


def is_named(kind: Any) -> bool:
    """Return whether the test names this class of the candidate's, or one that it derives from."""
    return any(reference_of_class(base).named for base in kind.__mro__ if isinstance(base, RemoteClass))


class Operators:
    """What the tests do with operators in one run."""

    def __init__(self, asks: Asks, run: Round) -> None:
        self.changes = 0
        """How often a test may have changed an object: it has called something, or set it."""
        self._asks = asks
        self.run = run
        self._mutants = Mutants("")
        self._beside_data: set[type] = set()
        self._iterated: int | None = None
        """The id of what the last operator gave an iterator over."""

    def is_beside_data(self, one: Any) -> bool:
        """Return whether an object may be asked what plain data it is equal to.

        One that a function or method gave may be there in place of the data that the test expects, unless it has compared objects that it
        has made itself with data.
        """
        if isinstance(one, RemoteClass):
            return is_named(one)
        if not is_named(type(one)):
            return False
        where = reference(one)
        if where.by_operator or where.is_data or is_made_by_its_class(one):
            self._beside_data.add(type(one))
        return type(one) in self._beside_data

    def compare(self, one: Any, name: str, other: Any) -> Any:
        """Answer a comparison of the test's."""
        kind = type(one)
        remote = isinstance(other, RemoteObject)
        if name in EQUALITY and type(other) is SimpleNamespace and one.__class__ is SimpleNamespace:
            # By what is in both, so that the program is not shown what is expected.
            alike = dict(one.__dict__) == vars(other)
            return alike if name == "__eq__" else not alike
        if not remote and not self.is_beside_data(one):
            # Only plain data is equal to plain data, unless the test knows the object for one of a class of its own.
            if name in EQUALITY:
                return NotImplemented
            self._asks.wire.wrong(f"the candidate gave an object of class {kind.__name__} where plain data is compared")
        if name not in vars_of(kind):  # the class leaves equality to identity
            # The class has given one object twice.
            if one is other and name == "__eq__" and reference(one).times_made > 1:
                return self.run.put(one, name, (other,), lambda left, right: left is right[0])
            return True if one is other else NotImplemented
        if not remote and name in EQUALITY and self._mutants.value(other, "alike") is None:
            return self._compare_with_what_has_no_other(one, name, other)
        return self.run.put(one, name, (other,), lambda left, right: self._answer(left, name, right[0]))

    def _compare_with_what_has_no_other(self, one: Any, name: str, other: Any) -> Any:
        """Answer whether an object is equal to something such as None, of which no other of its kind could be asked for in its place.

        The candidate may say that they differ.
        """
        try:
            encode(other)
        except NotPlainError:
            return NotImplemented
        answer = self._answer(one, name, other)
        if answer is True and name == "__eq__":
            what = "None" if other is None else f"an object of class {class_name(other)}"
            self._asks.wire.wrong(
                f"the candidate's {class_name(one)} is equal to {what}, in whose place nothing else can be asked"
            )
        return answer

    def _answer(self, one: Any, name: str, other: Any) -> Any:
        """Return what the candidate answers to a comparison.

        True, False or NotImplemented, as Python would take the answer where it asks whether it is true.

        An object is an answer too, of which nobody may ask that: nothing could ask it again.
        """
        answer = self._asks.special(one, name, (other,))
        if isinstance(answer, bool) or answer is NotImplemented:
            return answer
        # A list is one that two lists, joined with `and`, come to: no test may look into it, or it could not be asked again.
        if answer is None or isinstance(answer, int | float | str | list | tuple | dict | set | frozenset):
            return bool(answer)
        if isinstance(answer, RemoteObject):
            reference(answer).compares = True
            return answer
        return self._asks.wire.wrong(f"the candidate answers a comparison with a {type(answer).__name__}")

    def truth(self, one: Any) -> bool:
        """Return whether an object is true, where its class does not say."""
        self._check_truth(one)
        return len(one) != 0 if "__len__" in vars_of(type(one)) else True

    def _check_truth(self, one: Any) -> None:
        if reference(one).compares:
            self._asks.wire.wrong(
                f"the candidate's object of class {type(one).__name__} answers a comparison, which only True or False can"
            )

    def combine(self, one: Any, name: str, args: tuple[Any, ...]) -> Any:
        """Answer any other operator of the test's."""
        iterated, self._iterated = self._iterated, id(one) if name == "__iter__" else None
        if name in MAY_CHANGE:
            self.changes += 1
        if name in CHANGING and isinstance(one, RemoteObject):
            self.run.note_change(one, Change("special", name, args, {}))
        if name == "__bool__":
            self._check_truth(one)
        if name == "__contains__":
            return self._contains(one, args[0])
        if name in ("__iter__", "__next__", "__getitem__"):
            return self._items(one, name, args)
        measured = name in MEASURES and isinstance(one, RemoteObject) and reference(one).told
        told = name in COMBINING and not isinstance(args[0], RemoteObject) and not self.is_beside_data(one)
        # It could give back what it was given, or answer the difference from it: what the test expects.
        if (told and not self._is_known(one)) or measured:
            self._refuse_beside_data(one)
        # list() and sorted() ask for a length after the iterator, to know how much room they need: nothing follows from the answer.
        is_hint = name == "__len__" and iterated == id(one)
        result = self._asks.special(one, name, args) if is_hint else self._combined(one, name, args)
        if told and not isinstance(result, RemoteObject):
            self._refuse_beside_data(one)
        if told:
            reference(result).told = True
            return result
        if name == "__len__":
            self._note_length(one, result)
        if isinstance(result, RemoteObject) and isinstance(one, RemoteObject) and name != "__call__":
            reference(result).by_operator = True
        return result

    def _is_known(self, one: Any) -> bool:
        """Return whether the test names the class of an object, or the class that it is asked of."""
        return is_named(one if isinstance(one, RemoteClass) else type(one))

    def _refuse_beside_data(self, one: Any) -> NoReturn:
        self._asks.wire.wrong(f"the candidate gave an object of class {class_name(one)} where plain data is expected")

    def _combined(self, one: Any, name: str, args: tuple[Any, ...]) -> Any:
        def ask(left: Any, right: Operands) -> Any:
            return self._asks.special(left, name, right)

        shifted = name in (*SHIFTS, *RATIOS) and is_number(args[0])
        gathered = name in GATHERING and (isinstance(args[0], COLLECTIONS) or is_number(args[0]))
        differs = name in DIFFERENCES and isinstance(args[0], RemoteObject)
        measured = name in MEASURES and reference(one).shifted
        if not (shifted or gathered or differs or measured):
            return ask(one, args)
        result = self.run.put(one, name, args, ask)
        if isinstance(result, RemoteObject) and name not in RATIOS:
            reference(result).shifted = True
        return result

    def _contains(self, one: Any, item: Any) -> bool:
        """Return whether an object contains something.

        One of a class that the test does not name is asked for its items, and they are compared here, as Python does for a class that has
        items and does not say what it contains.
        """
        kind = type(one)
        if not isinstance(item, RemoteObject) and not self._is_known(one):
            if "__iter__" not in vars_of(kind):
                self._asks.wire.wrong(
                    f"the candidate gave an object of class {kind.__name__} without items where it is asked for plain data in it"
                )
            return any(found is item or found == item for found in islice(iter(one), MOST_ITEMS))
        if any(base is one for base in type(item).__mro__):  # every member is in its Enum
            return bool(self._asks.special(one, "__contains__", (item,)))
        found = self.run.put(
            one, "__contains__", (item,), lambda left, right: bool(self._asks.special(left, "__contains__", right))
        )
        return bool(found)

    def _note_length(self, one: Any, length: Any) -> None:
        where = reference(one)
        where.length = (length, self.changes)
        if where.items is not None:
            self._check_length(one, length, *where.items)

    def _items(self, one: Any, name: str, args: tuple[Any, ...]) -> Any:
        """Return an item of an object's, or an iterator over them. Where plain data is expected there are as many as its length says.

        Raises:
            IndexError: There is no such item.
            StopIteration: There are no more items.
        """
        where = reference(one)
        try:
            result = self._asks.special(one, name, args)
        except (StopIteration, IndexError):
            if name == "__next__" and where.iterates is not None:
                of, count = where.iterates
                of.items = (count, self.changes)
                if of.length is not None:
                    self._check_length(one, of.length[0], count, of.length[1])
            elif name == "__getitem__" and type(args[0]) is int and where.length is not None and args[0] >= 0:
                self._check_length(one, where.length[0], args[0], where.length[1])
            raise
        if name == "__iter__" and isinstance(result, RemoteObject) and not is_named(type(one)):
            reference(result).iterates = (where, 0)
        elif name == "__next__" and where.iterates is not None:
            of, count = where.iterates
            where.iterates = (of, count + 1)
        return result

    def _check_length(self, one: Any, length: Any, count: int, changes: int) -> None:
        if changes == self.changes and not is_named(type(one)) and length > count:
            self._asks.wire.wrong(f"the candidate gave an object of length {length} that has {count} items")


def is_question(name: str, argument: Any, *, named: bool) -> bool:
    """Return whether a method with this argument asks whether an object has what the test expects: `index`, `count`, `startswith`, `union` of a set.

    What an object of a class that the test names finds or counts is its own affair, as in `service.find(7)`.
    """
    of_sets = name in SET_METHODS and isinstance(argument, COLLECTIONS)
    return of_sets or name in OWN_METHODS or (name in SEARCHES and not named)
