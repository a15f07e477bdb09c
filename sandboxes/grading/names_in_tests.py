"""Tell what the names in a test's code stand for, as far as reading it shows: imports, fixtures, and what the test makes itself."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from typing import TypeVar

MONKEYPATCH = "monkeypatch"
"""How the full name of a method of pytest's fixture begins, by whatever name the test has it."""
OF_A_STAR = {"unittest.mock": ("patch", "create_autospec"), "types": ("FunctionType", "LambdaType", "MethodType")}
"""Names that a test has of `from module import *`."""
_Node = TypeVar("_Node", bound=ast.AST)
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Names:
    """The names of one test's code. `module` is the candidate's, and `prelude` is code that runs before."""

    def __init__(self, tree: ast.Module, module: str, prelude: ast.Module | None = None) -> None:
        self.module = module
        self.full = {**(imported(prelude) if prelude is not None else {}), **imported(tree)}
        """What each name that is imported stands for."""
        self.candidates = {name for name, source in self.full.items() if source.split(".")[0] == module}
        self._nodes = [*ast.walk(tree)]
        self.bound: defaultdict[str, list[ast.expr | None]] = defaultdict(list)
        """What the code gives to each name or attribute; None where that is not an expression of the code's."""
        for node in self._nodes:
            for name, value in _bindings(node):
                self.bound[name].append(value)
        self.classes = {
            node.name
            for node in self._nodes
            if isinstance(node, ast.ClassDef) and not any(root(base) in self.candidates for base in node.bases)
        }
        functions = [node for node in self._nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        self.functions = {node.name for node in functions if not node.decorator_list}
        self._defined = {node.name for node in self._nodes if isinstance(node, ast.ClassDef)}
        self._defined |= {node.name for node in functions}
        self._patching: set[str] = set()
        self._find_monkeypatches()

    def nodes(self, kind: type[_Node]) -> Iterator[_Node]:
        """Return the nodes of the code that are of a kind."""
        return (node for node in self._nodes if isinstance(node, kind))

    def dotted(self, node: ast.expr) -> str:
        """Return the full name of what an expression is, as far as the test has it from elsewhere; "" for what it has made itself."""
        text = ast.unparse(node)
        first, dot, rest = text.partition(".")
        holder = next((name for name in self._patching if text.startswith(f"{name}.")), None)
        if holder is not None:
            return MONKEYPATCH + text.removeprefix(holder)
        if first in self.full:
            return self.full[first] + dot + rest
        return "" if self.is_of_the_test(first) else text

    def full_name(self, name: str) -> str:
        """Return a dotted name with what its first part was imported from."""
        first, dot, rest = name.partition(".")
        return self.full.get(first, first) + dot + rest

    def is_of_the_test(self, name: str) -> bool:
        """Return whether the test's own code makes what a name stands for."""
        return name in self.bound or name in self._defined

    def is_own(self, node: ast.expr) -> bool:
        """Return whether an expression is certainly nothing of the candidate's, nor made of that: the test's own function, class or object."""
        return self._is_own(node, frozenset())

    def _is_own(self, node: ast.expr, within: frozenset[str]) -> bool:
        match node:
            case ast.Constant() | ast.Lambda():
                return True
            case ast.Name(id=name) if name in within or name in self.full:
                return False
            case ast.Name(id=name) if name in self.bound:
                return all(value is not None and self._is_own(value, within | {name}) for value in self.bound[name])
            case ast.Name(id=name):
                return name in self.classes or name in self.functions
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return all(self._is_own(item, within) for item in items)
            case ast.Call(func=ast.Name(id=name)) if name in self.classes:
                return name not in self.bound
            case ast.Call(func=function, args=[first, *_]) if self.dotted(function) == "dataclasses.replace":
                return self._is_own(first, within)
        return False

    def is_module(self, node: ast.expr) -> bool:
        """Return whether an expression is the candidate's module: `sys.modules["solution"]`, or of the module of something of its."""
        match node:
            case ast.Subscript(value=of, slice=ast.Constant(value=name)) if self.dotted(of) == "sys.modules":
                return name == self.module
            case ast.Subscript(value=of, slice=ast.Attribute(value=owner, attr="__module__")):
                return self.dotted(of) == "sys.modules" and root(owner) in self.candidates
        return False

    def makes_patches(self, name: str) -> str:
        """Return how a call by a full name patches: "patch", "object", "dict", "multiple", or a method of pytest's; "" where it does not."""
        for of in ("unittest.mock.patch", "mock.patch", "mock.mock.patch"):
            if name == of or name.startswith(f"{of}."):
                return name.removeprefix(of).lstrip(".") or "patch"
        return name.removeprefix(f"{MONKEYPATCH}.") if name.startswith(f"{MONKEYPATCH}.") else ""

    def _find_monkeypatches(self) -> None:
        """Find the names by which the test has pytest's fixture, or another object of its class."""
        arguments = {argument for node in self._nodes for argument in arguments_of(node)}
        if MONKEYPATCH in arguments and MONKEYPATCH not in self._defined:
            self._patching.add(MONKEYPATCH)
        for name, values in self.bound.items():
            for value in values:
                made = value.func if isinstance(value, ast.Call) else value
                text = "" if made is None else ast.unparse(made)
                if text.removesuffix(".context") in self._patching | {"pytest.MonkeyPatch", "MonkeyPatch"}:
                    self._patching.add(name)


def arguments_of(node: ast.AST) -> list[str]:
    """Return the names of a function's arguments."""
    if not isinstance(node, _Function):
        return []
    return [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Return what one statement or expression gives to names and attributes."""
    targets: list[tuple[ast.expr, ast.expr | None]] = []
    match node:
        case ast.Assign():
            targets = [(target, node.value) for target in node.targets]
        case ast.AnnAssign() | ast.NamedExpr():
            targets = [(node.target, node.value)]
        case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
            targets = [(target, value)]
        case ast.For() | ast.AsyncFor() | ast.comprehension() | ast.AugAssign():
            targets = [(node.target, None)]
        case ast.ExceptHandler(name=str(name)):
            yield name, None
    for target, given in targets:
        parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        for part in parts:
            if isinstance(part, ast.Name | ast.Attribute):
                yield ast.unparse(part), given if part is target else None
    for argument in arguments_of(node):
        if argument != MONKEYPATCH:
            yield argument, None


def root(node: ast.expr) -> str:
    """Return the first name of `name.attribute.attribute`; else an empty text."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def imported(tree: ast.Module) -> dict[str, str]:
    """Return what each name that the code imports stands for."""
    full: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                full[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                names = OF_A_STAR.get(node.module, ()) if alias.name == "*" else ()
                full.update({name: f"{node.module}.{name}" for name in names})
                full[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return full
