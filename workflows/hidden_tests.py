"""The hidden tests of a repository, and what an agent left as they see it.

    what the agent left ─► with the tests' files put over it, what steers them as at the start ─► a new sandbox ─► pytest ─► passed?

What the agent left decides through the code under test alone. Files of the hidden tests take the place of whatever has their path, and those that
steer pytest (`STEERING`) are as they were at the start. The code runs in the process of its tests, as it must where tests import a repository's
modules: ending that process, skipping a test or printing a report earns nothing, but what looks through the memory of its own process is not kept
from it. Tests of one program, in `code.py`, are safe from that too.
"""

from __future__ import annotations

import io
import json
import os
import re
import secrets
import shlex
import tarfile
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from functools import cache
from pathlib import PurePosixPath

from anyio.to_thread import run_sync as in_thread
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agentrl.errors import SandboxError, SandboxLostError
from agentrl.sandboxes import Sandbox
from agentrl.workflows.repository import Archive, Files, RelativePath, add_files, archive_of, name_of

STEERING = (
    *(
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "pytest.toml",
        ".pytest.toml",
        "tox.ini",
        "setup.cfg",
        "pyproject.toml",
    ),
    *("sitecustomize.py", "usercustomize.py", "*.dist-info", "*.egg-info", "__pycache__"),
)
"""Names of files and folders that decide how pytest runs, or what Python imports; an agent's changes to them do not count."""
_STEERING = re.compile("|".join("/" + re.escape(name).replace(r"\*", "[^/]*") + "/" for name in STEERING))
CHECK_TIMEOUT_S = 60.0
CHECK_PYTEST = "import pytest"


class HiddenTests(BaseModel):
    """What the repository has to pass, and the agent never sees."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    files: Files = Field(min_length=1)
    """Put over the repository, by path. Those called test_*.py or *_test.py are run by pytest, unless `command` says otherwise."""
    removed: list[RelativePath] = Field(default_factory=list)
    """Files of the repository that its tests do without."""
    command: list[str] | None = None
    """Decides by its exit code, in place of pytest. Code under test that ends the command's process with 0 passes it."""
    timeout_s: float = Field(default=120.0, gt=0)
    must_pass: list[str] = Field(default_factory=list)
    """The ids of pytest of the tests that decide, such as tests/test_it.py::test_one; none: all of them do."""

    @model_validator(mode="after")
    def _something_runs(self) -> HiddenTests:
        if missing := [test for test in self.must_pass if test.partition("::")[0] not in self.files]:
            raise ValueError(f"must_pass names {missing[0]!r}, whose file is none of 'files'")
        if self.command is None and not self.test_files:
            raise ValueError(
                f"none of the files {sorted(self.files)} is called test_*.py or *_test.py; name a 'command'"
            )
        if self.command is not None and not self.command:
            raise ValueError("the command is empty")
        return self

    @property
    def test_files(self) -> list[str]:
        """The paths that pytest is given."""
        if self.must_pass:
            return sorted({test.partition("::")[0] for test in self.must_pass})
        paths = map(PurePosixPath, self.files)
        return sorted(str(path) for path in paths if path.match("test_*.py") or path.match("*_test.py"))


class TestResult(BaseModel):
    """The outcome of the hidden tests: how many there were, and how many of them passed."""

    __test__ = False  # pytest: not a test itself

    passed: int
    total: int
    not_passed: list[str] = Field(default_factory=list)
    """The first of those that did not, and of those that are not there."""
    absent: list[str] = Field(default_factory=list)
    """The first of those that `must_pass` names and that pytest, which has read their files to the end, did not find."""

    @property
    def all_passed(self) -> bool:
        """Whether there were tests, and each passed."""
        return 0 < self.total == self.passed


FAILED = TestResult(passed=0, total=0)
"""The result of tests that could not be run, or did not report."""

_RUN_PYTEST = """
import importlib.metadata, json, os, pkgutil, sys
import unittest.mock
import _pytest, pytest
for module in pkgutil.iter_modules(_pytest.__path__, "_pytest."):  # before a file of the repository can take its name
    importlib.import_module(module.name)
for plugin in importlib.metadata.entry_points(group="pytest11"):  # nor that of an installed plugin
    try:
        plugin.load()
    except Exception:
        pass

def main():
    job = json.loads(sys.stdin.read())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    outcomes, collected = {}, set()

    class Reporter:
        def pytest_collection_finish(self, session):
            outcomes.update((item.nodeid, None) for item in session.items)

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_makereport(self, item, call):
            report = (yield).get_result()
            called = call.excinfo is not None and isinstance(call.excinfo.value, pytest.xfail.Exception)
            marked = getattr(getattr(item, "obj", None), "__unittest_expecting_failure__", False)
            # Code under test may call pytest.xfail(), which makes no failure an expected one.
            report.fails_by_mark = report.skipped and hasattr(report, "wasxfail") and (marked or not called)

        def pytest_runtest_logreport(self, report):
            good = getattr(report, "fails_by_mark", False) or (report.passed and not hasattr(report, "wasxfail"))
            outcomes[report.nodeid] = outcomes.get(report.nodeid) is not False and good

        def pytest_collectreport(self, report):
            if report.outcome != "passed":
                outcomes[report.nodeid] = False
            else:
                collected.add(report.nodeid)

    out = os.dup(1)
    for stream in (1, 2):  # what tests print, however much, is nobody's to read
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    sys.path[:0] = [os.getcwd(), os.path.join(os.getcwd(), "src")]  # in place of an installation
    options = ["-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", "--rootdir", os.getcwd()]
    pytest.main([*options, *job["options"], *job["files"]], plugins=[Reporter()])

    def deciding(test):  # data sets cut ids in two where a parameter has a space
        cut = test not in outcomes and "[" in test
        return [test] if not cut else [found for found in outcomes if found.startswith(test + " ")] or [test]

    def is_absent(test):  # not for that its file, or its class, could not be read
        parts = test.partition("[")[0].split("::")
        above = ["::".join(parts[:count]) for count in range(1, len(parts))]
        return above[0] in collected and all(outcomes.get(one) is not False for one in above)

    decides = [deciding(test) for test in job["must_pass"]] or [[test] for test in outcomes]
    failed = [tests[0] for tests in decides if not all(outcomes.get(one) is True for one in tests)]
    shown = [one if one in outcomes else one + " (there is no such test)" for one in failed[:3]]
    absent = [one for one in failed if one not in outcomes and is_absent(one)][:3]
    counts = {"passed": len(decides) - len(failed), "total": len(decides)}
    said = json.dumps({**counts, "not_passed": shown, "absent": absent})
    os.write(out, f"\\n{job['mark']}{said}\\n".encode())
    os._exit(0)

main()
"""


async def run_hidden_tests(sandbox: Sandbox, start: bytes, end: bytes, tests: HiddenTests) -> TestResult:
    """Run the hidden tests, and return their result.

    Args:
        sandbox: A sandbox that nobody has used.
        start: The repository as the agent found it, as a tar archive.
        end: The repository as the agent left it, as a tar archive.
        tests: The tests.

    Raises:
        SandboxError: The tests cannot be put there, or be run, whatever the agent did.
        SandboxLostError: The sandbox is lost.
    """
    if tests.command is None:
        await _check_pytest(sandbox)
    else:
        await _check_program(sandbox, tests.command[0])
    try:
        await sandbox.restore(await in_thread(with_tests, start, end, tests.files, None, tests.removed))
    except SandboxLostError:
        raise
    except SandboxError:
        # Files that cannot be put anywhere are the agent's doing, if the tests can be.
        await sandbox.restore(await in_thread(with_tests, start, start, tests.files, None, tests.removed))
        return FAILED
    if tests.command is not None:
        done = await sandbox.run(tests.command, timeout_s=tests.timeout_s)
        return TestResult(passed=int(done.ok), total=1)
    return await _run_pytest(sandbox, tests)


async def tests_not_there(sandbox: Sandbox, start: bytes, solved: bytes, tests: HiddenTests) -> list[str]:
    """Return the first of the tests that `must_pass` names and that are nowhere, whatever an agent does. None is run.

    Args:
        sandbox: A sandbox that nobody has used.
        start: The repository as agents find it, as a tar archive.
        solved: The repository with its solution, or as agents find it where none is known.
        tests: The tests.

    Raises:
        SandboxError: The tests cannot be put there.
    """
    await sandbox.restore(await in_thread(with_tests, start, solved, tests.files, None, tests.removed))
    return (await _run_pytest(sandbox, tests, "--collect-only")).absent


async def _run_pytest(sandbox: Sandbox, tests: HiddenTests, *options: str) -> TestResult:
    mark = secrets.token_hex(16)
    given = {"files": tests.test_files, "mark": mark, "must_pass": tests.must_pass, "options": options}
    job = json.dumps(given).encode()
    done = await sandbox.run_python(code=_RUN_PYTEST, stdin=job, timeout_s=tests.timeout_s)
    _, said, report = done.stdout.rpartition(mark.encode())
    if not done.ok or not said:
        return FAILED
    try:
        return TestResult.model_validate_json(report.partition(b"\n")[0])
    except ValidationError:
        return FAILED


def with_tests(
    start: bytes,
    end: bytes,
    tests: Mapping[str, str],
    steers_here: Callable[[str], bool] | None = None,
    removed: Iterable[str] = (),
) -> bytes:
    """Return the repository as its tests see it: `end`, with the files of `tests`, and with what steers them as it was at the `start`.

    Args:
        start: The repository as the agent found it, as a tar archive.
        end: The repository as the agent left it, as a tar archive.
        tests: The files of the tests, by path.
        steers_here: Whether the file of a path steers tests; None: where a part of the path is one of `STEERING`. So does what links of
            such names lead to at the start.
        removed: Files that the tests do without, whoever made them.
    """
    left = Archive(end)
    result = merged(archive_of(start), left, left.members, {*tests, *removed}, steers_here or steers)
    with tarfile.open(fileobj=result, mode="w") as packed:
        add_files(packed, tests)
    return result.getvalue()


def merged(
    given: Archive,
    left: Archive,
    own: Iterable[tarfile.TarInfo],
    replaced: set[str],
    by_name: Callable[[str], bool],
) -> io.BytesIO:
    """Return an archive, without its end, of what an agent left, and what steers the tests as it was given to it.

    Args:
        given: What the agent found.
        left: What it left.
        own: Those of its members that count.
        replaced: Paths that others write.
        by_name: Whether the file of a path steers tests.
    """
    linked = _linked_from(given, by_name)

    def is_steering(path: str) -> bool:
        return path in linked or by_name(path)

    steering = [one for one in given.members if is_steering(name_of(one)) and name_of(one) not in replaced]
    replaced = replaced | {name_of(one) for one in steering}
    above: set[str] = set()
    for path in replaced:
        while (path := path.rpartition("/")[0]) and path not in above:
            above.add(path)

    @cache
    def is_below(folder: str) -> bool:
        return bool(folder) and (folder in replaced or is_below(folder.rpartition("/")[0]))

    result = io.BytesIO()
    dropped: dict[str, tarfile.TarInfo] = {}
    for one in own:
        name = name_of(one)
        in_the_way = name in replaced or (name in above and not one.isdir()) or is_below(name.rpartition("/")[0])
        if in_the_way or is_steering(name):
            dropped[one.name] = one
        elif one.islnk() and one.linkname in dropped:
            # The file has another name, which counts, and its content stands with the one that does not.
            there = dropped[one.linkname]
            alone = copy(there)
            alone.name, alone.pax_headers = one.name, {}
            result.write(alone.tobuf())
            result.write(left.raw(there)[there.offset_data - there.offset :])
        elif one.isdir() and one.mode & 0o700 != 0o700:
            opened = copy(one)
            opened.mode |= 0o700
            result.write(opened.tobuf())
        else:
            result.write(left.raw(one))
    for one in steering:
        result.write(given.raw(one))
    return result


def _linked_from(given: Archive, is_steering: Callable[[str], bool]) -> set[str]:
    """Return the paths that links with the names of steering files lead to, by way of others as well."""
    links = {name_of(one): one.linkname for one in given.members if one.issym()}
    found: set[str] = set()
    follow = [name for name in links if is_steering(name)]
    while follow:
        name = follow.pop()
        target = os.path.normpath(PurePosixPath(name).parent / links[name])
        if target not in found:
            found.add(target)
            follow += [target] if target in links else []
    return found


def steers(path: str) -> bool:
    """Return whether the file of a path decides how pytest runs, or what Python imports."""
    return _STEERING.search(f"/{path}/") is not None


async def _check_pytest(sandbox: Sandbox) -> None:
    """Check, before anything of the agent's is there, that the tests can be run.

    Raises:
        SandboxError: They cannot.
    """
    done = await sandbox.run_python(code=CHECK_PYTEST, timeout_s=CHECK_TIMEOUT_S)
    if not done.ok:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise SandboxError(
            f"hidden tests cannot be run in {sandbox.spec.image}: its python3 imports no pytest ({said or done.end_reason}); install it there"
        )


async def _check_program(sandbox: Sandbox, program: str) -> None:
    if "/" in program and not program.startswith("/"):
        return  # of the repository
    done = await sandbox.run(["/bin/sh", "-c", f"command -v {shlex.quote(program)}"], timeout_s=CHECK_TIMEOUT_S)
    if not done.ok:
        raise SandboxError(
            f"hidden tests cannot be run in {sandbox.spec.image}: it has no program {program!r}, which their command names; install it there"
        )
