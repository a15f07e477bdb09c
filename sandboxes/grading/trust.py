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
from agentrl.sandboxes.grading.parsed import parsed
from agentrl.sandboxes.grading.program_names import libraries_of, names_of_program
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
    SystemExit KeyboardInterrupt""")
"""Names by which code looks into an object, or asks for more than plain data and exceptions that reach it."""
FIXTURES = _words("""tmp_path tmp_path_factory tmpdir tmpdir_factory capsys capfd capsysbinary capfdbinary caplog monkeypatch recwarn
    mocker""")
PLAIN_CLASSES: tuple[type, ...] = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)
PLAIN_NAMES = frozenset(kind.__name__ for kind in PLAIN_CLASSES)
ATTRIBUTES = frozenset(name for kind in (*PLAIN_CLASSES, Counter, deque, datetime, timedelta) for name in dir(kind))
ATTRIBUTES |= {"exception", "value", "args"}
"""Those of plain data, and of exceptions that were caught."""
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
    if isinstance(test, TestFile):
        beside = [*test.shared, *(path for path in test.files if path.endswith(".py"))]
        if beside:
            return f"the file {beside[0]} beside program and tests"
    tree = parsed(test.code)
    return "to be Python" if tree is None else next(_Reading(tree, test).needs(), None)


class _Reading:
    """What each name in the code of a test stands for."""

    def __init__(self, tree: ast.Module, test: AssertTest | TestFile) -> None:
        self.nodes = [*ast.walk(tree)]
        self.wanted = names_of_program(test)
        self.by_name = isinstance(test, AssertTest) and test.entry_point is not None
        self.module = test.module if isinstance(test, TestFile) else "solution"
        self.imported = libraries_of(test) if isinstance(test, AssertTest) else set()
        self.modules: set[str] = set()
        """Names of the program's module."""
        self.functions = {*self.wanted} if isinstance(test, AssertTest) else set()
        self.own: set[str] = set()
        """Functions and classes of the tests."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                names = {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names}
                self.modules |= {name for name, source in names.items() if source == self.module}
                self.imported |= {*names} - self.modules
            elif isinstance(node, ast.ImportFrom):
                names = {alias.asname or alias.name: alias.name for alias in node.names}
                given = {*self.wanted} if "*" in names else {*names}
                (self.functions if node.module == self.module else self.imported).update(given)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                self.own.add(node.name)
                if node.name == "check" and isinstance(node, ast.FunctionDef) and isinstance(test, AssertTest):
                    self.functions |= {argument.arg for argument in node.args.args[:1]}
        self.results: set[str] = set()
        """Names of what the program has returned."""
        for node in self.nodes:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                if isinstance(node.value, ast.Call) and self._is_programs(node.value.func):
                    self.results.add(node.targets[0].id)
                elif _root(node.value) in self.imported:
                    self.imported.add(node.targets[0].id)
        calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        self.called = {_last_word(node.func) for node in calls}
        looks = {id(node) for node in calls if _last_word(node.func) in LOOKS}
        self.fine = {id(node.func) for node in calls}
        """Places where a function of the program's may stand: where it is called, or passed on to be."""
        self.fine |= {id(argument) for node in calls if id(node) not in looks for argument in node.args}
        self.plain_looks = {
            id(node.func)
            for node in calls
            if _last_word(node.func) in ("isinstance", "assertIsInstance", "assertNotIsInstance")
            and all(
                _last_word(kind) in PLAIN_NAMES for kinds in node.args[1:2] for kind in getattr(kinds, "elts", [kinds])
            )
        }

    def needs(self) -> Iterator[str]:
        """Yield what the code needs beside calls of functions."""
        for local, name in () if self.by_name else self.wanted.items():
            if local[:1].isupper() or local not in self.called:
                yield f"the program's {'value' if local.isupper() or not local[:1].isupper() else 'class'} {name}"
        for node in self.nodes:
            match node:
                case ast.FunctionDef(decorator_list=made) if any(map(self._is_result, made)):
                    yield "to decorate with what the program returns"
                case ast.ClassDef(name=name) if not any(
                    "Test" in _last_word(base) for base in [*node.bases, ast.Name(name)]
                ):
                    yield f"objects of its own class {name}"
                case ast.AsyncFunctionDef() | ast.Await():
                    yield "to await what the program returns"
                case ast.Import() | ast.ImportFrom():
                    yield from self._of_import(node)
                case ast.arg(arg=name) if name in FIXTURES:
                    yield f"pytest's {name}"
                case ast.Name(id=name) | ast.Attribute(attr=name) if name in LOOKS and id(node) not in self.plain_looks:
                    yield f"to look into objects ({name})"
                case ast.Name(id=name) if name in self.functions and id(node) not in self.fine:
                    yield f"more of the program's {name} than to call it"
                case ast.Attribute():
                    yield from self._of_attribute(node)
                case ast.Compare(ops=ops, comparators=others):
                    pairs = zip(ops, others, strict=True)
                    if any(
                        isinstance(op, ast.Is | ast.IsNot) and not isinstance(other, ast.Constant)
                        for op, other in pairs
                    ):
                        yield "to know an object again (is)"
                case ast.Call(func=result) | ast.withitem(context_expr=result) if self._is_result(result):
                    yield "to call or enter what the program returns"
                case ast.Call() if self._is_programs(node.func) and any(map(self._is_function, _values(node))):
                    yield "to give the program a function"

    def _of_import(self, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        names = {alias.name for alias in node.names}
        sources = names if isinstance(node, ast.Import) else {node.module or "."}
        for name in (sources - MODULES - {self.module}) | (names & LOOKS):
            yield f"the import of {name}"

    def _of_attribute(self, node: ast.Attribute) -> Iterator[str]:
        """Yield what an attribute needs that is none of plain data, nor of the tests' own modules, classes and `self`."""
        root = _root(node)
        if root in self.modules:
            if not isinstance(node.value, ast.Name) or id(node) not in self.fine:
                yield f"more of the program's {node.attr} than to call it"
        elif root in self.imported or (root in {"self", "cls", *self.own} and isinstance(node.value, ast.Name)):
            return
        elif node.attr not in ATTRIBUTES:
            yield f"the attribute {node.attr} of what may be the program's"

    def _is_programs(self, function: ast.expr) -> bool:
        return (isinstance(function, ast.Name) and function.id in self.functions) or _root(function) in self.modules

    def _is_result(self, value: ast.expr) -> bool:
        is_call = isinstance(value, ast.Call) and self._is_programs(value.func)
        return is_call or (isinstance(value, ast.Name) and value.id in self.results)

    def _is_function(self, value: ast.expr) -> bool:
        """Return whether a value is, or may hold, a function or a class of the tests' or Python's."""
        nodes = [*ast.walk(value)]
        called = [node.func for node in nodes if isinstance(node, ast.Call)]
        called += [node.value for node in called if isinstance(node, ast.Attribute)]
        for node in nodes:
            if any(node is one for one in called):
                continue
            own = isinstance(node, ast.Name) and (node.id in self.own | self.functions or hasattr(builtins, node.id))
            of_library = isinstance(node, ast.Attribute) and _root(node) in self.imported and node.attr not in NUMBERS
            if own or of_library or isinstance(node, ast.Lambda):
                return True
        return False


def _values(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _last_word(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _root(node: ast.expr) -> str:
    """Return the name that an expression of attributes, items and calls begins with; "" where there is none."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
