"""The names that tests want of a program, as far as the tests' code shows it."""

from __future__ import annotations

import ast
import builtins
import importlib
import re
import symtable
import sys
from collections.abc import Iterator

from agentrl.sandboxes.grading.parsed import parsed
from agentrl.sandboxes.grading.tests import AssertTest, TestFile


def names_of_program(test: AssertTest | TestFile) -> dict[str, str]:
    """Return the names that a program has to define for test code, by what they are called there. Code that Python cannot parse wants none."""
    if isinstance(test, AssertTest) and test.entry_point is not None:
        name = re.split(r"\W", test.entry_point)[0]
        return {name: name}
    if (tree := parsed(test.code)) is None:
        return {}
    try:
        if isinstance(test, TestFile):
            return _imported(tree, test.module)
        free = free_names(test.code, test.prelude) - libraries_of(test)
        return {name: name for name in {*free, *test.candidate_names}}
    except (SyntaxError, ValueError, RecursionError):
        return {}


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
