"""When the tests are over: objects are made as the tests have made them, and as they have not, and compared.

    the tests                                 afterwards
    assert P(1) == P(1)                       P(7) and its like, of which one must differ; and P(1) thrice, which must not
    assert P() == P(); P().push(5)            P() to which the same is done, which must differ from one that nothing is done to

So a class passes for none of these by objects that are all equal, or that are equal by when they were made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from agentrl.sandboxes.inside.decoys import Decoys
from agentrl.sandboxes.inside.stand_ins import RemoteClass, RemoteObject, reference, vars_of
from agentrl.sandboxes.inside.wire import TestEndedError, Wire

MOST_PAIRS = 5
"""Pairs of equal objects of one class that are looked at at the end."""
MOST_USES = 12
"""Ways to change objects of one class that are tried on new ones."""
MOST_RECIPES = 8
NEW_OBJECTS = 4
DIFFERS = ""
"""What is known of an object's equality: there is another of its class that it is not equal to."""
MUTATING = frozenset({"__setitem__", "__delitem__", "__iadd__", "__isub__", "__ior__"})
"""Operators that change an object, or it has none of them."""


class Asks(Protocol):
    """What is asked of the candidate."""

    wire: Wire

    def is_there(self, owner: Any) -> bool: ...
    def special(self, owner: Any, name: str, args: tuple[Any, ...]) -> Any: ...
    def call(self, owner: Any, name: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def set_attribute(self, owner: Any, name: str, value: Any) -> None: ...


class Use(NamedTuple):
    """What a test has done to an object."""

    kind: str
    """`call`, `set` or `special`."""
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Pair(NamedTuple):
    one: Any
    other: Any
    test: int


class NewObjects:
    """What the tests have made and compared in one session, and what they did to it."""

    def __init__(self, asks: Asks, decoys: Decoys) -> None:
        self.test = 0
        """How many tests have ended."""
        self._asks = asks
        self._decoys = decoys
        self._over = False
        self._pairs: dict[type, list[_Pair]] = {}
        self._made: dict[type, list[Any]] = {}
        self._constants: dict[type, list[Any]] = {}
        self._uses: dict[type, dict[str, Use]] = {}

    def note_made(self, made: Any, owner: Any, name: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remember what a test has called to get an object."""
        where = reference(made)
        if where.made_by is not None or not (owner is None or isinstance(owner, RemoteClass)):
            return
        where.made_by = ((owner, name), args, kwargs)
        seen = self._made.setdefault(type(made), [])
        if not self._over and len(seen) < MOST_RECIPES and all(reference(one).made_by != where.made_by for one in seen):
            seen.append(made)

    def note_constant(self, one: Any, name: str) -> None:
        """Remember an object that a test had by its name from a class or the module."""
        names = reference(one).constant_names
        if not names:
            self._constants.setdefault(type(one), []).append(one)
        names.add(name)

    def note_use(self, one: Any, use: Use) -> None:
        """Remember what a test has done to an object."""
        if isinstance(one, RemoteObject) and not self._over:
            reference(one).used = True
            uses = self._uses.setdefault(type(one), {})
            if use.name not in uses and len(uses) < MOST_USES:
                uses[use.name] = use

    def note_equal(self, one: Any, other: Any) -> None:
        """Remember that the candidate has said that two objects are equal."""
        pairs = self._pairs.setdefault(type(one), [])
        if len(pairs) < MOST_PAIRS or all(pair.test != self.test for pair in pairs):
            pairs.append(_Pair(one, other, self.test))

    def finish(self) -> list[tuple[int, str]]:
        """Make new objects and compare. Returns the tests that are no pass, by their index, and why."""
        if not self._asks.wire.begin_probes():
            return []
        self._over = True
        found = []
        for pair in (pair for pairs in self._pairs.values() for pair in pairs):
            try:
                if (why := self._wrong_with(pair)) is not None:
                    found.append((pair.test, why))
            except TestEndedError as error:
                # A program that ends or hangs here has noticed that the tests are over.
                found.append((pair.test, f"the candidate does not answer when other objects are compared: {error}"))
            except Exception:  # noqa: S112 (nothing is known against it)
                continue
        return found

    def _wrong_with(self, pair: _Pair) -> str | None:
        if pair.one is pair.other and reference(pair.one).reached:
            return self._one_for_all_names(pair.one)
        if (why := self._otherwise_made_anew(pair)) is not None:
            return why
        wrong = [self._equal_to_all_new(pair.one, pair.other), self._equal_to_all_new(pair.other, pair.one)]
        # A function may well make the same of other arguments, so there one side that differs speaks for both.
        if DIFFERS in wrong and self._class_made(pair.one, pair.other) is None:
            return None
        return next((why for why in wrong if why not in (None, DIFFERS)), None)

    def _one_for_all_names(self, one: Any) -> str | None:
        """What is wrong where a function gave a constant of the candidate's, and all constants of its class are this one."""
        where = reference(one)
        if where.made_by is not None and len(where.constant_names) > 1 and len(self._constants[type(one)]) == 1:
            return f"every {type(one).__name__} of the candidate's is equal to every other"
        return None

    def _class_made(self, one: Any, other: Any) -> Any:
        """How the class made one of two objects; None where neither was made by it."""
        recipes = [reference(side).made_by for side in (one, other)]
        return next((made for made in recipes if made is not None and isinstance(made[0][0], RemoteClass)), None)

    # -- the same objects, made anew -----------------------------------------------------------------------------

    def _otherwise_made_anew(self, pair: _Pair) -> str | None:
        """What is wrong where objects that are made like these, in another order, are not equal."""
        made_by = [reference(side).made_by for side in (pair.one, pair.other)]
        if pair.one is pair.other or not all(map(self._is_as_it_was_made, (pair.one, pair.other))):
            return None
        one, other = made_by
        try:
            new_other = self._make(other)
            new = [self._make(one) for _ in range(self._decoys.random.choice((2, 4)))]
            equal = all(_truth(self._asks.special(made, "__eq__", (new_other,))) for made in new)
        except Exception:
            return None
        if not equal:
            return f"whether one {type(pair.one).__name__} of the candidate's is equal to another depends on when they are made"
        return None

    def _is_as_it_was_made(self, one: Any) -> bool:
        """Whether an object is as its class has made it, of plain data, in this process."""
        where = reference(one)
        if where.made_by is None or where.used or not self._asks.is_there(one):
            return False
        (owner, name), args, kwargs = where.made_by
        return isinstance(owner, RemoteClass) and name is None and all(map(is_constant, (*args, *kwargs.values())))

    def _make(self, made_by: Any) -> Any:
        (owner, name), args, kwargs = made_by
        return self._asks.call(owner, name, args, kwargs)

    # -- other objects -------------------------------------------------------------------------------------------

    def _equal_to_all_new(self, one: Any, other: Any) -> str | None:
        """What is wrong with an object that is equal to every other that can be made, or that no other can be made beside; DIFFERS for
        one that is not, None where nothing is known. `other` is one that it is equal to: what a function or an operator gave is compared
        with what the class makes in place of the other."""
        made_by = self._class_made(one, other) or reference(one).made_by
        if made_by is None or not self._asks.is_there(one):
            return None
        kind, alike = type(one), 0
        for make in self._ways(one, made_by):
            try:
                against, new, counts = make()
            except Exception:  # noqa: S112 (these arguments are not allowed)
                continue
            if isinstance(new, RemoteObject) and isinstance(against, RemoteObject):
                asked = new is not against and "__eq__" in vars_of(kind)
                if new is not against and not (asked and _truth(self._asks.special(against, "__eq__", (new,)))):
                    return DIFFERS
                alike += counts
        # A function may well make the same of other arguments, and a class seldom.
        if alike >= (1 if isinstance(made_by[0][0], RemoteClass) else NEW_OBJECTS):
            return f"every {kind.__name__} of the candidate's is equal to every other"
        try:
            self._make(made_by)
        except Exception:
            return f"a {kind.__name__} of the candidate's that could be made in the test cannot be made again"
        return None

    def _ways(self, one: Any, made_by: Any) -> Iterator[Callable[[], tuple[Any, Any, bool]]]:
        """Ways to make an object, and one to compare it with. The third that they give says whether two that are equal are suspicious."""
        maker, args, kwargs = made_by
        own = made_by == reference(one).made_by

        def of_other_arguments() -> tuple[Any, Any, bool]:
            new_args = tuple(self._other(arg) for arg in args)
            new_kwargs = {key: self._other(arg) for key, arg in kwargs.items()}
            old = (*args, *kwargs.values())
            if all(new is arg for new, arg in zip((*new_args, *new_kwargs.values()), old, strict=True)):
                raise ValueError("there are no other arguments")
            return one, self._make((maker, new_args, new_kwargs)), True

        def as_another(recipe: Any) -> tuple[Any, Any, bool]:
            return self._make(made_by) if own else one, self._make(recipe), True

        def used(use: Use) -> tuple[Any, Any, bool]:
            new = self._make(made_by)
            result, changes = self._use(new, use)
            # An object that does not change gives another one.
            return self._make(made_by), result if isinstance(result, type(one)) else new, changes

        yield from [of_other_arguments] * NEW_OBJECTS
        equal = [reference(side).made_by for pair in self._pairs[type(one)] for side in (pair.one, pair.other)]
        for seen in self._made.get(type(one), []):
            recipe = reference(seen).made_by
            if self._asks.is_there(seen) and recipe not in equal:
                yield lambda recipe=recipe: as_another(recipe)  # type: ignore[misc]
        for use in self._uses.get(type(one), {}).values() if own else ():
            yield lambda use=use: used(use)  # type: ignore[misc]

    def _use(self, new: Any, use: Use) -> tuple[Any, bool]:
        """Do to an object what a test has done to another. The result, and whether the object is sure to be another then: what is given
        data and nothing to call, and gives nothing back, is there to change it."""
        if use.kind == "set":
            self._asks.set_attribute(new, use.name, *use.args)
            return None, True
        if use.kind == "special":
            return self._asks.special(new, use.name, use.args), use.name in MUTATING
        result = self._asks.call(new, use.name, use.args, use.kwargs)
        given = (*use.args, *use.kwargs.values())
        return result, result is None and bool(given) and not any(map(callable, given))

    def _other(self, value: Any) -> Any:
        """Another value of the same kind, or another object of the same class; the same where there is none."""
        if isinstance(value, list | tuple) and any(isinstance(item, RemoteObject) for item in value):
            return type(value)(map(self._other, value)) if type(value) in (list, tuple) else value
        if not isinstance(value, RemoteObject):
            return self._decoys.other(value)
        made_by = reference(value).made_by
        others = [one for one in self._made.get(type(value), []) if one is not value and self._asks.is_there(one)]
        others = [one for one in others if reference(one).made_by != made_by]
        if others and self._decoys.random.random() < 1 / 2:
            return self._decoys.random.choice(others)
        elsewhere = self._decoys.random.choice(others) if others else value
        if made_by is None:
            return elsewhere
        maker, args, kwargs = made_by
        try:
            return self._make((maker, tuple(map(self._other, args)), {key: self._other(kwargs[key]) for key in kwargs}))
        except Exception:
            return elsewhere


def is_constant(value: Any) -> bool:
    """Whether no test can have changed a value since."""
    return value is None or isinstance(value, int | float | complex | str | bytes)


def _truth(answer: Any) -> bool:
    return answer is not NotImplemented and (isinstance(answer, RemoteObject) or bool(answer))
