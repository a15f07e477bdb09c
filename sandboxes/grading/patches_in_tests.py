"""Find what a test's code patches that is not the candidate's: there, nobody would see it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from agentrl.sandboxes.grading.names_in_tests import Names, root
from agentrl.sandboxes.inside.shared_state import PATCHED
from agentrl.sandboxes.inside.special_methods import SPECIAL_METHODS

USED_BY_PYTHON = SPECIAL_METHODS | {"__init__", "__new__"}
ON_BOTH_SIDES = {
    *("sys.argv", "sys.stdin", "sys.stdout", "sys.stderr", "os.environ"),
    *(f"{module}.{name}" for module, names in PATCHED.items() for name in names),
}
"""What a test may patch though it is not the candidate's, since it is set there too."""
OF_THE_CALLER = ("super", "globals", "locals", "vars", "dir", "eval", "exec")
"""Functions of Python's that look at who calls them, which a stand-in cannot."""
OF_THE_TESTS = ("unittest", "pytest", "sys", "warnings", "logging", "tempfile")
"""Modules whose names a test assigns for its own sake: how it runs, and what it shows."""
WAYS = ("patch", "object", "dict", "multiple", "setattr", "delattr", "setitem")
"""Of patching, by mock's `patch` and pytest's `monkeypatch`."""


def of_a_call(call: ast.Call, name: str, names: Names) -> Iterator[str]:
    """Return what a call, by its full name, patches and should not."""
    way = names.makes_patches(name)
    if way not in WAYS or not call.args:
        return
    target = call.args[0]
    if _is_modules(target, names):
        if way == "setitem" or (way == "dict" and (len(call.args) > 1 or call.keywords)):
            yield _MODULES
    elif way == "setitem":
        return  # of a dict of the test's own, or of the candidate's
    elif way == "multiple":
        values = [keyword.arg for keyword in call.keywords if keyword.arg not in (None, "spec", "create", "autospec")]
        for attribute in values:
            yield from _outside(call, target, str(attribute), way, names)
    else:
        yield from _outside(call, target, _text(call.args[1]) if len(call.args) > 1 else None, way, names)


def of_an_assignment(statement: ast.Assign, names: Names) -> Iterator[str]:
    """Return what a statement as `os.path.exists = ...` or `sys.modules["x"] = ...` puts in the place of what the candidate has of Python."""
    for target in statement.targets:
        if isinstance(target, ast.Subscript) and names.dotted(target.value) == "sys.modules":
            yield _MODULES
        elif isinstance(target, ast.Attribute) and root(target) in names.full:
            shown = names.dotted(target)
            module = shown.split(".")[0]
            if module in sys.stdlib_module_names and module not in OF_THE_TESTS and shown not in ON_BOTH_SIDES:
                yield _not_the_candidates(shown, names.module)


_MODULES = (
    "to put a module of its own in the place of one that the candidate imports (sys.modules); patch the name by which "
    "the candidate has it"
)


def _is_modules(target: ast.expr, names: Names) -> bool:
    return _text(target) == "sys.modules" or names.dotted(target) == "sys.modules"


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _outside(call: ast.Call, target: ast.expr, attribute: str | None, way: str, names: Names) -> Iterator[str]:
    of_text = _text(target)
    own_module = names.is_module(target)
    if of_text is None and not own_module and (isinstance(target, ast.Subscript) or not _is_imported(target, names)):
        return  # what the test has made, or had of a star import; its run shows whether that is the candidate's
    shown = names.module if own_module else of_text if of_text is not None else ast.unparse(target)
    inside = own_module or shown.split(".")[0] in ({names.module} if of_text is not None else names.candidates)
    if way == "dict" and not inside and of_text is None:
        return  # a dict of the test's own
    if attribute is not None and (of_text is None or way == "multiple") and way != "dict":
        shown = f"{shown if inside or of_text is not None else names.full.get(shown, shown)}.{attribute}"
    full = shown if of_text is not None or own_module else names.full_name(shown)
    if shown in ON_BOTH_SIDES or full in ON_BOTH_SIDES:
        return
    path = full.split(".")
    of_a_class = inside and len(path) > 2 and path[1] not in sys.stdlib_module_names
    if of_a_class and any(_asks_for_autospec(keyword) for keyword in call.keywords):
        yield f"the candidate's signatures (a patch of {shown} with autospec)"
    if of_a_class and shown.rpartition(".")[2] in USED_BY_PYTHON:
        yield f"to patch {shown}, by which Python itself uses the candidate's class"
    if inside and shown.rpartition(".")[2] in OF_THE_CALLER:
        yield f"to patch {shown}, which looks at who calls it"
    if not inside:
        yield _not_the_candidates(shown, names.module)


def _is_imported(target: ast.expr, names: Names) -> bool:
    return ast.unparse(target).split(".")[0] in names.full


def _not_the_candidates(shown: str, module: str) -> str:
    own = shown.removeprefix("builtins.")
    how = f"{module}.{own}" + ("" if own == shown else ", with create=True")
    return f"to patch {shown}, which is not the candidate's; patch it as the candidate sees it, as in {how}"


def _asks_for_autospec(keyword: ast.keyword) -> bool:
    return keyword.arg == "autospec" and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
