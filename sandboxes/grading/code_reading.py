"""Read from the code of a test, which never runs here, what it needs of the program and of its process.

code ─► names that it wants of the program, libraries that it counts on, modules that it imports, test functions that must run
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
import sys
import warnings
from collections.abc import Iterator
from functools import lru_cache

from agentrl.sandboxes.grading.tests import AssertTest, CodeTest, TestFile

_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


@lru_cache(maxsize=256)
def parsed(code: str) -> ast.Module | None:
    """Return the syntax tree of `code`; None where Python cannot parse it."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def nodes_of(code: str) -> Iterator[ast.AST]:
    """Yield the nodes of code's syntax tree; none where Python cannot parse it."""
    tree = parsed(code)
    return iter(()) if tree is None else ast.walk(tree)


def names_of_program(test: CodeTest) -> dict[str, str]:
    """Return the names that a program has to define for test code, by what they are called there. Code that Python cannot parse wants none."""
    if test.entry_point is not None:
        name = re.split(r"\W", test.entry_point)[0]
        return {name: name}
    if isinstance(test, AssertTest):
        free = free_names(test.code, test.prelude) - libraries_of(test)
        return {name: name for name in {*free, *test.candidate_names}}
    names: dict[str, str] = {}
    modules = aliases(test)
    for node in nodes_of(test.code):
        match node:
            case ast.ImportFrom(module=test.module, names=[ast.alias(name="*")]):
                names |= {name: name for name in free_names(test.code)}
            case ast.ImportFrom(module=test.module, names=imported):
                names |= {alias.asname or alias.name: alias.name for alias in imported}
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner in modules:
                names[name] = name
    return names


def aliases(test: CodeTest) -> set[str]:
    """Return what test code calls the program's module."""
    imports = [node for node in nodes_of(test.code) if isinstance(node, ast.Import)]
    return {one.asname or one.name for node in imports for one in node.names if one.name == test.module}


def free_names(*sources: str) -> set[str]:
    """Return the names that code uses and that are neither its own nor Python's, so that the program has to define them."""
    used: set[str] = set()
    bound = set(dir(builtins))
    try:
        tables = [symtable.symtable(source, "<tests>", "exec") for source in sources]
    except (SyntaxError, ValueError, RecursionError):
        return set()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            at_module = table.get_type() == "module"
            if (at_module or symbol.is_declared_global()) and (symbol.is_assigned() or symbol.is_imported()):
                bound.add(symbol.get_name())
            elif at_module or symbol.is_global():
                used.add(symbol.get_name())
    return {name for name in used - bound if not name.startswith("__")}


def libraries_of(test: CodeTest) -> set[str]:
    """Return the modules of Python's library that code uses without an import, since programs happen to import them (`math.isclose`)."""
    if isinstance(test, TestFile) or test.entry_point is not None:
        return set()
    nodes = [*nodes_of(test.code)]
    owners = {node.value.id for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)}
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    return (owners - called) & sys.stdlib_module_names & free_names(test.code, test.prelude)


def imports_of(test: CodeTest) -> set[str]:
    """Return the modules that test code imports from elsewhere, and what may be one: `from unittest import mock`."""
    names = set()
    for node in nodes_of(test.code):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    own = {re.split(r"[./]", path)[0] for path in (test.module, *test.files)}
    return {name for name in names if name.partition(".")[0] not in own}


def functions_of(test: CodeTest) -> set[str]:
    """Return the names of the test functions that stand in a file of tests: a run that ends before them is no pass."""
    tree = parsed(test.code) if isinstance(test, TestFile) else None
    body = [] if tree is None else tree.body
    cases: set[str] = set()
    found = set()
    for node in body:
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
            if any(base.endswith("TestCase") for base in bases) or bases & cases:
                cases.add(node.name)
            elif not node.name.startswith("Test") or "__test__ = False" in map(ast.unparse, node.body):
                continue
            found |= {one.name for one in node.body if isinstance(one, _FUNCTION) and one.name.startswith("test")}
        elif isinstance(node, _FUNCTION) and node.name.startswith("test"):
            decorators = [ast.unparse(one).partition("(")[0].rpartition(".")[2] for one in node.decorator_list]
            found |= set() if "fixture" in decorators else {node.name}
    return set() if any(isinstance(node, _FUNCTION) and node.name == "load_tests" for node in body) else found
