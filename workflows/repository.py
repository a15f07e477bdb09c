"""A repository that an agent works on: where it comes from, what is left of it, and the hidden tests that run on that.

    folder, files or commit ─► tar ─► the agent's sandbox ─► tar ─► with the hidden tests put over it ─► a new sandbox ─► passed?

What the agent left decides through the code under test alone. Files of the hidden tests take the place of whatever has their path, and those that
steer pytest (`STEERING`) are as they were at the start. The code runs in the process of its tests, as it must where tests import a repository's
modules: ending that process, skipping a test or printing a report earns nothing, but what looks through the memory of its own process is not kept
from it. Tests of one program, in `code.py`, are safe from that too.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Annotated

from anyio.to_thread import run_sync as in_thread
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from agentrl.errors import ConfigError, SandboxError, SandboxLostError, one_line
from agentrl.machine.git import run_git
from agentrl.sandboxes import Sandbox
from agentrl.sandboxes.inside.files import MAX_PACKED_BYTES

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


def _relative(path: str) -> str:
    parts = path.split("/")
    if {"", ".", ".."} & {*parts} or "\0" in path:
        raise ValueError("a path must be relative, below the repository, and without '.' and '..'")
    return path


RelativePath = Annotated[str, AfterValidator(_relative)]
Files = dict[RelativePath, str]
"""Texts by path."""


class Repository(BaseModel):
    """Where the files come from; one of the three."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: Path | None = None
    """A folder of this machine, without its `.git`."""
    files: Files | None = None
    git: Path | None = None
    """A git repository of this machine. Its history stays outside: it may have the solution."""
    commit: str = Field(default="HEAD", pattern=r"^[A-Za-z0-9][\w./^~-]*$")

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, given: object) -> object:
        return {"folder": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _one_source(self) -> Repository:
        named = [name for name in ("folder", "files", "git") if getattr(self, name) is not None]
        if len(named) != 1:
            raise ValueError(f"a repository has one of 'folder', 'files' and 'git'; this has {named or 'none'}")
        return self

    def packed(self) -> bytes:
        """Return the files as a tar archive.

        Raises:
            ConfigError: They cannot be read, or are too large.
        """
        if self.files is not None:
            packed = pack(self.files)
        elif self.git is not None:
            packed = _archive(self.git, self.commit)
        else:
            assert self.folder is not None
            packed = _pack_folder(self.folder)
        if len(packed) > MAX_PACKED_BYTES:
            raise ConfigError(
                f"the repository has {len(packed)} bytes packed; at most {MAX_PACKED_BYTES} go into a sandbox"
            )
        return packed


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

    @property
    def all_passed(self) -> bool:
        """Whether there were tests, and each passed."""
        return 0 < self.total == self.passed


FAILED = TestResult(passed=0, total=0)
"""The result of tests that could not be run, or did not report."""

_RUN_PYTEST = """
import importlib, json, os, pkgutil, sys
import unittest.mock
import _pytest, pytest
for module in pkgutil.iter_modules(_pytest.__path__, "_pytest."):  # before a file of the repository can take its name
    importlib.import_module(module.name)

def main():
    job = json.loads(sys.stdin.read())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    outcomes = {}

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

    out = os.dup(1)
    for stream in (1, 2):  # what tests print, however much, is nobody's to read
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    sys.path[:0] = [os.getcwd(), os.path.join(os.getcwd(), "src")]  # in place of an installation
    options = ["-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", "--rootdir", os.getcwd()]
    pytest.main([*options, *job["files"]], plugins=[Reporter()])

    def deciding(test):  # data sets cut ids in two where a parameter has a space
        cut = test not in outcomes and "[" in test
        return [test] if not cut else [found for found in outcomes if found.startswith(test + " ")] or [test]

    decides = [deciding(test) for test in job["must_pass"]] or [[test] for test in outcomes]
    passed = sum(all(outcomes.get(one) is True for one in tests) for tests in decides)
    said = json.dumps({"passed": passed, "total": len(decides)})
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
        SandboxLostError: The sandbox is lost.
    """
    try:
        await sandbox.restore(await in_thread(with_tests, start, end, tests.files, None, tests.removed))
    except SandboxLostError:
        raise
    except SandboxError:
        return FAILED  # files that cannot be put anywhere are the agent's doing
    if tests.command is not None:
        done = await sandbox.run(tests.command, timeout_s=tests.timeout_s)
        return TestResult(passed=int(done.ok), total=1)
    mark = secrets.token_hex(16)
    job = json.dumps({"files": tests.test_files, "mark": mark, "must_pass": tests.must_pass}).encode()
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
    by_name = steers_here or steers
    replaced = {*tests, *removed}
    result = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(end)) as left,
        tarfile.open(fileobj=io.BytesIO(start)) as given,
        tarfile.open(fileobj=result, mode="w") as packed,
    ):
        linked = _linked_from(given, by_name)

        def is_steering(path: str) -> bool:
            return path in linked or by_name(path)

        steering = [one for one in given if is_steering(_name(one)) and _name(one) not in replaced]
        replaced.update(map(_name, steering))
        above = {str(folder) for path in replaced for folder in PurePosixPath(path).parents}
        for one in left:
            name = _name(one)
            below = any(str(folder) in replaced for folder in PurePosixPath(name).parents)
            in_the_way = name in above and not one.isdir()
            if name in replaced or below or in_the_way or is_steering(name):
                continue
            if one.isdir():
                one.mode |= 0o700
            _copy(left, one, packed)
        for one in steering:
            _copy(given, one, packed)
        _add_files(packed, tests)
    return result.getvalue()


def _linked_from(given: tarfile.TarFile, is_steering: Callable[[str], bool]) -> set[str]:
    """Return the paths that links with the names of steering files lead to, by way of others as well."""
    links = {_name(one): one.linkname for one in given if one.issym()}
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
    return any(fnmatchcase(part, name) for part in path.split("/") for name in STEERING)


def with_files(start: bytes, files: Mapping[str, str]) -> bytes:
    """Return the repository with further files, which take the place of those that are there."""
    result = io.BytesIO(start)
    with tarfile.open(fileobj=result, mode="a") as packed:
        _add_files(packed, files)
    return result.getvalue()


def with_patch(start: bytes, patch: str) -> bytes:
    """Return the repository with a patch applied to it, packed anew.

    Raises:
        ConfigError: The patch does not apply.
    """
    with tempfile.TemporaryDirectory(prefix="agentrl-patch-") as folder:
        with tarfile.open(fileobj=io.BytesIO(start)) as given:
            # Links may lead anywhere, as a repository's do: nothing is written through them, and nothing is read.
            given.extractall(folder, filter="tar")
        if patch.strip():
            # In no repository, least of all in one that these files make up: its settings may name programs for git to run here.
            nothing = {"GIT_DIR": os.devnull, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
            try:
                run_git(Path(folder), "apply", "--whitespace=nowarn", "-", stdin=patch, **nothing)
            except OSError as error:
                raise ConfigError(f"the patch does not apply: {one_line(error)}") from error
        return _pack_folder(Path(folder))


def pack(files: Mapping[str, str]) -> bytes:
    """Return texts as a tar archive."""
    result = io.BytesIO()
    with tarfile.open(fileobj=result, mode="w") as packed:
        _add_files(packed, files)
    return result.getvalue()


def _add_files(packed: tarfile.TarFile, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        data = text.encode()
        info = tarfile.TarInfo(path)
        info.size, info.mode = len(data), 0o755 if text.startswith("#!") else 0o644
        packed.addfile(info, io.BytesIO(data))


def _copy(source: tarfile.TarFile, one: tarfile.TarInfo, target: tarfile.TarFile) -> None:
    target.addfile(one, source.extractfile(one) if one.isreg() else None)


def _name(one: tarfile.TarInfo) -> str:
    return one.name.removeprefix("./").rstrip("/")


def _pack_folder(folder: Path) -> bytes:
    if not folder.is_dir():
        raise ConfigError(
            f"repository = {str(folder)!r}: there is no such folder in {Path.cwd()}; name one, or use 'files'"
        )

    def shown(one: tarfile.TarInfo) -> tarfile.TarInfo | None:
        one.uid = one.gid = 0
        one.uname = one.gname = ""
        return None if _name(one) == ".git" else one

    result = io.BytesIO()
    with tarfile.open(fileobj=result, mode="w") as packed:
        for path in _sorted(folder.iterdir()):
            packed.add(path, arcname=path.name, filter=shown)
            if result.tell() > MAX_PACKED_BYTES:
                break
    return result.getvalue()


def _sorted(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: path.name)


def _archive(repository: Path, commit: str) -> bytes:
    asked = ("rev-parse", "--path-format=absolute", "--git-path", "objects", f"{commit}^{{commit}}")
    # Attributes of the repository may leave files out of an archive, write its history into others, or name programs of this machine.
    with tempfile.TemporaryDirectory(prefix="agentrl-archive-") as folder:
        for below in ("refs", "info", "objects"):
            Path(folder, below).mkdir()
        Path(folder, "HEAD").write_text("ref: refs/heads/none\n")
        Path(folder, "info", "attributes").write_text("* -export-ignore -export-subst -filter -text -ident\n")
        try:
            objects, name = os.fsdecode(run_git(repository, *asked)).splitlines()
            env = {"GIT_DIR": folder, "GIT_ALTERNATE_OBJECT_DIRECTORIES": objects}
            return run_git(Path(folder), "archive", "--format=tar", name, **env)
        except OSError as error:
            raise ConfigError(
                f"repository.git = {str(repository)!r}, commit = {commit!r}: {one_line(error)}"
            ) from error
