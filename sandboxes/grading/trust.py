"""How far a test's pass can be trusted, read from the test's code and never from what the program answers.

`outside`: compared on the host. `apart`: the test code runs in a sandbox of its own, and calls functions of the program in another.
`inside`: both run in one process, as plain Python does, since the code needs more of the program than its functions.
"""

from __future__ import annotations

import ast
import builtins
from collections import Counter, deque
from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import StrEnum

from agentrl.errors import ConfigError
from agentrl.sandboxes.grading.code_reading import aliases, libraries_of, names_of_program, nodes_of, parsed
from agentrl.sandboxes.grading.tests import AssertTest, CallTest, IOTest, Test, TestFile


class Trust(StrEnum):
    """How a test is graded, the least trust first."""

    INSIDE = "inside"
    """A pass is one of plain Python, and the tricks that models are known to learn were looked for."""
    APART = "apart"
    """Test code called the program's functions, in another sandbox."""
    OUTSIDE = "outside"
    """The host, or a checker, compared what the program answered."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MODULES = _words("""__future__ pytest unittest math cmath random itertools functools collections typing re string datetime decimal fractions json
    copy operator statistics numpy hashlib heapq bisect textwrap time enum""")
"""What code may import and still run apart. Others look into objects, files or processes."""
LOOKS = _words("""next iter islice id vars dir hasattr getattr setattr delattr callable globals locals eval exec open input compile isinstance
    issubclass __import__ mock seed IsolatedAsyncioTestCase assertIsInstance assertNotIsInstance assertIsNot importorskip
    SystemExit KeyboardInterrupt
    tmp_path tmp_path_factory tmpdir tmpdir_factory capsys capfd capsysbinary capfdbinary caplog monkeypatch recwarn mocker""")
"""Names by which code looks into an object, or asks for more than plain data and exceptions that reach it; fixtures last."""
TYPE_LOOKS = _words("isinstance assertIsInstance assertNotIsInstance")
"""Those that may look for classes of plain data."""
PLAIN_CLASSES: tuple[type, ...] = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)
PLAIN_NAMES = frozenset(kind.__name__ for kind in PLAIN_CLASSES)
ATTRIBUTES = frozenset(name for kind in (*PLAIN_CLASSES, Counter, deque, datetime, timedelta) for name in dir(kind))
ATTRIBUTES |= {"exception", "value", "args"}
"""Those of plain data, and of exceptions that were caught."""
SELF = frozenset(("self", "cls"))
NUMBERS = frozenset(("pi", "e", "tau", "inf", "nan", "maxsize"))


def trust_of(test: Test) -> Trust:
    """Return how a test is graded: by its author's choice, else with the most trust that its code allows.

    Raises:
        ConfigError: Its author has chosen `apart`, and its code needs more than that has.
    """
    if isinstance(test, IOTest | CallTest):
        return Trust.OUTSIDE
    if test.trust == "inside":
        return Trust.INSIDE
    need = need_of(test)
    if need is not None and test.trust is not None:
        name = f"test {test.name!r}" if test.name else f"a {type(test).__name__}"
        raise ConfigError(f"trust = 'apart' cannot grade {name}, which needs {need}; use trust = 'inside'")
    return Trust.INSIDE if need is not None else Trust.APART


def need_of(test: AssertTest | TestFile) -> str | None:
    """Say what test code needs beside calls of functions, as in "the program's class Stack"; None where that is all. In doubt it is no."""
    if beside := [path for path in test.files if path.endswith(".py")]:
        return f"the file {beside[0]} beside program and tests"
    tree = parsed(test.code)
    return "to be Python" if tree is None else next(_Reading(tree, test).needs(), None)


class _Reading:
    """What each name in the code of a test stands for."""

    def __init__(self, tree: ast.Module, test: AssertTest | TestFile) -> None:
        self.nodes = [*ast.walk(tree)]
        self.module, self.modules = test.module, aliases(test)
        """Names of the program's module."""
        self.wanted = names_of_program(test)
        self.functions = {*self.wanted}
        """Names of the program's functions."""
        self.libraries = libraries_of(test)
        """Names that are imported from elsewhere."""
        defined = (ast.FunctionDef, ast.ClassDef)
        self.own = {node.name for node in (*self.nodes, *nodes_of(test.prelude)) if isinstance(node, defined)}
        """Functions and classes of the tests."""
        if test.entry_point is not None:
            self.wanted = {}  # which the tests know as check's argument
        self.used: set[int] = set()
        """Expressions that are called or entered, or decorate."""
        self.fine: set[int] = set()
        """Places of a function of the program's: it is called, or passed on to be."""
        self.plain_looks: set[int] = set()
        for node in self.nodes:
            match node:
                case ast.Import(names=names):
                    self.libraries |= {one.asname or one.name.partition(".")[0] for one in names} - self.modules
                case ast.ImportFrom(module=module, names=names) if module != self.module:
                    self.libraries |= {one.asname or one.name for one in names}
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if _root(value) in self.libraries:
                    self.libraries.add(name)
                case ast.FunctionDef(name=name, decorator_list=made, args=arguments):
                    self.used |= set(map(id, made))
                    if name == "check" and isinstance(test, AssertTest):
                        self.functions |= {one.arg for one in arguments.args[:1]}
                case ast.withitem(context_expr=entered):
                    self.used.add(id(entered))
                case ast.Call(func=function, args=args):
                    self.used.add(id(function))
                    self.fine.add(id(function))
                    if _last_word(function) not in LOOKS:
                        self.fine |= set(map(id, args))
                    elif _last_word(function) in TYPE_LOOKS and all(map(_is_plain_class, args[1:2])):
                        self.plain_looks.add(id(function))

    def needs(self) -> Iterator[str]:
        """Yield what the code needs beside calls of functions."""
        for local, name in self.wanted.items():
            if local[:1].isupper():
                yield f"the program's {'value' if local.isupper() else 'class'} {name}"
        for node in self.nodes:
            match node:
                case ast.ClassDef(name=name, bases=bases) if not any(
                    "Test" in one for one in [name, *map(_last_word, bases)]
                ):
                    yield f"objects of its own class {name}"
                case ast.AsyncFunctionDef() | ast.Await():
                    yield "to await what the program returns"
                case ast.Import() | ast.ImportFrom():
                    yield from self._of_import(node)
                case ast.arg(arg=name) if name in LOOKS:
                    yield f"the fixture {name}"
                case ast.Name(id=name) | ast.Attribute(attr=name) if name in LOOKS and id(node) not in self.plain_looks:
                    yield f"to look into objects ({name})"
                case ast.Name(id=name) if name in self.functions and id(node) not in self.fine:
                    yield f"more of the program's {name} than to call it"
                case ast.Name() | ast.Call() if id(node) in self.used and not self._is_known(node):
                    yield "to call or enter what the program returns"
                case ast.Attribute():
                    yield from self._of_attribute(node)
                case ast.Compare(ops=ops, comparators=others):
                    pairs = zip(ops, others, strict=True)
                    if any(
                        isinstance(op, ast.Is | ast.IsNot) and not isinstance(one, ast.Constant) for op, one in pairs
                    ):
                        yield "to know an object again (is)"
            if isinstance(node, ast.Call) and self._is_programs(node.func):
                values = [*node.args, *(keyword.value for keyword in node.keywords)]
                if any(self._is_function(part) for value in values for part in ast.walk(value)):
                    yield "to give the program a function"

    def _of_import(self, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        names = {alias.name for alias in node.names}
        sources = names if isinstance(node, ast.Import) else {node.module or "."}
        unknown = sources - MODULES - {self.module}
        everything = {"*"} & names if sources != {self.module} else set[str]()
        for name in unknown | names & LOOKS | everything:
            yield f"the import of {name}"

    def _of_attribute(self, node: ast.Attribute) -> Iterator[str]:
        """Yield what an attribute needs that is none of plain data, nor of the tests' own modules, classes and `self`."""
        root = _root(node)
        if root in self.modules:
            if not isinstance(node.value, ast.Name) or id(node) not in self.fine:
                yield f"more of the program's {node.attr} than to call it"
        elif root in self.libraries or (root in self.own | SELF and isinstance(node.value, ast.Name)):
            return
        elif node.attr not in ATTRIBUTES:
            yield f"the attribute {node.attr} of what may be the program's"

    def _is_programs(self, function: ast.expr) -> bool:
        return (isinstance(function, ast.Name) and function.id in self.functions) or _root(function) in self.modules

    def _is_known(self, node: ast.Name | ast.Call) -> bool:
        """Return whether something that is called or entered is not what the program has returned."""
        if isinstance(node, ast.Call):
            return _root(node) in self.libraries | self.own | SELF
        return node.id in self.libraries | self.own | self.functions | self.modules or hasattr(builtins, node.id)

    def _is_function(self, node: ast.AST) -> bool:
        """Return whether an expression is a function or a class of the tests' or Python's."""
        match node:
            case ast.Name(id=name) if id(node) not in self.used:
                return name in self.own | self.functions or hasattr(builtins, name)
            case ast.Attribute(attr=name) if id(node) not in self.used:
                return _root(node) in self.libraries and name not in NUMBERS
        return isinstance(node, ast.Lambda)


def _is_plain_class(node: ast.expr) -> bool:
    return all(_last_word(kind) in PLAIN_NAMES for kind in getattr(node, "elts", [node]))


def _last_word(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _root(node: ast.expr) -> str:
    """Return the name that an expression of attributes, items and calls begins with; "" where there is none."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
