"""Find what a test's code needs and cannot have by reading it, before anything runs."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from agentrl.sandboxes.grading import files_in_tests, patches_in_tests
from agentrl.sandboxes.grading.files_in_tests import is_fixture
from agentrl.sandboxes.grading.names_in_tests import MONKEYPATCH, Names, arguments_of, imported, root
from agentrl.sandboxes.grading.tests import AssertTest, Test, TestFile

FIXTURES = {
    "mocker": "the plugin pytest-mock; unittest.mock is there",
    "benchmark": "the plugin pytest-benchmark",
}
CALLS = {
    "inspect.getsource": "the candidate's source (inspect.getsource)",
    "inspect.getsourcelines": "the candidate's source (inspect.getsourcelines)",
    "inspect.signature": "the candidate's signatures (inspect.signature)",
    "inspect.getmembers": "the candidate's insides (inspect.getmembers)",
    **{
        f"inspect.{name}": f"the candidate's functions to be functions here (inspect.{name})"
        for name in ("isfunction", "ismethod", "isroutine", "isbuiltin", "isgeneratorfunction", "iscoroutinefunction")
    },
    **{
        f"inspect.{name}": f"the candidate's classes to be classes here (inspect.{name})"
        for name in (
            *("isabstract", "getmro", "classify_class_attrs", "getattr_static"),
            *("isdatadescriptor", "ismethoddescriptor", "isgetsetdescriptor", "ismemberdescriptor"),
        )
    },
    "inspect.getfullargspec": "the candidate's signatures (inspect.getfullargspec)",
    "importlib.reload": "to load the candidate's module anew (importlib.reload)",
    "importlib.util.spec_from_file_location": "the candidate's file (importlib.util.spec_from_file_location)",
    "runpy.run_path": "the candidate's file (runpy.run_path)",
    "runpy.run_module": "the candidate's file (runpy.run_module)",
    "asyncio.run": "to await what the candidate returns (asyncio.run)",
    **{
        f"dataclasses.{name}": f"the insides of the candidate's dataclasses (dataclasses.{name})"
        for name in ("asdict", "astuple", "fields", "replace")
    },
    **{
        f"doctest.{name}": f"the candidate's source (doctest.{name})"
        for name in ("testmod", "run_docstring_examples", "DocTestSuite", "testsource")
    },
    "pickle.dumps": "to pickle the candidate's objects (pickle.dumps)",
    "os.chdir": "the candidate to run in another folder (os.chdir)",
    f"{MONKEYPATCH}.chdir": "the candidate to run in another folder (monkeypatch.chdir)",
    "sys.setrecursionlimit": "to set how deep the candidate may recurse (sys.setrecursionlimit)",
    "sys.getrefcount": "the candidate's memory (sys.getrefcount)",
    "gc.get_objects": "the candidate's memory (gc.get_objects)",
    "weakref.ref": "to watch the candidate's objects end (weakref.ref)",
}
INSIDES = {
    *("__all__", "__file__", "__loader__", "__spec__", "__bases__", "__base__"),
    *("__isabstractmethod__", "__required_keys__", "__optional_keys__"),
}
"""Attributes of the candidate's module, functions and classes that stand-ins for them do not have."""
FUNCTION_TYPES = tuple(
    f"types.{name}" for name in ("FunctionType", "LambdaType", "MethodType", "BuiltinFunctionType", "BuiltinMethodType")
)
OF_AN_ARGUMENT = ("inspect.", "dataclasses.", "doctest.", "pickle.")
"""Calls by whose argument it is decided: of the test's own things, they need nothing of the candidate's."""


def needs(test: Test) -> str | None:
    """Say what a test's code needs and cannot have, as in "the candidate's source (inspect.getsource)"; None where nothing is known of it.

    A test that is found wanting only as it runs gets the status `checker_error`.
    """
    if not isinstance(test, AssertTest | TestFile):
        return None
    module = test.module if isinstance(test, TestFile) else "solution"
    try:
        tree = ast.parse(test.code)
        prelude = ast.parse(test.prelude) if isinstance(test, AssertTest) else None
        beside = [ast.parse(text) for path, text in _files(test) if path.rpartition("/")[2] == "conftest.py"]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"to be Python: {error}"
    if isinstance(test, AssertTest) and test.entry_point is not None and "check" not in _defined(tree):
        return f"to define check(candidate), which is called with entry_point = {test.entry_point!r}; or no entry_point"
    return next(_needs(tree, Names(tree, module, prelude), _fixtures([tree, *beside])), None)


def _defined(tree: ast.Module) -> set[str]:
    """Return the names that the code gives to anything."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names |= {node.name for node in ast.walk(tree) if isinstance(node, definitions)}
    return names | set(imported(tree))


def _files(test: AssertTest | TestFile) -> list[tuple[str, str]]:
    """Return the files beside a test that are text."""
    files = test.files if isinstance(test, TestFile) else {}
    return [(path, text) for path, text in files.items() if isinstance(text, str)]


def _fixtures(trees: list[ast.Module]) -> set[str]:
    """Return the names of arguments that the tests give themselves: of their own fixtures, and of parameters."""
    found: set[str] = set()
    for node in itertools.chain.from_iterable(map(ast.walk, trees)):
        if isinstance(node, ast.FunctionDef) and is_fixture(node):
            found.add(node.name)
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func).split(".")[-1]
        if called == "fixture":
            values = (keyword.value for keyword in node.keywords)
            found |= {str(value.value) for value in values if isinstance(value, ast.Constant)}
        if called == "parametrize" and node.args:
            texts = [text.value for text in ast.walk(node.args[0]) if isinstance(text, ast.Constant)]
            found |= {name.strip() for text in texts for name in str(text).split(",")}
    return found


def _needs(tree: ast.Module, names: Names, fixtures: set[str]) -> Iterator[str]:
    """Return everything that is found, in the order of the code."""
    module, candidates = names.module, names.candidates
    yield from files_in_tests.folders(names, fixtures)
    yield from files_in_tests.source_files(names)
    yield from files_in_tests.Shared(names).given()
    checks_calls = any(isinstance(node, ast.Name) and node.id == "TypeError" for node in ast.walk(tree))
    tried = {inner for node in ast.walk(tree) if isinstance(node, ast.Try) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and node not in tried:
            yield from _of_a_package(node, module)
        elif isinstance(node, ast.AsyncFunctionDef):
            yield f"to await what the candidate returns (async def {node.name})"
        elif _unloads(node, names):
            yield "to load the candidate's module anew (sys.modules)"
        elif isinstance(node, ast.Name | ast.Attribute) and names.dotted(node) in FUNCTION_TYPES:
            yield f"the candidate's functions to be functions here ({ast.unparse(node)})"
        elif isinstance(node, ast.Attribute) and node.attr in INSIDES and root(node.value) in candidates:
            yield f"the candidate's insides ({ast.unparse(node)})"
        elif isinstance(node, ast.FunctionDef):
            wanted = [argument for argument in arguments_of(node) if argument in FIXTURES and argument not in fixtures]
            if node.name.startswith("test") and wanted:
                yield FIXTURES[wanted[0]]
        elif isinstance(node, ast.Assign):
            yield from patches_in_tests.of_an_assignment(node, names)
        elif isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base) for base in node.bases]
            derived = [base for base in bases if base.split(".")[0] in candidates]
            if derived:
                yield f"to derive its class {node.name} from the candidate's {derived[0]}"
        elif isinstance(node, ast.Call):
            yield from _of_a_call(node, names, checks_calls)


def _of_a_call(call: ast.Call, names: Names, checks_calls: bool) -> Iterator[str]:
    """Return what a call needs. `checks_calls` says whether the code expects a TypeError."""
    name = names.dotted(call.func)
    of = call.args[0] if call.args else None
    awaits = any(full.split(".")[0] == "asyncio" for full in names.full.values())
    if ast.unparse(call.func).endswith(".run_until_complete") and awaits and not _is_made_by(call.func, names):
        yield "to await what the candidate returns (run_until_complete)"
    elif name in CALLS:
        of_arguments = name.startswith(OF_AN_ARGUMENT)
        if not (of_arguments and (names.is_own(of) if of is not None else name.startswith("doctest."))):
            yield CALLS[name]
    elif f".{name}".endswith(".create_autospec") and of is not None and root(of) in names.candidates and checks_calls:
        yield f"the candidate's signatures (create_autospec({ast.unparse(of)}))"
    else:
        yield from patches_in_tests.of_a_call(call, name, names)


def _is_made_by(function: ast.expr, names: Names) -> bool:
    """Return whether a method is of an object that a class or function of the candidate's has made in this expression."""
    while isinstance(function, ast.Attribute | ast.Call):
        function = function.value if isinstance(function, ast.Attribute) else function.func
    return root(function) in names.candidates


def _unloads(node: ast.AST, names: Names) -> bool:
    """Return whether code takes the candidate's module out of those that are loaded."""
    if isinstance(node, ast.Delete):
        items = [(target.value, target.slice) for target in node.targets if isinstance(target, ast.Subscript)]
    elif isinstance(node, ast.Call) and names.dotted(node.func) == "sys.modules.pop" and node.args:
        items = [(ast.parse("sys.modules", mode="eval").body, node.args[0])]
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".delitem") and len(node.args) > 1:
        items = [(node.args[0], node.args[1])]
    else:
        return False
    return any(
        names.dotted(of) == "sys.modules" and isinstance(key, ast.Constant) and key.value == names.module
        for of, key in items
    )


def _of_a_package(statement: ast.Import | ast.ImportFrom, module: str) -> Iterator[str]:
    """Return an import that needs the candidate to be more than one module."""
    if isinstance(statement, ast.Import):
        names = [alias.name for alias in statement.names]
    else:
        names = ["." * statement.level + (statement.module or "")]
    for name in names:
        if name.lstrip(".").partition(".")[0] == module != name:
            yield f"the candidate to be a package (import {name}), and it is one module; import it as {module}"
