"""The tests of a program, and the language that it is written in, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from agentrl.errors import ConfigError
from agentrl.sandboxes.checked_fields import AboveZero, Checked, Tolerance, must_be
from agentrl.sandboxes.grading.comparison import Comparison
from agentrl.sandboxes.sandbox import Limits


@dataclass(frozen=True, kw_only=True)
class Language(Checked):
    """The way to build and run a program: the file its source goes to, and commands in the folder of that file."""

    file: str
    run: tuple[str, ...]
    build: tuple[str, ...] = ()
    build_timeout_s: AboveZero = 60.0
    names: tuple[str, ...] = ()
    """Its names in tasks, and after the fence of a code block."""


PYTHON = Language(file="main.py", run=("python3", "main.py"), names=("python", "python3", "py"))
CPP = Language(
    file="main.cpp",
    build=("g++", "-O2", "-std=gnu++20", "-o", "main", "main.cpp"),
    run=("./main",),
    names=("cpp", "c++", "cc", "cxx"),
)
JAVA = Language(file="Main.java", build=("javac", "Main.java"), run=("java", "Main"), names=("java",))
LANGUAGES = {name: language for language in (PYTHON, CPP, JAVA) for name in language.names}
"""Those that a task may name; `sandbox.image` must have the compiler."""


@dataclass(frozen=True, kw_only=True)
class Checker(Checked):
    """A Python program that decides, for problems with several right answers. It is run with three files: input, output, answer.

    Exit code 0 accepts, 1 and 2 reject, anything else means that the checker itself failed (testlib's codes).
    """

    source: str


CALLED = must_be(
    "the name of a function, such as 'add', or of a method, such as 'Solution.add'",
    lambda given: isinstance(given, str) and all(map(str.isidentifier, given.replace("()", "").split("."))),
)
MODULE = must_be(
    "one name that tests can import, such as 'solution'", lambda given: isinstance(given, str) and given.isidentifier()
)
TrustOfCode = Literal["apart", "inside"]


@dataclass(frozen=True, kw_only=True)
class _OneTest(Checked):
    """The fields of every test."""

    name: str = ""
    limits: Mapping[str, float] | None = None
    """Limits that differ from those of the grader, as {"timeout_s": 2}."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.limits is not None:
            check_limits(self.limits)

    def limits_of(self, grader: Limits) -> Limits:
        """Return the limits of the test, its own before those of the grader."""
        return grader.changed(**(self.limits or {}))


def check_limits(changes: Mapping[str, float]) -> None:
    """Check changes of limits.

    Raises:
        ConfigError: There is no such limit, or a value that it cannot have.
    """
    if unknown := sorted(map(str, changes.keys() - vars(Limits()).keys())):
        raise ConfigError(f"limits has an unknown field {unknown[0]!r}; it may have {', '.join(vars(Limits()))}")
    Limits().changed(**changes)


@dataclass(frozen=True, kw_only=True)
class IOTest(_OneTest):
    """A program reads `stdin` and is to print `stdout`."""

    stdin: str = ""
    stdout: str = ""
    compare: Comparison | Checker = field(default_factory=Comparison)


@dataclass(frozen=True, kw_only=True)
class CallTest(_OneTest):
    """A function is called with `args` and is to return `expected`. All are plain data.

    `function` is looked for in the module, and then in a `Solution()`. It may be dotted: `Stack.top` makes a Stack without arguments first.
    """

    function: Annotated[str, CALLED]
    args: Sequence[Any] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    expected: Any = None
    tolerance: Tolerance | None = None
    """By how much a float may differ, absolutely or relatively."""
    wrapped: bool = False
    """Whether an expected list of one item stands for that item too, and {"1": 2} for {1: 2}, as in APPS and TACO."""


@dataclass(frozen=True, kw_only=True)
class AssertTest(_OneTest):
    """Python code that asserts.

    With `entry_point`, its `check(candidate)` is called with that function (HumanEval); without, the code may use any name that the
    program alone can define (MBPP). `prelude` is trusted code that runs before it, and without `entry_point` may use these names too.
    """

    framework: ClassVar[str] = "assert"
    module: ClassVar[str] = "solution"
    files: ClassVar[Mapping[str, str | bytes]] = {}
    code: str
    entry_point: Annotated[str, CALLED] | None = None
    candidate_names: Sequence[str] = ()
    """Names in the code that are the program's though Python has them too, such as `sum`."""
    prelude: str = ""
    trust: TrustOfCode | None = None
    """`apart`: the code runs in a sandbox of its own, and calls functions of the program in another. `inside`: in one process with the
    program. Default: apart, if calls are all that the code needs."""


@dataclass(frozen=True, kw_only=True)
class TestFile(_OneTest):
    """A unittest or pytest file that imports the program as `module`. Each of its tests counts; skipped ones do not."""

    __test__ = False  # pytest: not a test itself

    code: str
    framework: Literal["unittest", "pytest"] = "pytest"
    module: Annotated[str, MODULE] = "solution"
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    """Helper modules and data files beside the test file, by relative path. They run in that folder; apart, the tests alone see them."""
    entry_point: ClassVar[None] = None
    prelude: ClassVar[str] = ""
    trust: TrustOfCode | None = None
    """As in AssertTest. `inside` where the program reads some of `files`."""


CodeTest = AssertTest | TestFile
Test = IOTest | CallTest | CodeTest
