"""Which names of a test's code are the candidate's: those that nobody else defines."""

from __future__ import annotations

import builtins
import importlib
import re
import symtable
import sys
import types
from collections.abc import Iterator
from typing import Any

PATCHED_INTO = re.compile(r"(?:patch|patch\.object|setattr)\(\s*['\"]?\w+\.(\w+)(?:\.\w|\s*,)")
"""A call that patches an attribute of a name of a module's."""


def names_patched_into(code: str) -> set[str]:
    """Return the names of modules of which test code patches an attribute."""
    return {*PATCHED_INTO.findall(code)}


def free_names(*sources: str, module: str = "solution") -> set[str]:
    """Return the names that test code uses and nobody but the candidate can define.

    Neither its own, nor Python's, nor those of a module that it imports everything from.

    A candidate that defines `len` or `isclose` never gets it used in place of those.
    """
    used: set[str] = set()
    bound = set(dir(builtins))
    for source in sources:
        for table in _tables(symtable.symtable(source, "<tests>", "exec")):
            for symbol in table.get_symbols():
                module_s = table.get_type() == "module"
                if (module_s or symbol.is_declared_global()) and (symbol.is_assigned() or symbol.is_imported()):
                    bound.add(symbol.get_name())
                elif module_s or symbol.is_global():
                    used.add(symbol.get_name())
        bound |= _star_imported(source, module)
    return {name for name in used - bound if not name.startswith("__")}


def checked_name(job: dict[str, Any]) -> str:
    """Return the name of the program's that holds what a job's entry point names; "" for a job without one."""
    return (job["entry_point"] or "").partition("(")[0].partition(".")[0]


def shared_names(job: dict[str, Any]) -> set[str]:
    """Return the names of the program's that test code with assertions is given."""
    first = checked_name(job)
    return {first} if first else free_names(job["code"], job["prelude"]) | {*job["candidate_names"]}


def library_module(name: str, code: str) -> types.ModuleType | None:
    """Return the module that test code means by a name that the program has imported too; None where it means something of the program's."""
    module = {"np": "numpy", "pd": "pandas"}.get(name, name)
    known = module in sys.stdlib_module_names or module in ("numpy", "pandas", "scipy", "torch", "sympy")
    if not known or re.search(rf"\b{name}\s*\(", code):
        return None
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _star_imported(source: str, candidate: str) -> set[str]:
    """Return the names that `from X import *` binds, of every X but the candidate."""
    names: set[str] = set()
    if "*" not in source:
        return names
    import ast

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module != candidate:
            if all(alias.name != "*" for alias in node.names):
                continue
            try:
                space = vars(importlib.import_module(node.module))
            except ImportError:  # the test says so itself
                continue
            names |= set(space.get("__all__", [name for name in space if not name.startswith("_")]))
    return names
