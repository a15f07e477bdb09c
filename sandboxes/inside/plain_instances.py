"""Functions of the candidate's in the place of classes, whose plain data is compared with plain data of its own.

    def V(*args): return 0                  assert V(1) + V(2) == V(3)

Nothing here is an object, so nobody is asked whether the two are equal. A class tells different arguments from each other.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Container
from typing import Any

from agentrl.sandboxes.inside.aliases import COMPARE

ALIKE = 3
"""So many calls with different arguments that give equal data: two may mean the same, as `P(1)` and `P(1, 0)` do."""


class PlainInstances:
    """What a test has had from functions that it uses as classes. `functions` are the candidate's, by their names."""

    def __init__(self, code: str, functions: Container[str]) -> None:
        self._names = _compared_with_its_own(code, functions)
        self._calls: dict[str, set[str]] = {}
        """The calls in the test that runs, by what they gave, as JSON."""

    def begin(self) -> None:
        """A test begins."""
        self._calls.clear()

    def watches(self, name: str) -> bool:
        """Whether the tests use a function as a class."""
        return name in self._names

    def note(self, name: str, arguments: Any, given: Any) -> bool:
        """Note a call, its arguments and what it gave, as they are sent; return whether that is the same too often."""
        calls = self._calls.setdefault(json.dumps(given), set())
        calls.add(json.dumps([name, arguments]))
        return len(calls) >= ALIKE


def _compared_with_its_own(code: str, functions: Container[str]) -> set[str]:
    """Return the names of functions that are called as a class is, in comparisons of which each side calls the candidate."""
    try:
        nodes = [*ast.walk(ast.parse(code))]
    except (SyntaxError, ValueError, RecursionError):
        return set()
    found: set[str] = set()
    for node in nodes:
        match node:
            case ast.Compare(left=left, comparators=comparators):
                sides = [left, *comparators]
            case ast.Call(func=ast.Attribute(attr=name), args=[one, other, *_]) if name in COMPARE:
                sides = [one, other]
            case _:
                continue
        called = [{name for name in _called(side) if name in functions} for side in sides]
        if all(called):
            found.update(name for names in called for name in names if name[:1].isupper())
    return found


def _called(side: ast.expr) -> set[str]:
    """Return the names that part of a comparison calls."""
    functions = [node.func for node in ast.walk(side) if isinstance(node, ast.Call)]
    named = {function.id for function in functions if isinstance(function, ast.Name)}
    return named | {function.attr for function in functions if isinstance(function, ast.Attribute)}
