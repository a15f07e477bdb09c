"""Other values and arguments for a run of the tests with other operands.

A class may take many values for one: a percentage is at most 100, a flag is "yes" or anything else. So each run goes another way:

    way         a number                           a text or a list
    alike       another of the same look           another of the same look
    near        3 away at most                     as alike
    zero        0                                  empty
    negative    with the other sign                as alike
    large       ten times as much, and 7           twice in a row
    small       a tenth                            without its last item
    constant    another of the tests' own code, or of the program's
    common      what people write
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

from agentrl.sandboxes.inside.decoys import Decoys
from agentrl.sandboxes.inside.stand_ins import RemoteObject

WAYS = ("alike", "near", "constant", "zero", "negative", "large", "small", "common")
LIKELY = ("constant", "alike", "common")
"""Ways to values that a class which takes few takes most often."""
PLAUSIBLE = ("near", "near", "alike", "constant")
"""Ways to values that a test may expect, as far as somebody knows who does not know it."""
COMMON: dict[type, tuple[Any, ...]] = {
    int: (1, 2, 10, 100),
    float: (0.5, 1.0, 100.0),
    str: ("yes", "no", "true", "a", "1", "Ada"),
}
Numbers = dict[str, Callable[[Any], Any]]
_NUMBERS: Numbers = {
    "zero": lambda value: value * 0,
    "negative": lambda value: -value,
    "large": lambda value: 10 * value + 7,
    "small": lambda value: value // 10 if isinstance(value, int) else value / 10,
}
_TEXTS: Numbers = {
    "zero": lambda value: value[:0],
    "large": lambda value: value + value,
    "small": lambda value: value[:-1],
}


class Mutants:
    """Values that are not those of the tests, which nobody can foresee. `code` is the tests', `constants` are the program's."""

    def __init__(self, code: str, constants: Iterable[int | float | str] = ()) -> None:
        self.decoys = Decoys()
        self.random = self.decoys.random
        self._constants = _constants(code)
        for value in constants:
            beside = [value] if isinstance(value, str) else [value - 1, value, value + 1]
            self._constants.setdefault(type(value), []).extend(beside)

    def value(self, value: Any, way: str) -> Any:
        """Another value of the same kind; None where there is none."""
        if type(value).__module__ == "numpy" and hasattr(value, "dtype"):
            plain = None if value.shape else self.value(value.item(), way)
            return None if plain is None else type(value)(plain)
        made = self._on_the_way(value, way)
        if made is None or (type(made) is type(value) and made == value):
            made = self.decoys.decoy(value)
        return made

    def arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], other: Callable[[Any], Any], way: str
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Other arguments; None where each has no other. `other` gives another object of the candidate's."""

        def another(value: Any) -> Any:
            if isinstance(value, RemoteObject):
                return value if (found := other(value)) is None else found
            if type(value) in (list, tuple) and any(isinstance(item, RemoteObject) for item in value):
                return type(value)(map(another, value))
            own_way = (
                way if self.random.random() < 1 / 2 else self.random.choice(PLAUSIBLE if way in PLAUSIBLE else WAYS)
            )
            return value if (found := self.value(value, own_way)) is None else found

        before = [*args, *kwargs.values()]
        after = [another(value) for value in before]
        changed = [index for index, value in enumerate(before) if after[index] is not value]
        if not changed:
            return None
        # One at least, and seldom all: a class that makes something of both may make the same of both.
        kept = self.random.sample(changed, self.random.randrange(len(changed)))
        after = [before[index] if index in kept else value for index, value in enumerate(after)]
        return tuple(after[: len(args)]), dict(zip(kwargs, after[len(args) :], strict=True))

    def _on_the_way(self, value: Any, way: str) -> Any:
        if isinstance(value, bool):
            return not value
        if way in ("constant", "common"):
            known = COMMON if way == "common" else self._constants
            others = [one for one in known.get(type(value), ()) if one != value]
            return self.random.choice(others) if others else None
        if way == "near" and isinstance(value, int | float):
            return value + self.random.choice((-3, -2, -1, 1, 2, 3))
        ways = (
            _NUMBERS
            if isinstance(value, int | float)
            else _TEXTS
            if isinstance(value, str | bytes | list | tuple)
            else {}
        )
        try:
            return ways[way](value) if way in ways else None
        except (OverflowError, TypeError):
            return None


def _constants(code: str) -> dict[type, list[Any]]:
    """Return the numbers and texts in the tests' code, by their types."""
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[type, list[Any]] = {}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str):
            found.setdefault(type(node.value), []).append(node.value)
    return found
