"""What a test's code needs and cannot have, found by reading it, before anything runs."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from agentrl.sandboxes.grading.verdict import AssertTest, Test, TestFile
from agentrl.sandboxes.inside.shared_state import PATCHED
from agentrl.sandboxes.inside.special_methods import SPECIAL_METHODS

FIXTURES = {
    "tmp_path": "files that it shares with the candidate (tmp_path)",
    "tmpdir": "files that it shares with the candidate (tmpdir)",
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
    "subprocess.run": "to run programs (subprocess.run); use an IOTest",
    "subprocess.check_output": "to run programs (subprocess.check_output); use an IOTest",
    "subprocess.Popen": "to run programs (subprocess.Popen); use an IOTest",
    "asyncio.run": "to await what the candidate returns (asyncio.run)",
    "dataclasses.asdict": "the insides of the candidate's dataclasses (dataclasses.asdict)",
    "dataclasses.astuple": "the insides of the candidate's dataclasses (dataclasses.astuple)",
    "dataclasses.fields": "the insides of the candidate's dataclasses (dataclasses.fields)",
    "dataclasses.replace": "the insides of the candidate's dataclasses (dataclasses.replace)",
    "pickle.dumps": "to pickle the candidate's objects (pickle.dumps)",
    "os.chdir": "the candidate to run in another folder (os.chdir)",
    "monkeypatch.chdir": "the candidate to run in another folder (monkeypatch.chdir)",
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
USED_BY_PYTHON = SPECIAL_METHODS | {"__init__", "__new__"}
FUNCTION_TYPES = ("FunctionType", "LambdaType", "MethodType", "BuiltinFunctionType", "BuiltinMethodType")
PATCHES = ("patch", "patch.object", "patch.dict", "mock.patch", "unittest.mock.patch", "monkeypatch.setattr")
ON_BOTH_SIDES = {
    *("sys.argv", "sys.stdin", "sys.stdout", "sys.stderr", "os.environ"),
    *(f"{module}.{name}" for module, names in PATCHED.items() for name in names),
}
"""What a test may patch though it is not the candidate's, since it is set there too."""
OF_THE_CALLER = ("super", "globals", "locals", "vars", "dir", "eval", "exec")
"""Functions of Python's that look at who calls them, which a stand-in cannot."""


def needs(test: Test) -> str | None:
    """Say what a test's code needs and cannot have, as in "the candidate's source (inspect.getsource)"; None where nothing is known of it.

    A test that is found wanting only as it runs gets the status `checker_error`.
    """
    if not isinstance(test, AssertTest | TestFile):
        return None
    module = test.module if isinstance(test, TestFile) else "solution"
    try:
        tree = ast.parse(test.code)
        if isinstance(test, AssertTest):
            ast.parse(test.prelude)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"to be Python: {error}"
    if isinstance(test, AssertTest) and test.entry_point is not None and "check" not in _defined(tree):
        return f"to define check(candidate), which is called with entry_point = {test.entry_point!r}; or no entry_point"
    return next(_needs(tree, module), None)


def _defined(tree: ast.Module) -> set[str]:
    """Return the names that the code gives to anything."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names |= {node.name for node in ast.walk(tree) if isinstance(node, definitions)}
    return names | set(_imported(tree))


def _needs(tree: ast.Module, module: str) -> Iterator[str]:
    """Return everything that is found, in the order of the code."""
    full = _imported(tree)
    candidates = {name for name, source in full.items() if source.split(".")[0] == module}
    checks_calls = any(isinstance(node, ast.Name) and node.id == "TypeError" for node in ast.walk(tree))
    tried = {inner for node in ast.walk(tree) if isinstance(node, ast.Try) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and node not in tried:
            yield from _of_a_package(node, module)
        elif isinstance(node, ast.AsyncFunctionDef):
            yield f"to await what the candidate returns (async def {node.name})"
        elif _unloads(node, module, full):
            yield "to load the candidate's module anew (sys.modules)"
        elif (
            isinstance(node, ast.Name | ast.Attribute) and _dotted(node, full).removeprefix("types.") in FUNCTION_TYPES
        ):
            yield f"the candidate's functions to be functions here ({ast.unparse(node)})"
        elif isinstance(node, ast.Attribute) and node.attr in INSIDES and _root(node.value) in candidates:
            yield f"the candidate's insides ({ast.unparse(node)})"
        elif isinstance(node, ast.FunctionDef):
            fixtures = [argument.arg for argument in node.args.args if argument.arg in FIXTURES]
            if node.name.startswith("test") and fixtures:
                yield FIXTURES[fixtures[0]]
        elif isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base) for base in node.bases]
            derived = [base for base in bases if base.split(".")[0] in candidates]
            if derived:
                yield f"to derive its class {node.name} from the candidate's {derived[0]}"
        elif isinstance(node, ast.Call):
            name = _dotted(node.func, full)
            if name.endswith(".run_until_complete"):
                yield "to await what the candidate returns (run_until_complete)"
            elif name in CALLS:
                yield CALLS[name]
            elif (
                f".{name}".endswith(".create_autospec")
                and node.args
                and _root(node.args[0]) in candidates
                and checks_calls
            ):
                yield f"the candidate's signatures (create_autospec({ast.unparse(node.args[0])}))"
            elif any(f".{name}".endswith(f".{patch}") for patch in PATCHES) and node.args:
                yield from _outside(node, name, module, candidates, full)


def _unloads(node: ast.AST, module: str, full: dict[str, str]) -> bool:
    """Return whether code takes the candidate's module out of those that are loaded."""
    if isinstance(node, ast.Delete):
        items = [(target.value, target.slice) for target in node.targets if isinstance(target, ast.Subscript)]
    elif isinstance(node, ast.Call) and _dotted(node.func, full) == "sys.modules.pop" and node.args:
        items = [(ast.parse("sys.modules", mode="eval").body, node.args[0])]
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".delitem") and len(node.args) > 1:
        items = [(node.args[0], node.args[1])]
    else:
        return False
    return any(
        _dotted(of, full) == "sys.modules" and isinstance(key, ast.Constant) and key.value == module
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


def _outside(call: ast.Call, name: str, module: str, candidates: set[str], full: dict[str, str]) -> Iterator[str]:
    """Return what a patch would change that is not the candidate's: there, nobody would see it."""
    target = call.args[0]
    if not isinstance(target, ast.Constant) and ast.unparse(target).split(".")[0] not in full:
        return  # what the test has made, or had of a star import; its run shows whether that is the candidate's
    if isinstance(target, ast.Constant) and isinstance(target.value, str):
        shown, inside = target.value, target.value.split(".")[0] == module
    else:
        shown = ast.unparse(target)
        inside = shown.split(".")[0] in candidates
        attribute = call.args[1] if len(call.args) > 1 else None
        if inside and isinstance(attribute, ast.Constant) and isinstance(attribute.value, str):
            shown = f"{shown}.{attribute.value}"
        if name.endswith("dict") and not inside:
            return  # a dict of the test's own
        elif (
            not inside
            and isinstance(attribute, ast.Constant)
            and isinstance(attribute.value, str)
            and name.rpartition(".")[2] != "dict"
        ):
            shown = f"{full.get(shown, shown)}.{attribute.value}"
    if shown in ON_BOTH_SIDES:
        return
    path = (shown if isinstance(target, ast.Constant) else _full_name(shown, full)).split(".")
    of_a_class = inside and len(path) > 2 and path[1] not in sys.stdlib_module_names
    if of_a_class and any(_asks_for_autospec(keyword) for keyword in call.keywords):
        yield f"the candidate's signatures (a patch of {shown} with autospec)"
    if of_a_class and shown.rpartition(".")[2] in USED_BY_PYTHON:
        yield f"to patch {shown}, by which Python itself uses the candidate's class"
    if inside and shown.rpartition(".")[2] in OF_THE_CALLER:
        yield f"to patch {shown}, which looks at who calls it"
    if not inside:
        own = shown.removeprefix("builtins.")
        how = f"{module}.{own}" + ("" if own == shown else ", with create=True")
        yield f"to patch {shown}, which is not the candidate's; patch it as the candidate sees it, as in {how}"


def _asks_for_autospec(keyword: ast.keyword) -> bool:
    return keyword.arg == "autospec" and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)


def _root(node: ast.expr) -> str:
    """Return the first name of `name.attribute.attribute`; else an empty text."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _imported(tree: ast.Module) -> dict[str, str]:
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
                full[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return full


def _dotted(function: ast.expr, full: dict[str, str]) -> str:
    return _full_name(ast.unparse(function), full)


def _full_name(name: str, full: dict[str, str]) -> str:
    first, dot, rest = name.partition(".")
    return full.get(first, first) + dot + rest
