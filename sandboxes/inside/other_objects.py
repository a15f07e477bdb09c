"""Other objects of a candidate's classes, for a run of the tests with other operands.

Made of other arguments, or with something else done to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentrl.sandboxes.inside.changes import snapshot
from agentrl.sandboxes.inside.mutants import LIKELY, Mutants
from agentrl.sandboxes.inside.plain_decoding import decode
from agentrl.sandboxes.inside.questions import Change, Make, Operands, is_made_by_its_class
from agentrl.sandboxes.inside.stand_ins import RemoteObject, reference

ATTEMPTS = 4
"""How many other arguments are tried where a class refuses them."""


class OtherObjects:
    """Makes them in one run."""

    def __init__(self, job: dict[str, Any], mutants: Mutants) -> None:
        self.mutants = mutants
        self.way: str = job["way"]
        self._changes = {kind: Change(*decode(change)) for kind, change in job["changes"].items()}
        self._recipes = {kind: [decode(recipe) for recipe in recipes] for kind, recipes in job["recipes"].items()}
        """Of what the tests make objects of each class."""
        self.by_change = bool(self._changes) and bool(job["keeps"])
        """Whether other things are done to objects that are made of the same: what a stack is made of may be nothing of it."""

    def another(self, args: Operands, kwargs: dict[str, Any], make: Make, way: str = "") -> Any:
        """Return an object that a class makes of other arguments; None where it makes none."""
        for attempt in range(ATTEMPTS):
            chosen = (way or self.way) if attempt == 0 else self.mutants.random.choice(LIKELY)
            others = self.mutants.arguments(args, kwargs, self.late, chosen)
            if others is None:
                return None
            try:
                made = make(*snapshot(others))
            except Exception:  # noqa: S112 (these arguments are not allowed)
                continue
            return made if isinstance(made, RemoteObject) else None
        return None

    def late(self, one: Any, way: str = "") -> Any:
        """Another object of the class of this one; None where there is none."""
        where = reference(one)
        if where.beside:
            return where.beside.pop()

        def make(args: Operands, kwargs: dict[str, Any]) -> Any:
            return where.session.call_now(type(one), None, args, kwargs)

        recipes = [(args, kwargs, make) for args, kwargs in self._recipes.get(type(one).__name__, ())]
        if where.made_by is not None:
            (owner, name), args, kwargs = where.made_by

            def call(args: Operands, kwargs: dict[str, Any]) -> Any:
                return where.session.call_now(owner, name, *snapshot((args, kwargs)))

            # To change an object that holds others of the tests' changes them too.
            if self.by_change and is_made_by_its_class(one) and not holds_objects([*args, *kwargs.values()]):
                return self._changed_otherwise(one, lambda: call(args, kwargs), way or self.way)
            recipes = [(args, kwargs, call), *recipes]
        for args, kwargs, make in recipes:
            if (another := self.another(args, kwargs, make, way)) is not None:
                return another
        return None

    def _changed_otherwise(self, one: Any, make: Callable[[], Any], way: str) -> Any:
        """Return an object that is made as this one is, to which is done what the tests do to such objects, with other data.

        None where that is nothing that changes one for certain.
        """
        session = reference(one).session
        change: Change | None = reference(one).change or self._changes.get(type(one).__name__)
        others = None if change is None else self.mutants.arguments(change.args, change.kwargs, self.late, way)
        if change is None or others is None:
            return None
        args, kwargs = snapshot(others)
        try:
            made = make()
            if change.kind == "set":
                session.set_attribute(made, change.name, args[0])
            elif change.kind == "special":
                session.special(made, change.name, args)
            else:
                session.call_now(made, change.name, args, kwargs)
        except Exception:
            return None
        return made


def holds_objects(value: Any) -> bool:
    """Return whether there is an object of the candidate's in data, however deep."""
    if isinstance(value, dict):
        return any(map(holds_objects, [*value, *value.values()]))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(holds_objects, value))
    return isinstance(value, RemoteObject)
