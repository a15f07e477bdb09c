"""How far a test's pass can be trusted, read from the test's code and never from what the program answers.

`outside`: compared on the host. `apart`: the test code runs in a sandbox of its own, and calls functions of the program in another.
`inside`: both run in one process, as plain Python does, since the code needs more of the program than its functions.

code ─► names that it wants of the program, libraries that it counts on, modules that it imports, test functions that must run ─► what it needs
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
import sys
import warnings
from collections import Counter, deque
from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache

from agentrl.errors import ConfigError
from agentrl.sandboxes.grading.tests import AssertTest, CallTest, CodeTest, IOTest, Test, TestFile


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
    copy operator statistics hashlib heapq bisect textwrap time enum""")
"""What code may import and still run apart. Others look into objects, files or processes, or have arrays, which are no plain data."""
OBJECT_NAMES = _words("""next iter islice id vars dir hasattr getattr setattr delattr callable globals locals eval exec open input compile
    isinstance issubclass __import__ defaultdict mock seed IsolatedAsyncioTestCase assertIsInstance assertNotIsInstance assertIsNot importorskip
    SystemExit KeyboardInterrupt warns deprecated_call assertWarns assertWarnsRegex assertLogs assertNoLogs
    namedtuple ChainMap memoryview getcontext setcontext localcontext
    tmp_path tmp_path_factory tmpdir tmpdir_factory capsys capfd capsysbinary capfdbinary caplog monkeypatch recwarn mocker""")
"""Names by which code looks into an object, or asks for more than plain data and exceptions that reach it (a defaultdict passes as a dict, a named tuple as a tuple,
and warnings, logs and decimal's context not at all); fixtures last."""
TYPE_CHECKS = _words("isinstance assertIsInstance assertNotIsInstance")
"""Those that may look for classes of plain data."""
PLAIN_CLASSES: tuple[type, ...] = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)
PLAIN_NAMES = frozenset(kind.__name__ for kind in PLAIN_CLASSES)
ATTRIBUTES = frozenset(name for kind in (*PLAIN_CLASSES, Counter, deque, datetime, timedelta) for name in dir(kind))
ATTRIBUTES |= {"exception", "value", "args"}
"""Those of plain data, and of exceptions that were caught."""
SELF = frozenset(("self", "cls"))
NUMBERS = frozenset(("pi", "e", "tau", "inf", "nan", "maxsize"))
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


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


def need_of(test: CodeTest) -> str | None:
    """Say what test code needs beside calls of functions, as in "the program's class Stack"; None where that is all. In doubt it is no."""
    if beside := [path for path in test.files if path.endswith(".py")]:
        return f"the file {beside[0]} beside program and tests"
    return "to be Python" if parsed(test.code) is None else next(_needs(test), None)


def _needs(test: CodeTest) -> Iterator[str]:
    """Yield what code needs. Each name in it has to be known: the program's, of a library, of Python, or the tests' own."""
    nodes, prelude = _without_annotations(test.code), _without_annotations(test.prelude)
    modules, wanted = aliases(test), names_of_program(test)
    functions, libraries = {*wanted}, libraries_of(test)
    defined = (ast.FunctionDef, ast.ClassDef)
    own = {node.name for node in (*nodes, *prelude) if isinstance(node, defined)}
    used = {*map(_last_word, (*nodes, *prelude))}
    data: set[str] = set()
    """Names of what is certainly no object of the program's."""
    called: set[int] = set()
    """Expressions that are called or entered, or decorate."""
    fine: set[int] = set()
    """Places of a function of the program's: it is called, or passed on to be. Type checks for plain classes are fine too."""
    for node in nodes:
        match node:
            case ast.Import(names=names):
                libraries |= {one.asname or one.name.partition(".")[0] for one in names} - modules
            case ast.ImportFrom(module=module, names=names) if module != test.module:
                libraries |= {one.asname or one.name for one in names}
            case ast.Assign(targets=[target], value=value):
                if (root := _root(value)) in libraries and isinstance(target, ast.Name):
                    libraries.add(target.id)
                elif not root or root in libraries or hasattr(builtins, root):
                    data.add(_last_word(target))
            case ast.FunctionDef(name=name, decorator_list=decorators, args=arguments):
                called |= set(map(id, decorators))
                if name == "check" and isinstance(test, AssertTest):
                    functions |= {one.arg for one in arguments.args[:1]}
            case ast.withitem(context_expr=entered):
                called.add(id(entered))
            case ast.Call(func=function, args=args):
                called.add(id(function))
                word, kinds = _last_word(function), [one for of in args[1:2] for one in getattr(of, "elts", [of])]
                if word not in OBJECT_NAMES:
                    fine |= {id(one) for one in (function, *args) if _last_word(one) not in OBJECT_NAMES}
                elif word in TYPE_CHECKS and {*map(_last_word, kinds)} <= PLAIN_NAMES:
                    fine.add(id(function))
    known = libraries | own | SELF

    def is_function(node: ast.AST) -> bool:
        match node:
            case ast.Name(id=name) if id(node) not in called:
                return name in own | functions or hasattr(builtins, name)
            case ast.Attribute(attr=name) if id(node) not in called:
                return _root(node) in libraries and name not in NUMBERS
        return isinstance(node, ast.Lambda)

    for local, name in wanted.items() if test.entry_point is None else ():  # else they are check's argument
        if name[:1].isupper() or local[:1].isupper():
            yield f"the program's {'value' if name.isupper() else 'class'} {name}"
    for node in prelude:
        if isinstance(node, ast.ClassDef) and node.name in used - functions:
            yield f"objects of its own class {node.name}"
    for node in nodes:
        match node:
            case ast.ClassDef(name=name, bases=bases) if name in used and "Test" not in " ".join(
                [name, *map(_last_word, bases)]
            ):
                yield f"objects of its own class {name}"
            case ast.AsyncFunctionDef() | ast.Await():
                yield "to await what the program returns"
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                imported = {alias.name for alias in names}
                sources = imported if isinstance(node, ast.Import) else {getattr(node, "module", None) or "."}
                unknown = sources - MODULES - {test.module}
                for name in unknown | imported & (OBJECT_NAMES if sources == {test.module} else OBJECT_NAMES | {"*"}):
                    yield f"the import of {name}"
            case ast.arg(arg=name) | ast.Name(id=name) | ast.Attribute(attr=name) if (
                name in OBJECT_NAMES and id(node) not in fine
            ):
                yield f"to look into objects ({name})"
            case ast.Name(id=name) if name in functions and id(node) not in fine:
                yield f"more of the program's {name} than to call it"
            case ast.Name(id=name) if id(node) in called and not (
                name in known | functions | modules or hasattr(builtins, name)
            ):
                yield "to call or enter what the program returns"
            case ast.Attribute(attr=name, value=value):
                root, direct = _root(node), isinstance(value, ast.Name)
                if root in modules and not (direct and id(node) in fine):
                    yield f"more of the program's {name} than to call it"
                elif root not in libraries | modules and not (root in own | SELF and direct) and name not in ATTRIBUTES:
                    yield f"the attribute {name} of what may be the program's"
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name() | ast.Attribute() as owner))) if not (
                _root(owner) in libraries or _last_word(owner) in libraries | modules | SELF | data
            ):
                yield "to change what may be an object of the program's"
            case ast.For(iter=over) if functions & {*map(_last_word, ast.walk(over))} and any(
                isinstance(part, ast.Break) for part in ast.walk(node)
            ):
                yield "to leave off in what may have no end"
            case ast.Compare(ops=ops, comparators=others) if any(
                isinstance(op, ast.Is | ast.IsNot) and not isinstance(one, ast.Constant)
                for op, one in zip(ops, others, strict=True)
            ):
                yield "to know an object again (is)"
            case ast.Call(func=function, args=args, keywords=keywords):
                if id(node) in called and _root(node) not in known:
                    yield "to call or enter what the program returns"
                values = [*args, *(keyword.value for keyword in keywords)]
                of_program = _last_word(function) in functions or _root(function) in modules
                if of_program and any(is_function(part) for value in values for part in ast.walk(value)):
                    yield "to give the program a function"


def _without_annotations(code: str) -> list[ast.AST]:
    """Return the nodes of code's syntax tree but for annotations, which need nothing of a program."""
    nodes = [*nodes_of(code)]
    hints = [getattr(node, name, None) for node in nodes for name in ("annotation", "returns")]
    parts = {id(part) for hint in hints if hint is not None for part in ast.walk(hint)}
    return [node for node in nodes if id(node) not in parts]


def _last_word(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _root(node: ast.expr) -> str:
    """Return the name that an expression of attributes, items and calls begins with; "" where there is none."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


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
