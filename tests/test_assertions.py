"""Each test asserts something, itself or by what it calls: one that cannot fail promises nothing.

A function asserts when it has an `assert` or a `raise`, uses one of the names below, or another function of its module that asserts.
What other modules hold for several tests has a name that begins with `assert_` or `check_`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
CHECKING = ("assert_", "check_")
"""So begin the names of functions that assert, wherever they are."""
RAISING = {"raises", "warns", "expect", "fail", "fail_after", "wait_until", "validate"}
"""Functions of libraries and of `components.py` that end a test which does not do as it should, or not in time."""


def without_assertion(tree: ast.Module) -> Iterator[str]:
    """Yield the names of the test functions that assert nothing."""
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    asserting = {name for name, node in functions.items() if asserts(node)}
    while True:
        more = {
            name
            for name, node in functions.items()
            if name not in asserting and not names_in(node).isdisjoint(asserting)
        }
        if not more:
            break
        asserting |= more
    yield from sorted(name for name in functions if name.startswith("test_") and name not in asserting)


def asserts(node: ast.AST) -> bool:
    """Return whether a function asserts something in its own lines."""
    if any(isinstance(part, ast.Assert | ast.Raise) for part in ast.walk(node)):
        return True
    return any(name in RAISING or name.lstrip("_").startswith(CHECKING) for name in names_in(node))


def names_in(node: ast.AST) -> set[str]:
    """Return the last name of all that is called or handed on."""
    found = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            found.add(part.id)
        elif isinstance(part, ast.Attribute):
            found.add(part.attr)
    return found


def test_every_test_asserts_something() -> None:
    empty = [
        f"{path.relative_to(TESTS)}::{name}"
        for path in sorted(TESTS.rglob("test_*.py"))
        for name in without_assertion(ast.parse(path.read_text()))
    ]
    assert empty == []


def test_a_test_without_an_assertion_is_found() -> None:
    source = (
        "def sound(): assert True\n"
        "def test_direct(): assert 1\ndef test_through(): sound()\ndef test_named(): check_all()\n"
        "def test_empty(): print(1)\nasync def test_empty_too(): await other()\ndef other(): pass"
    )
    assert list(without_assertion(ast.parse(source))) == ["test_empty", "test_empty_too"]
