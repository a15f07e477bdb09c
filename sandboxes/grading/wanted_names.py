"""The names that tests want of a program, and what each of them has to be, as far as the tests' code shows it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from enum import StrEnum

from agentrl.sandboxes.grading.parsed import parsed
from agentrl.sandboxes.grading.tests import AssertTest, CallTest, IOTest, Test, TestFile
from agentrl.sandboxes.inside.names import free_names


class Wanted(StrEnum):
    """What a name has to be."""

    FUNCTION = "function"
    CLASS = "class"
    EXCEPTION = "exception"
    VALUE = "value"


def wanted_names(tests: Sequence[Test]) -> dict[str, Wanted]:
    """Return the names that a program has to define for `tests`, in alphabetical order.

    A name that is caught, or expected to be raised, is an exception; one that is called a class if it begins with a capital, else a
    function; any other is a value. Code that Python cannot parse wants nothing.
    """
    found: dict[str, Wanted] = {}
    for test in tests:
        if isinstance(test, CallTest):
            first, dot, _ = test.function.partition(".")
            found[first.partition("(")[0]] = Wanted.CLASS if dot else Wanted.FUNCTION
        elif isinstance(test, AssertTest | TestFile):
            found.update(_of_code(test))
    return dict(sorted(found.items()))


def named_in(tests: Sequence[Test]) -> set[str]:
    """Return every name and attribute that the code of `tests` mentions."""
    words: set[str] = set()
    for test in tests:
        tree = None if isinstance(test, IOTest | CallTest) else parsed(test.code)
        for node in () if tree is None else ast.walk(tree):
            if isinstance(node, ast.Name):
                words.add(node.id)
            elif isinstance(node, ast.Attribute):
                words.add(node.attr)
    return words


def _of_code(test: AssertTest | TestFile) -> dict[str, Wanted]:
    if isinstance(test, AssertTest) and test.entry_point is not None:
        first, dot, _ = test.entry_point.partition(".")
        return {first.partition("(")[0]: Wanted.CLASS if dot else Wanted.FUNCTION}
    if (tree := parsed(test.code)) is None:
        return {}
    try:
        if isinstance(test, TestFile):
            names = _imported(tree, test.module)
        else:
            names = {name: name for name in {*free_names(test.code, test.prelude), *test.candidate_names}}
    except (SyntaxError, ValueError, RecursionError):
        return {}
    uses = _uses(tree)
    return {name: uses.get(local, Wanted.VALUE) for local, name in names.items()}


def _imported(tree: ast.Module, module: str) -> dict[str, str]:
    """Return the names that a test file takes from `module`: as they are called in the file, and in the module."""
    names: dict[str, str] = {}
    aliases: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == module:
            for alias in node.names:
                if alias.name == "*":
                    names.update({name: name for name in free_names(ast.unparse(tree))})
                else:
                    names[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.Import):
            aliases |= {alias.asname or alias.name for alias in node.names if alias.name == module}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            names[node.attr] = node.attr
    return names


def _uses(tree: ast.Module) -> dict[str, Wanted]:
    """Return what each name of some code is used as."""
    called: set[str] = set()
    caught: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called |= _last_words(node.func)
            if _last_words(node.func) & {"raises", "assertRaises", "assertRaisesRegex"} and node.args:
                caught |= _last_words(node.args[0])
        elif isinstance(node, ast.ExceptHandler) and node.type is not None:
            caught |= _last_words(node.type)
    uses = {name: Wanted.CLASS if name[:1].isupper() else Wanted.FUNCTION for name in called}
    # `Stack.of(1)` and `isinstance(x, Stack)` call no Stack.
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id[:1].isupper() and not node.id.isupper():
            uses.setdefault(node.id, Wanted.CLASS)
    return uses | dict.fromkeys(caught, Wanted.EXCEPTION)


def _last_words(node: ast.expr) -> set[str]:
    if isinstance(node, ast.Tuple):
        return {word for item in node.elts for word in _last_words(item)}
    if isinstance(node, ast.Attribute):
        return {node.attr}
    return {node.id} if isinstance(node, ast.Name) else set()
