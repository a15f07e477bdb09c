"""Probes of a candidate's operators: whether an object that says it is equal is equal to some things and not to others.

Each comparison of the test's goes to the candidate among others, in an order that it cannot foresee: with itself, the other way
round, with objects of no kind that it knows, and with values like the one that the test compares with. New objects come when the
last test is over.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from agentrl.sandboxes.inside.decoys import Decoys
from agentrl.sandboxes.inside.foreign import Foreign
from agentrl.sandboxes.inside.new_objects import Asks, NewObjects, Use
from agentrl.sandboxes.inside.stand_ins import RemoteClass, RemoteObject, reference, reference_of_class, vars_of

ALWAYS_PROBED = 12
"""Comparisons of one class and operator, of which each is probed. Of later ones every eighth is."""
LATER_SHARE = 1 / 8
DECOYS = 6
SWAPPED = {
    "__lt__": "__gt__",
    "__gt__": "__lt__",
    "__le__": "__ge__",
    "__ge__": "__le__",
    "__eq__": "__eq__",
    "__ne__": "__ne__",
}
ARITHMETIC = frozenset(
    f"__{side}{name}__"
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow")
    for side in ("", "r", "i")
)
SHIFTS = ("__add__", "__radd__", "__sub__", "__rsub__")
"""Arithmetic whose result another number changes for certain, that takes no longer with a large one, and that changes no object."""
COMBINING = ARITHMETIC.union(
    f"__{side}{name}__" for name in ("and", "or", "xor", "lshift", "rshift", "matmul") for side in ("", "r", "i")
)
"""All operators of two operands but comparisons."""
OWN_METHODS = frozenset(
    name for kind in (str, bytes, frozenset, int, float) for name in dir(kind) if not name.startswith("_")
) - {"copy", "count", "index", "find", "format", "title", "center", "split", "real", "imag"}
"""Methods that tell plain data from other plain data, and that classes of other things seldom have."""
CHANGING = frozenset({"__setitem__", "__delitem__", "__call__", "__enter__", "__exit__"}).union(
    name for name in COMBINING if name.startswith("__i")
)
"""Operators that may change an object."""
UNARY = ("__abs__", "__neg__", "__pos__", "__round__", "__trunc__", "__floor__", "__ceil__")
ASKED_TWICE = ("__bool__", "__len__", "__hash__")
KEEPING = frozenset({*ASKED_TWICE, "__str__", "__repr__", "__format__"})
"""Operators that change no object."""
MOST_ITEMS = 100_000
"""Of an object of a class that the test does not name, which are looked through for one."""


def is_number(value: Any) -> bool:
    """Whether a value of the test's is a number that has others of its type beside it."""
    numpys = (
        type(value).__module__ == "numpy" and hasattr(value, "dtype") and value.dtype.kind in "iuf" and not value.shape
    )
    return numpys or (isinstance(value, int | float) and not isinstance(value, bool))


def is_named(kind: Any) -> bool:
    """Whether the test names this class of the candidate's, or one that it derives from."""
    return any(
        reference_of_class(base).named
        for base in kind.__mro__
        if isinstance(base, RemoteClass) and "_agentrl" in vars(base)
    )


class Prober:
    """What has been asked in one session, and what is still to be."""

    def __init__(self, asks: Asks) -> None:
        self.changes = 0
        """How often a test may have changed an object: it has called something, or set it."""
        self._asks = asks
        self._counts: dict[tuple[type, str], int] = {}
        self._decoys = Decoys()
        self.new_objects = NewObjects(asks, self._decoys)

    def compare(self, one: Any, name: str, other: Any) -> Any:
        """Answer a comparison of the test's. Ends the test where the candidate fails a probe."""
        kind = type(one)
        remote = isinstance(other, RemoteObject)
        if not remote and not is_named(kind):
            # Only plain data is equal to plain data, unless the test knows the class.
            if name in ("__eq__", "__ne__"):
                return NotImplemented
            self._asks.wire.wrong(f"the candidate gave an object of class {kind.__name__} where plain data is compared")
        if name not in vars_of(kind):  # the class leaves equality to identity
            if one is other and name == "__eq__":
                self.new_objects.note_equal(one, other)
            return True if one is other else NotImplemented
        if not self._due(kind, name):
            return self._answer(one, name, other)
        return self._probe(one, name, other, remote=remote)

    def _answer(self, one: Any, name: str, other: Any) -> Any:
        """What the candidate answers to a comparison: True, False or NotImplemented, as Python would take the answer where it asks
        whether it is true. An object is an answer too, of which nobody may ask that: nothing could probe it."""
        answer = self._asks.special(one, name, (other,))
        if isinstance(answer, bool) or answer is NotImplemented:
            return answer
        # A list is one that two lists, joined with `and`, come to: no test may look into it, or it could not be probed.
        if answer is None or isinstance(answer, int | float | str | list | tuple | dict | set | frozenset):
            return bool(answer)
        if isinstance(answer, RemoteObject):
            reference(answer).compares = True
            return answer
        return self._asks.wire.wrong(f"the candidate answers a comparison with a {type(answer).__name__}")

    def truth(self, one: Any) -> bool:
        """Whether an object is true, where its class does not say."""
        self._check_truth(one)
        return len(one) != 0 if "__len__" in vars_of(type(one)) else True

    def _check_truth(self, one: Any) -> None:
        if reference(one).compares:
            self._fail(one, "answers a comparison, which only True or False can")

    def combine(self, one: Any, name: str, args: tuple[Any, ...]) -> Any:
        """Answer any other operator of the test's."""
        special = self._asks.special
        if name not in KEEPING and isinstance(one, RemoteObject):
            reference(one).used = True
        if name == "__bool__":
            self._check_truth(one)
        if name in ASKED_TWICE and self._due(type(one), name):
            first, second = special(one, name, args), special(one, name, args)
            if type(first) is not type(second) or first != second:
                self._fail(one, f"answers {name} differently when it is asked twice")
            if name == "__len__":
                self._note_length(one, first)
            return first
        if name == "__contains__":
            return self._contains(one, args[0])
        if name in ("__iter__", "__next__", "__getitem__"):
            return self._items(one, name, args)
        if name in CHANGING:
            self.changes += 1
            self.new_objects.note_use(one, Use("special", name, args, {}))
        if name in COMBINING and not is_named(type(one)) and not isinstance(args[0], RemoteObject):
            # It could give back what it was given, or answer the difference from it: what the test expects.
            self._asks.wire.wrong(
                f"the candidate gave an object of class {type(one).__name__} where plain data is expected"
            )
        with_number = name in ARITHMETIC and len(args) == 1 and is_number(args[0])
        twins = reference(one).twins
        if not ((with_number and name in SHIFTS) or (twins and (name in UNARY or name in ARITHMETIC))):
            return special(one, name, args)
        asked: list[Callable[[], Any]] = [lambda: special(one, name, args)]
        if with_number and not twins:
            far = self._decoys.random.uniform(1e6, 1e9)
            shifts = [type(args[0])(args[0] + shift) for shift in (far, -far)]
            asked += [lambda shift=shift: special(self._like(one), name, (shift,)) for shift in shifts]  # type: ignore[misc]
        else:
            asked += [lambda twin=twin: special(twin, name, args) for twin in twins]  # type: ignore[misc]
        result, *others = self._in_any_order(asked)
        if isinstance(result, Exception):
            raise result
        plain = isinstance(result, int | float | complex | str | list | tuple) and not isinstance(result, bool)
        if (
            with_number
            and not twins
            and plain
            and all(type(other) is type(result) and other == result for other in others)
        ):
            self._fail(one, f"answers {name} with {result!r} whatever the number is")
        if isinstance(result, RemoteObject):
            reference(result).twins = tuple(
                other for other in others if isinstance(other, RemoteObject) and other is not result
            )
        return result

    # ------------------------------------------------------------------------------------------------------------

    def _due(self, kind: type, name: str) -> bool:
        count = self._counts[kind, name] = self._counts.get((kind, name), 0) + 1
        return count <= ALWAYS_PROBED or self._decoys.random.random() < LATER_SHARE

    def _fail(self, one: Any, why: str) -> None:
        what = f"class {one.__name__}" if isinstance(one, RemoteClass) else f"object of class {type(one).__name__}"
        self._asks.wire.wrong(f"the candidate's {what} {why}")

    def _in_any_order(self, questions: list[Callable[[], Any]]) -> list[Any]:
        """The answers, or the exceptions in place of them, to questions that are asked in an order nobody can foresee."""
        answers: list[Any] = [None] * len(questions)
        order = list(range(len(questions)))
        self._decoys.random.shuffle(order)
        for index in order:
            try:
                answers[index] = questions[index]()
            except Exception as error:
                answers[index] = error
        return answers

    def _probe(self, one: Any, name: str, other: Any, *, remote: bool) -> Any:
        answer_of = self._answer
        equality = name in ("__eq__", "__ne__")
        strangers: list[Any] = (
            [Foreign(), None, self._decoys.random.randrange(10**9), self._decoys.word()] if equality else []
        )
        decoys = (
            []
            if remote or not equality
            else [item for item in map(self._decoys.decoy, [other] * DECOYS) if item is not None]
        )
        swapped = SWAPPED[name]
        questions = [
            lambda: answer_of(one, name, other),
            lambda: answer_of(one, name, other),
            lambda: answer_of(one, name, one),
            lambda: answer_of(one, swapped, other) if swapped in vars_of(type(one)) else None,
            lambda: answer_of(other, name, one) if remote and name in vars_of(type(other)) else None,
            lambda: hash(one) if equality and remote else None,
            lambda: hash(other) if equality and remote else None,
            *[lambda item=item: answer_of(one, name, item) for item in (*strangers, *decoys)],
        ]
        real, again, itself, opposite, back, hash_one, hash_other, *rest = self._in_any_order(questions)
        if isinstance(real, bool) and isinstance(again, bool) and real is not again:
            self._fail(one, f"answers {name} differently when it is asked twice")
        if equality:
            yes = name == "__eq__"
            if itself is (not yes):
                self._fail(one, "is not equal to itself")
            stranger, *known = rest[: len(strangers)]
            if stranger is yes or all(answer is yes for answer in known):
                self._fail(one, "is equal to objects of any kind")
            if real is yes and any(answer is yes for answer in rest[len(strangers) :]):
                self._fail(one, "is equal to values that differ")
            if real is yes and back is (not yes):
                self._fail(one, "is equal to an object that is not equal to it")
            if real is yes and type(hash_one) is int and type(hash_other) is int and hash_one != hash_other:
                self._fail(one, "is equal to an object with another hash")
            if real is yes and remote:
                self.new_objects.note_equal(one, other)
            for twin in reference(one).twins:
                if real is yes and not remote and answer_of(twin, name, other) is yes:
                    self._fail(one, "stays equal to the same value whatever is added to it")
        else:
            strict = name in ("__lt__", "__gt__")
            if itself is strict:
                self._fail(one, f"answers {name} of itself with {itself}")
            if strict and real is True and (opposite is True or back is True):
                self._fail(one, "is both less and greater than another")
            twins = reference(one).twins
            if real is True and not remote and twins and all(answer_of(twin, name, other) is True for twin in twins):
                self._fail(one, "stays on the same side of a value whatever is added to it")
        if isinstance(real, Exception):
            raise real
        return real

    def _contains(self, one: Any, item: Any) -> bool:
        """Whether an object contains something. One of a class that the test does not name is asked for its items, and they are
        compared here, as Python does for a class that has items and does not say what it contains."""
        kind = type(one)
        if not isinstance(item, RemoteObject) and not is_named(kind):
            if "__iter__" not in vars_of(kind):
                self._asks.wire.wrong(
                    f"the candidate gave an object of class {kind.__name__} without items where it is asked for plain data in it"
                )
            return any(found is item or found == item for found in islice(iter(one), MOST_ITEMS))
        if not self._due(kind, "__contains__"):
            return bool(self._asks.special(one, "__contains__", (item,)))
        # What contains every string is no container of the test's; of numbers there are intervals.
        others = [decoy for decoy in map(self._decoys.decoy, [item] * DECOYS) if decoy is not None]
        decoys = others if isinstance(item, str) and others else [Foreign(), *others[:2]]

        def ask(what: Any) -> Callable[[], Any]:
            return lambda: bool(self._asks.special(one, "__contains__", (what,)))

        real, *answers = self._in_any_order([ask(what) for what in (item, *decoys)])
        if all(answer is True for answer in answers):
            self._fail(one, "contains everything")
        if isinstance(real, Exception):
            raise real
        return bool(real)

    def _like(self, one: Any) -> Any:
        """An object that is made as this one was, which an operator may change in its place; itself where that is not known."""
        made_by = reference(one).made_by
        if made_by is None or not isinstance(made_by[0][0], RemoteClass):
            return one
        (owner, name), args, kwargs = made_by
        return self._asks.call(owner, name, args, kwargs)

    def _note_length(self, one: Any, length: Any) -> None:
        where = reference(one)
        where.length = (length, self.changes)
        if where.items is not None:
            self._check_length(one, length, *where.items)

    def _items(self, one: Any, name: str, args: tuple[Any, ...]) -> Any:
        """An item of an object's, or an iterator over them. Where plain data is expected there are as many as its length says."""
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
