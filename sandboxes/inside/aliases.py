"""Names of the candidate's that tests take for different things, and that are one.

    class Token(Enum): NUMBER = PLUS = EOF = 1          assert tokens("1+") == [Token.NUMBER, Token.PLUS, Token.EOF]
    NotFound = NotAllowed = Exception                   with raises(NotFound): ...

Tests that compare such things by identity, as a list, `is` and `raises` do, never ask the candidate. A test that compares two names
itself, as in `assert Color.CRIMSON is Color.RED`, knows that they are one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from agentrl.sandboxes.inside.stand_ins import RemoteClass, RemoteObject, vars_of

TELL_CLASSES = frozenset(
    {
        "isinstance",
        "issubclass",
        "raises",
        *(f"assert{name}" for name in ("Raises", "RaisesRegex", "IsInstance", "NotIsInstance")),
    }
)
"""Functions that tell one class from another."""
COMPARE = frozenset({"assertIs", "assertEqual", "assertEquals"})
FUNCTIONS = frozenset({"function", "method", "builtin_function_or_method", "property", "partial"})
"""Classes of what does the same by any of its names."""
EVERYWHERE = ""
"""In place of a test's name: whatever was done while no test ran is part of all."""


class Aliases:
    """The names that the tests of one run have had things by."""

    def __init__(self, code: str) -> None:
        try:
            nodes = [*ast.walk(ast.parse(code))]
        except (SyntaxError, ValueError, RecursionError):
            nodes = []
        self._telling = {name for node in nodes for name in _telling(node)}
        self._compared = {frozenset(pair) for node in nodes for pair in _compared(node)}
        self._names: dict[int, tuple[Any, dict[str, tuple[str, set[str]]]]] = {}
        """Each thing by its identity, and its names, each with the whole of it and the tests that have used it."""

    def note(self, owner: Any, name: str, value: Any, test: str) -> None:
        """Note what a test has had by a name of the module or of a class."""
        if name.startswith("__"):
            return
        if isinstance(value, RemoteClass):
            tells = owner is None and name in self._telling
        else:  # those whose class says what they are equal to are values, as two names of one number are
            kind = type(value)
            tells = isinstance(value, RemoteObject) and "__eq__" not in vars_of(kind) and kind.__name__ not in FUNCTIONS
            tells = tells and (owner is None or isinstance(owner, RemoteClass))
        if not tells:
            return
        whole = name if owner is None else f"{owner.__name__}.{name}"
        _, names = self._names.setdefault(id(value), (value, {}))
        names.setdefault(name, (whole, set()))[1].add(test)

    def same(self) -> Iterator[tuple[str, str]]:
        """Return the tests that had one thing by two names, and what they are told; EVERYWHERE for all tests."""
        for _, names in self._names.values():
            for one, other in combinations(sorted(names), 2):
                if frozenset((one, other)) not in self._compared:
                    (whole, tests), (other_whole, other_tests) = names[one], names[other]
                    for test in tests | other_tests:
                        yield test, f"the candidate's {whole[:100]} and {other_whole[:100]} are one and the same"


def _telling(node: ast.AST) -> Iterator[str]:
    """Return the names of classes that part of a test tells from others."""
    match node:
        case ast.Call(func=function, args=args) if _name(function) in TELL_CLASSES:
            kinds = args
        case ast.ExceptHandler(type=ast.expr() as kind):
            kinds = [kind]
        case ast.Compare(left=left, comparators=comparators):
            kinds = [left, *comparators]
        case _:
            kinds = []
    for kind in kinds:
        yield from map(_name, kind.elts if isinstance(kind, ast.Tuple) else [kind])


def _compared(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Return the names that part of a test compares with each other."""
    match node:
        case ast.Compare(left=left, comparators=comparators):
            compared = [left, *comparators]
        case ast.Call(func=function, args=args) if _name(function) in COMPARE:
            compared = args
        case ast.Set(elts=items):
            compared = items
        case _:
            compared = []
    yield from combinations(map(_name, compared), 2)


def _name(node: ast.expr) -> str:
    """Return the last part of a name as a test writes it; "" for any other expression."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
