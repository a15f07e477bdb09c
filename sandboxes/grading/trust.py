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
from agentrl.sandboxes.grading.tests import AssertTest, CallTest, CodeTest, IOTest, Test


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
