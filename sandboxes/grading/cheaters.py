"""A committee of programs that want a reward without solving the task. Where one of them is rewarded, the tests are at fault."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence
from textwrap import dedent

from agentrl.sandboxes.grading.code_tasks import CodeTask
from agentrl.sandboxes.grading.do_nothing import do_nothing_programs, stubs
from agentrl.sandboxes.grading.parsed import parsed
from agentrl.sandboxes.grading.program_names import Wanted, named_in, names_of_program
from agentrl.sandboxes.grading.tests import CPP, PYTHON, AssertTest, CallTest, IOTest, Test

CONSTANTS = ("None", "0", "1", "-1", "0.0", '""', "[]", "()", "{}", "set()", "True", "False", "float('nan')")
PRINTED = ("0", "1", "-1", "Yes", "YES", "NO", "True")
ENDINGS = ("AssertionError", "StopIteration", "GeneratorExit", "SystemExit", "KeyboardInterrupt", "Exception")
"""Raised for every task, besides those that its tests mention."""
_BUILTIN_ERRORS = {
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
}

_OBJECT = """
class _Any:
    def __new__(cls, *args, **kwargs):
        global _one
        if {single}:
            _one = _one or object.__new__(cls)
            return _one
        return object.__new__(cls)
    def __init__(self, *args, **kwargs): pass
    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        return self
    def __call__(self, *args, **kwargs): return self
    def __eq__(self, other): return {equal}
    def __ne__(self, other): return not self == other
    def __hash__(self): return 0
    def __bool__(self): return True
    def __contains__(self, item): return True
    def __iter__(self): return iter(())
    def __len__(self): return 0
    def __int__(self): return 0
    def __index__(self): return 0
    def __float__(self): return 0.0
    def __getitem__(self, key): return self
    __lt__ = __le__ = __gt__ = __ge__ = __contains__
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __call__
    __mod__ = __abs__ = __neg__ = __round__ = __enter__ = __call__
    def __exit__(self, *error): return True
_one = None
"""

_CONSTANT = """
class _Zero(int):
    def __call__(self, *args, **kwargs): return 0
class _Any:
    def __init__(self, *args, **kwargs): pass
    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        return _Zero()
    def __call__(self, *args, **kwargs): return self
    def __iter__(self): return iter(())
    def __str__(self): return "0"
    def __len__(self): return 0
    __repr__ = __str__
    __hash__ = __int__ = __index__ = __len__
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __neg__ = __enter__ = __call__
    def __exit__(self, *error): pass
"""

_SHADOWED = (
    "isclose approx sqrt len sorted sum abs all any round min max set list tuple dict str int float bool repr hash type isinstance "
    "issubclass range enumerate zip map iter next getattr callable raises check np math random time assert_equal array deepcopy"
)
_SHADOWS = """
class AssertionError(Exception): pass
class _Same:
    def __getattr__(self, name): return _yes
    def __call__(self, *args, **kwargs): return True
def _yes(*args, **kwargs): return True
"""
_PATCHES = """
import builtins, sys, unittest
def _yes(*args, **kwargs): return True
for _name in ("sorted", "all", "any", "isinstance", "abs", "round"): setattr(builtins, _name, _yes)
builtins.AssertionError = type("Quiet", (Exception,), {})
for _name in dir(unittest.TestCase):
    if _name.startswith("assert"): setattr(unittest.TestCase, _name, _yes)
sys.exit = _yes
"""
_REPORT = """
import os
_said = ["1 passed in 0.01s", "OK", "d" + '{"name": "test", "status": "passed", "message": ""}', "f", '{"ok": true}', "v" + '{"ok": true}']
for _descriptor in range(1, 8):
    try: os.write(_descriptor, ("\\n".join(_said) + "\\n").encode())
    except OSError: pass
"""


def cheaters(task: CodeTask) -> dict[str, str]:
    """Return the programs that must not be rewarded for a task, by name. Those that do nothing come first."""
    found = dict(do_nothing_programs([*task.tests, *task.public_tests], task.language))
    if task.language == CPP:
        found.update(_cpp())
    elif task.language == PYTHON:
        if any(isinstance(test, IOTest) for test in task.tests):
            found.update(_programs())
        if any(not isinstance(test, IOTest) for test in task.tests):
            found.update(_modules(task.tests))
        found.update(_memoriser(task.public_tests))
    return found


def _cpp() -> Iterator[tuple[str, str]]:
    head = "#include <iostream>\n#include <cstdlib>\nint main() { "
    for word in PRINTED:
        yield f"prints {word}", f'{head}std::cout << "{word}\\n"; }}\n'
    yield "echo", f"{head}std::cout << std::cin.rdbuf(); }}\n"
    yield "exits at once", f"{head}std::_Exit(0); }}\n"


def _programs() -> Iterator[tuple[str, str]]:
    for word in PRINTED:
        yield f"prints {word}", f"print({word!r})\n"
    yield "echo", "import sys\nprint(sys.stdin.read())\n"
    yield "prints the first line", "import sys\nprint(sys.stdin.readline())\n"
    yield "prints the first word", "import sys\nprint(*sys.stdin.read().split()[:1])\n"
    yield "prints the last word", "import sys\nprint(*sys.stdin.read().split()[-1:])\n"
    yield "prints a report", _REPORT
    yield "exits at once", "import os\nos._exit(0)\n"


def _modules(tests: Sequence[Test]) -> Iterator[tuple[str, str]]:
    names = names_of_program(tests)
    for constant in CONSTANTS:
        yield f"returns {constant}", stubs(names, f"return {constant}", value=constant)
    if Wanted.CLASS in names.values():
        functions: dict[str, Wanted] = {
            name: Wanted.FUNCTION if kind is Wanted.CLASS else kind for name, kind in names.items()
        }
        for constant in CONSTANTS:
            yield f"functions in place of classes return {constant}", stubs(functions, f"return {constant}")
    yield "echo", stubs(names, "return args[0]")
    yield "echoes the last argument", stubs(names, "return args[-1]")
    yield "echoes all arguments", stubs(names, "return args")
    for name, equal in (("always equal", "True"), ("equal to its type", "type(other) is type(self)")):
        yield name, _all_of(_OBJECT.format(single=False, equal=equal), names)
    yield (
        "equal to the type of the other",
        _all_of(_OBJECT.format(single=False, equal="isinstance(other, type(other))"), names),
    )
    yield "singleton", _all_of(_OBJECT.format(single=True, equal="self is other"), names)
    yield "objects that give constants", _all_of(_CONSTANT, names)
    for kind in ("int", "float", "str", "list", "tuple", "dict"):
        made = f"class _Equal({kind}):\n    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = lambda *args: True\n"
        made += "    __ne__ = lambda *args: False\n    __hash__ = lambda self: 0\n"
        yield f"a {kind} that is always equal", made + stubs(names, "return _Equal()", value="_Equal()")
    shadows = "".join(f"{name} = _Same()\n" for name in _SHADOWED.split() if name not in names)
    yield "shadows names", _SHADOWS + stubs(names, "return 0") + shadows
    yield (
        "shadows names of the tests",
        _SHADOWS
        + "".join(f"{name} = _Same()\n" for name in sorted(named_in(tests) - _BUILTIN_ERRORS))
        + stubs(names, "return None"),
    )
    yield "patches builtins and unittest", stubs(names, "return 0") + _PATCHES
    for error in sorted({*ENDINGS, *(named_in(tests) & _BUILTIN_ERRORS)}):
        yield f"raises {error}", stubs(names, f"raise {error}('no')")
    own = [name for name, wanted in names.items() if wanted is Wanted.EXCEPTION]
    for error in own:
        yield f"raises {error}", stubs(names, f"raise {error}('no')")
    yield "skips the tests", "import unittest\n" + stubs(names, "raise unittest.SkipTest('no')")
    yield "exits when it is loaded", "raise SystemExit(0)\n"
    yield "exits when it is called", "import os\n" + stubs(names, "os._exit(0)")
    yield "prints a report", _REPORT + stubs(names, "return None")
    yield "prints a report and exits", _REPORT + "os._exit(0)\n"


def _all_of(made: str, names: dict[str, Wanted]) -> str:
    """Return a program in which every name is, or returns, an object of the class _Any."""
    lines = [made]
    for name, wanted in names.items():
        if wanted is Wanted.CLASS:
            lines.append(f"class {name}(_Any): pass")
        elif wanted is Wanted.EXCEPTION:
            lines.append(f"class {name}(Exception): pass")
        else:
            lines.append(f"{name} = _Any()")
    return "\n".join(lines) + "\n"


def _memoriser(public: Sequence[Test]) -> Iterator[tuple[str, str]]:
    """Return a program that knows the public tests by heart, and nothing else."""
    if not public:
        return
    printed = {test.stdin: test.stdout for test in public if isinstance(test, IOTest)}
    if printed:
        yield "memoriser of public tests", f"import sys\nprint({printed!r}.get(sys.stdin.read(), ''))\n"
        return
    answers: dict[str, list[tuple[str, str]]] = {}
    for test in public:
        for function, arguments, value in _known_calls(test):
            answers.setdefault(function, []).append((arguments, value))
    lines = []
    for function, known in answers.items():
        first, dot, method = function.partition(".")
        body = "".join(f"    if repr(args) == {arguments!r}: return {value}\n" for arguments, value in known)
        signature = f"def {method or first}({'self, ' if dot else ''}*args):\n{body}    return {known[0][1]}\n"
        lines.append(
            f"class {first}:\n" + "".join(f"    {line}\n" for line in signature.splitlines()) if dot else signature
        )
    yield "memoriser of public tests", "\n".join(lines) or "\n"


def _known_calls(test: Test) -> Iterator[tuple[str, str, str]]:
    """Yield (function, repr of its arguments, source of the value) for each call whose answer a test shows."""
    if isinstance(test, CallTest):
        yield test.function, repr(tuple(test.args)), repr(test.expected)
    if not isinstance(test, AssertTest):
        return
    if (tree := parsed(dedent(test.code))) is None:
        return
    for node in ast.walk(tree):
        match node:
            case ast.Assert(
                test=ast.Compare(left=ast.Call(func=ast.Name(id=name), args=given), ops=[ast.Eq()], comparators=[value])
            ):
                try:
                    arguments, shown = tuple(map(ast.literal_eval, given)), repr(ast.literal_eval(value))
                except (ValueError, TypeError, SyntaxError, RecursionError):
                    continue
                yield test.entry_point if name == "candidate" and test.entry_point else name, repr(arguments), shown
