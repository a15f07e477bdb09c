"""A repository that an agent works on, where it is not in the image already, and the hidden tests that grade what the agent leaves.

    a folder, files or a commit ─► a tar archive ─► the container of the agent
    its files at the start ─► the test patch applied to them, on this machine ─► files that are laid over
    the state that the agent left, in a new container ─► files laid over it ─► pytest, or a command ─► which tests passed?

The tests run as their authors meant: the image's own Python, plugins and configuration. So an agent that replaces these in its image steers
its tests (docs/agents.md).
"""

from __future__ import annotations

import io
import os
import re
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated

from anyio.to_thread import run_sync as in_thread
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from agentrl.errors import ConfigError, SandboxError, TaskFileError, one_line
from agentrl.sandboxes.container import Container
from agentrl.system.git import run_git
from agentrl.workflows.black_box import write_files
from agentrl.workflows.container_task import if_there

PYTEST = ("python3", "-m", "pytest", "-rA", "--tb=no", "--show-capture=no", "-p", "no:cacheprovider")
OUTPUT_MB = 16.0
SHOWN_CHARACTERS = 2000
_NO_REPOSITORY = {"GIT_DIR": os.devnull, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
_PATCHED = re.compile(r"^(?:(?:---|\+\+\+) [ab]/|(?:rename|copy) (?:from|to) )(.+?)\s*$", re.MULTILINE)
_OUTCOMES = (
    re.compile(r"^(?P<outcome>PASSED|XFAIL|FAILED|ERROR|XPASS) (?P<id>\S.*?)(?: - .*)?$", re.MULTILINE),
    re.compile(r"^(?P<id>\S.*?) \.\.\. (?P<outcome>ok|expected failure|FAIL|ERROR)$", re.MULTILINE),
    re.compile(r"^(?P<id>test_\w+) (?P<outcome>ok|[fF]|E)$", re.MULTILINE),
)
"""Lines of `pytest -rA`, of `unittest -v`, and of sympy's own runner."""
_GOOD = {"PASSED", "XFAIL", "ok", "expected failure"}


@dataclass(frozen=True)
class Overlay:
    """Files that are laid over a repository."""

    paths: Sequence[str] = ()
    """Their paths, and those of files that are removed from it."""
    archive: bytes = b""
    """The files, as a tar archive."""

    async def put(self, container: Container, folder: str) -> None:
        """Put them over the repository in a container, in the place of the files that have their paths.

        Raises:
            SandboxError: They cannot be put there.
            SandboxLostError: The container has ended.
        """
        await container.run(["rm", "-rf", *(f"{folder}/{path}" for path in self.paths)], user="0", cwd="/")
        await container.run(["mkdir", "-p", folder], user="0", cwd="/")
        await container.unpack(self.archive, folder)


def relative_path(path: str) -> str:
    """Return a path that stays below its folder.

    Raises:
        ValueError: It does not.
    """
    parts = path.split("/")
    if {"", ".", ".."} & {*parts} or "\0" in path:
        raise ValueError("a path must be relative, below the repository, and without '.' and '..'")
    return path


RelativePath = Annotated[str, AfterValidator(relative_path)]
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

    def missing(self) -> str | None:
        """Return what of it is not on this machine, with the remedy; None where all is there."""
        if self.folder is not None and not self.folder.is_dir():
            return (
                f"repository = {str(self.folder)!r}: there is no such folder in {Path.cwd()}; name one, or use 'files'"
            )
        try:
            if self.git is not None:
                run_git(self.git, "cat-file", "-e", f"{self.commit}^{{commit}}")
        except OSError as error:
            place = f"repository.git = {str(self.git)!r}, commit = {self.commit!r}"
            return f"{place}: {one_line(error)}; clone or fetch it there, or correct the task"
        return None

    def packed(self) -> bytes:
        """Return the files as a tar archive.

        Raises:
            ConfigError: They cannot be read.
        """
        if missing := self.missing():
            raise ConfigError(missing)
        if self.folder is not None:
            return pack_folder(self.folder)
        with tempfile.TemporaryDirectory(prefix="agentrl-files-") as here:
            files = Path(here, "files")
            files.mkdir()
            write_files(files, self.files or {})
            if self.git is not None:
                words = ("-c", f"core.hooksPath={os.devnull}", "--work-tree", str(files), "checkout", self.commit)
                run_git(self.git, *words, "--", ".", GIT_INDEX_FILE=str(Path(here, "index")))
            return pack_folder(files)

    async def put(self, container: Container, folder: str) -> None:
        """Put the files into a folder of a container, where they belong to its user.

        Raises:
            ConfigError: They cannot be read.
            SandboxLostError: The container has ended.
        """
        await container.unpack(await in_thread(self.packed), folder)
        owner = (await container.run(["id", "-u"])).stdout.decode().strip()
        await container.run(["chown", "-R", owner, folder], user="0", cwd="/")


def pack_folder(folder: Path, name: str = ".") -> bytes:
    """Return the files of a folder as a tar archive: everybody may read them, they belong to root, and `.git` is left out."""

    def shown(one: tarfile.TarInfo) -> tarfile.TarInfo:
        one.uid = one.gid = 0
        one.uname = one.gname = ""
        one.mode |= 0o755 if one.name.endswith(".sh") else 0o644
        return one

    result = io.BytesIO()
    with tarfile.open(fileobj=result, mode="w") as packed:
        for path in folder.rglob("*"):
            below = path.relative_to(folder)
            # Folders are left out: they may be there already, and belong to another.
            if below.parts[0] != ".git" and (path.is_symlink() or not path.is_dir()):
                packed.add(path, f"{name}/{below}", recursive=False, filter=shown)
    return result.getvalue()


class HiddenTests(BaseModel):
    """The tests that the repository has to pass, and the agent never sees."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    files: Files = Field(default_factory=dict)
    """Put over the repository, by path."""
    patch: str = ""
    """Makes, changes and removes further files of the repository as agents find it, in the form of `git diff`."""
    command: list[str] | None = None
    """Runs the tests; None: pytest, on the files of `must_pass`, or on those called test_*.py or *_test.py of `files` and `patch`."""
    timeout_s: float = Field(default=1800.0, gt=0)
    must_pass: list[str] = Field(default_factory=list)
    """The ids of the tests that decide, as `pytest -rA` or `unittest -v` prints them; none: the exit code decides."""

    @model_validator(mode="after")
    def _something_runs(self) -> HiddenTests:
        for path in paths_of(self.patch):
            relative_path(path)
        if not (self.command or self.test_files):
            raise ValueError(
                "no file of 'files' or 'patch' is called test_*.py or *_test.py; name a 'command' that runs the tests"
            )
        return self

    @property
    def test_files(self) -> list[str]:
        """The paths that pytest is given."""
        if self.must_pass:
            return sorted({test.partition("::")[0] for test in self.must_pass})
        paths = [PurePosixPath(path) for path in (*self.files, *paths_of(self.patch))]
        return sorted({str(path) for path in paths if path.match("test_*.py") or path.match("*_test.py")})

    async def check_program(self, container: Container, begin: str) -> None:
        """Check, before an agent is there, that the program of the tests is.

        Raises:
            SandboxError: It is not.
        """
        words = ["sh", "-c", 'command -v "$0"', self.command[0]] if self.command else [*PYTEST[:3], "--version"]
        done = await container.run(after(begin, words))
        if not done.ok:
            missing = f"no program {self.command[0]!r}" if self.command else "no python3 that imports pytest"
            said = one_line(done.stderr.decode(errors="replace"), 200)
            raise SandboxError(
                f"hidden tests cannot be run in {container.spec.image}: it has {missing} ({said}); install it there"
            )

    async def run(self, container: Container, begin: str) -> tuple[float, str]:
        """Run the tests, and return the share of those that decide which passed, and the end of what was printed.

        Args:
            container: A new container of the state that an agent left, with their files laid over it.
            begin: A line of sh that goes before.

        Raises:
            SandboxLostError: The container has ended.
        """
        command = after(begin, self.command or [*PYTEST, *self.test_files])
        done = await container.run(command, timeout_s=self.timeout_s, output_mb=OUTPUT_MB)
        await container.check_alive()
        printed = (done.stdout + done.stderr).decode(errors="replace")
        if not self.must_pass:
            return float(done.ok), printed[-SHOWN_CHARACTERS:]
        outcomes = outcomes_of(printed)
        failed = [test for test in self.must_pass if not _has_passed(test, outcomes)]
        share = 1 - len(failed) / len(self.must_pass)
        return share, f"not passed: {', '.join(failed[:3])} | {printed[-SHOWN_CHARACTERS:]}"


def paths_of(patch: str) -> list[str]:
    """Return the paths that a patch names."""
    return list(dict.fromkeys(_PATCHED.findall(patch)))


async def overlay_of(patch: str, files: Mapping[str, str], container: Container, folder: str) -> Overlay:
    """Return what a patch makes of the files of a container, which stay as they are, and further files.

    Raises:
        TaskFileError: The patch does not apply.
        SandboxLostError: The container has ended.
    """
    paths = paths_of(patch)
    found = {path: await if_there(container.read(f"{folder}/{path}")) for path in paths}

    def pack() -> bytes:
        with tempfile.TemporaryDirectory(prefix="agentrl-patch-") as here:
            write_files(Path(here), {path: data for path, data in found.items() if data is not None})
            try:
                if patch.strip():
                    run_git(Path(here), "apply", "--whitespace=nowarn", "-", stdin=patch, **_NO_REPOSITORY)
            except OSError as error:
                raise TaskFileError(
                    f"a patch does not apply to {folder} of the image {container.spec.image}: {one_line(error)}"
                ) from error
            write_files(Path(here), files)
            return pack_folder(Path(here))

    return Overlay([*paths, *files], await in_thread(pack))


def outcomes_of(printed: str) -> dict[str, bool]:
    """Return whether each test that an output names has passed. One that is named twice has to pass twice."""
    outcomes: dict[str, bool] = {}
    for form in _OUTCOMES:
        for found in form.finditer(printed):
            test = found["id"]
            outcomes[test] = outcomes.get(test, True) and found["outcome"] in _GOOD
    return outcomes


def _has_passed(test: str, outcomes: Mapping[str, bool]) -> bool:
    """Return whether a test has passed. Data sets cut ids in two where a parameter has a space."""
    if test in outcomes or "[" not in test:
        return outcomes.get(test, False)
    cut = [passed for found, passed in outcomes.items() if found.startswith(f"{test} ")]
    return bool(cut) and all(cut)


def after(begin: str, command: list[str]) -> list[str]:
    """Return a command that a line of sh goes before."""
    return ["sh", "-c", f'{begin}\nexec "$@"', "sh", *command]
