"""Files that a test's code would share with the candidate, which has a folder of its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from agentrl.sandboxes.grading.names_in_tests import Names, arguments_of, root

FOLDERS = ("tmp_path", "tmpdir", "tmp_path_factory", "tmpdir_factory")
"""Fixtures of pytest's that give a folder."""
OF_PATHS = (
    "join",
    "joinpath",
    "abspath",
    "realpath",
    "Path",
    "str",
    "fspath",
    "resolve",
    "with_suffix",
    "mktemp",
    "mkdir",
)
"""What gives a path of a path."""
WRITTEN = ("w", "a", "x", "wb", "ab", "xb", "w+", "wt")
"""Modes of `open`."""
RUN = {
    *(f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output", "Popen", "getoutput")),
    "subprocess.getstatusoutput",
    *("os.system", "os.popen"),
}


def folders(names: Names, provided: set[str]) -> Iterator[str]:
    """Return what a test or a fixture wants of pytest's folders, but for what is `provided` in another way."""
    for function in names.nodes(ast.FunctionDef):
        wanted = [argument for argument in arguments_of(function) if argument in FOLDERS]
        wanted = [argument for argument in wanted if argument not in provided or argument == function.name]
        if wanted and (function.name.startswith("test") or is_fixture(function)):
            yield f"files that it shares with the candidate ({wanted[0]})"


def is_fixture(function: ast.FunctionDef) -> bool:
    """Return whether a function is a fixture of pytest's."""
    return any(
        ast.unparse(mark.func if isinstance(mark, ast.Call) else mark).split(".")[-1] == "fixture"
        for mark in function.decorator_list
    )


def source_files(names: Names) -> Iterator[str]:
    """Return where the code runs or reads the candidate's file."""
    named = re.compile(rf"(^|[\s/'\"])({re.escape(names.module)}\.py\b|-m {re.escape(names.module)}\b)")
    texts = [
        text.value for text in names.nodes(ast.Constant) if isinstance(text.value, str) and named.search(text.value)
    ]
    texts += [
        text
        for text in (f"import {names.module}", f"from {names.module}")
        if any(text in str(found.value) for found in names.nodes(ast.Constant) if isinstance(found.value, str))
    ]
    if not texts and not any(text.value == "-m" for text in names.nodes(ast.Constant)):
        return
    for call in names.nodes(ast.Call):
        full = names.dotted(call.func)
        if full in RUN:
            yield f"to run programs ({full}); use an IOTest"
        opened = full in ("open", "io.open", "builtins.open") or full.endswith("Path")
        given = [text.value for text in call.args if isinstance(text, ast.Constant) and isinstance(text.value, str)]
        if opened and any(re.fullmatch(rf"(.*/)?{re.escape(names.module)}\.py", text) for text in given):
            yield f"the candidate's source ({ast.unparse(call)})"


class Shared:
    """Which paths are of files of the test's, and what the candidate is given of them."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._paths: set[str] = set()
        """Names, and texts that are written to as files."""
        self._candidates = {*names.candidates}
        """Names of what the candidate has, and of what has been made by that."""

    def given(self) -> Iterator[str]:
        """Return where the candidate is given the path of a file that the test has made."""
        calls = [*self._names.nodes(ast.Call)]
        if not any(map(self._makes_a_file, calls)):
            return
        for call in calls:
            self._note_written(call)
        count = -1
        while count != (count := len(self._paths) + len(self._candidates)):
            self._follow()
        for call in calls:
            args = [*call.args, *(keyword.value for keyword in call.keywords)]
            if self._is_the_candidates(call.func) and (path := next(filter(self._is_path, args), None)) is not None:
                yield f"files that it shares with the candidate ({ast.unparse(path)})"

    def _makes_a_file(self, call: ast.Call) -> bool:
        return self._names.dotted(call.func).startswith("tempfile.") or self._written(call) is not None

    def _written(self, call: ast.Call) -> ast.expr | None:
        """Return the path that a call opens to write."""
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("write_text", "write_bytes"):
            of = call.func.value
            return of.args[0] if isinstance(of, ast.Call) and of.args else None
        if self._names.dotted(call.func) not in ("open", "io.open") or not call.args:
            return None
        modes = [*call.args[1:2], *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
        is_written = any(isinstance(mode, ast.Constant) and mode.value in WRITTEN for mode in modes)
        return call.args[0] if is_written else None

    def _note_written(self, call: ast.Call) -> None:
        match self._written(call):
            case ast.Constant(value=str(text)):
                self._paths.add(repr(text))
            case ast.Name(id=name) if all(isinstance(value, ast.Constant) for value in self._names.bound[name]):
                self._paths.add(name)

    def _follow(self) -> None:
        """Note what has a path, or something of the candidate's, by another name."""
        for name, values in self._names.bound.items():
            known = [value for value in values if value is not None]
            if any(map(self._is_path, known)):
                self._paths.add(name)
            if any(isinstance(value, ast.Call) and self._is_the_candidates(value.func) for value in known):
                self._candidates.add(name)
        for statement in self._names.nodes(ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Tuple) and self._is_path(statement.value):
                    self._paths.update(ast.unparse(part) for part in target.elts)
        for function in self._names.nodes(ast.FunctionDef):
            given = [inner.value for inner in ast.walk(function) if isinstance(inner, ast.Return | ast.Yield)]
            if any(value is not None and self._is_path(value) for value in given):
                self._paths.add(function.name)

    def _is_path(self, node: ast.expr) -> bool:
        match node:
            case ast.Constant(value=str(text)):
                return repr(text) in self._paths
            case ast.Name() | ast.Attribute() if ast.unparse(node) in self._paths:
                return True
            case ast.Attribute(value=of, attr="name" | "parent"):
                return self._is_path(of)
            case ast.BinOp(left=left, right=right):
                return self._is_path(left) or self._is_path(right)
            case ast.JoinedStr(values=values):
                return any(isinstance(part, ast.FormattedValue) and self._is_path(part.value) for part in values)
            case ast.Call(func=function, args=given):
                name = self._names.dotted(function) or ast.unparse(function)
                if name.startswith("tempfile.") or name in self._paths:
                    return True
                owner = [function.value] if isinstance(function, ast.Attribute) else []
                return name.split(".")[-1] in OF_PATHS and any(map(self._is_path, [*owner, *given]))
        return False

    def _is_the_candidates(self, function: ast.expr) -> bool:
        while isinstance(function, ast.Attribute | ast.Call):
            if ast.unparse(function) in self._candidates:
                return True
            function = function.value if isinstance(function, ast.Attribute) else function.func
        return root(function) in self._candidates
