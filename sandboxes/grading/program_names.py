"""The names that tests want of a program, and what each of them has to be, as far as the tests' code shows it."""

from __future__ import annotations

import ast
import builtins
import importlib
import symtable
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum

from agentrl.sandboxes.grading.parsed import parsed
from agentrl.sandboxes.grading.tests import AssertTest, CallTest, Test, TestFile


class Wanted(StrEnum):
    """What a name has to be."""

    FUNCTION = "function"
    CLASS = "class"
    EXCEPTION = "exception"
    VALUE = "value"


def names_of_program(tests: Sequence[Test]) -> dict[str, Wanted]:
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
            free = free_names(test.code, test.prelude) - libraries_of(test)
            names = {name: name for name in {*free, *test.candidate_names}}
    except (SyntaxError, ValueError, RecursionError):
        return {}
    uses = _uses(tree)
    return {name: uses.get(local, Wanted.VALUE) for local, name in names.items()}


def free_names(*sources: str, module: str = "solution") -> set[str]:
    """Return the names that test code uses and the program alone can define.

    They are neither its own nor Python's, nor those of a module that it imports everything from: a program that defines `len` or `isclose`
    never gets it used in place of those.
    """
    used: set[str] = set()
    bound = set(dir(builtins))
    for source in sources:
        for table in _tables(symtable.symtable(source, "<tests>", "exec")):
            for symbol in table.get_symbols():
                at_module = table.get_type() == "module"
                if (at_module or symbol.is_declared_global()) and (symbol.is_assigned() or symbol.is_imported()):
                    bound.add(symbol.get_name())
                elif at_module or symbol.is_global():
                    used.add(symbol.get_name())
        bound |= _star_imported(source, module)
    return {name for name in used - bound if not name.startswith("__")}


def libraries_of(test: AssertTest) -> set[str]:
    """Return the modules of Python's library that code uses without an import, since programs happen to import them (`math.isclose`)."""
    if test.entry_point is not None or (tree := parsed(test.code)) is None:
        return set()
    nodes = [*ast.walk(tree)]
    owners = {node.value.id for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)}
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    return (owners - called) & sys.stdlib_module_names & free_names(test.code, test.prelude)


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _star_imported(source: str, program: str) -> set[str]:
    """Return the names that `from X import *` binds, of every X of Python's library."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)) if "*" in source else ():
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.partition(".")[0] in sys.stdlib_module_names
        ):
            space = vars(importlib.import_module(node.module))
            names |= set(space.get("__all__", space)) if node.names[0].name == "*" else set()
    return names


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
