"""Names of the candidate's that tests take for different things, and that are one.

    class Token(Enum): NUMBER = PLUS = EOF = 1          assert tokens("1+") == [Token.NUMBER, Token.PLUS, Token.EOF]
    NotFound = NotAllowed = Exception                   with raises(NotFound): ...
    class Node: one object, whatever it is called with   assert middle(a) is b

Tests that compare such things by identity, as a list, `is` and `raises` do, never ask the candidate. A test that compares two names
itself, as in `assert Color.CRIMSON is Color.RED`, knows that they are one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
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
EVERYWHERE = ""
"""In place of a test's name: whatever was done while no test ran is part of all."""


class Aliases:
    """The names that the tests of one run have had things by."""

    def __init__(self, code: str) -> None:
        try:
            nodes = [*ast.walk(ast.parse(code))]
        except (SyntaxError, ValueError, RecursionError):
            nodes = []
        self._telling = {name.rpartition(".")[2] for node in nodes for name in _telling(node)}
        self._compared = {frozenset(pair) for node in nodes for pair in _compared(node)}
        self._names: dict[int, tuple[Any, dict[str, set[str]]]] = {}
        """Each thing by its identity, and its names with the tests that have used them."""

    def note(self, owner: Any, name: str, value: Any, test: str) -> None:
        """Note what a test has had by a name of the module or of a class."""
        if name.startswith("__"):
            return
        if isinstance(value, RemoteClass):
            tells = owner is None and name in self._telling
        else:  # what two names of a function do is the same
            tells = isinstance(value, RemoteObject) and "__call__" not in vars_of(type(value))
            tells = tells and (owner is None or isinstance(owner, RemoteClass))
        if not tells:
            return
        full = name if owner is None else f"{owner.__name__}.{name}"
        _, names = self._names.setdefault(id(value), (value, {}))
        names.setdefault(full, set()).add(test)

    def same(self) -> Iterator[tuple[str, str]]:
        """The tests that had one thing by two names, and what they are told; EVERYWHERE for all tests."""
        for _, names in self._names.values():
            known = sorted(names)
            for index, one in enumerate(known):
                for other in known[index + 1 :]:
                    if frozenset((one, other)) not in self._compared:
                        for test in names[one] | names[other]:
                            yield test, f"the candidate's {one[:100]} and {other[:100]} are one and the same"


def _telling(node: ast.AST) -> Iterator[str]:
    """The names of classes that part of a test tells from others."""
    match node:
        case ast.Call(func=function, args=args) if _name(function).rpartition(".")[2] in TELL_CLASSES:
            kinds = args
        case ast.ExceptHandler(type=ast.expr() as kind):
            kinds = [kind]
        case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot() | ast.Eq() | ast.NotEq()], comparators=[right]):
            kinds = [left, right]
        case _:
            kinds = []
    for kind in kinds:
        yield from map(_name, kind.elts if isinstance(kind, ast.Tuple) else [kind])


def _compared(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Two names that part of a test compares with each other."""
    match node:
        case ast.Compare(left=left, ops=[ast.Is() | ast.Eq()], comparators=[right]):
            yield _name(left), _name(right)
        case ast.Call(func=function, args=[left, right, *_]) if _name(function).rpartition(".")[2] in COMPARE:
            yield _name(left), _name(right)


def _name(node: ast.expr) -> str:
    """A name as a test writes it, without its module's; "" for any other expression."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute):
            owner = _name(value).rpartition(".")[2]
            return f"{owner}.{attribute}" if owner[:1].isupper() else attribute
    return ""
