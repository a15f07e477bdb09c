"""The hidden tests of a repository, run in a container of the state that an agent left.

    the container at its start ─► the test patch applied to its files, on this machine ─► files that are laid over
    the state that the agent left, in a new container ─► files laid over it ─► pytest, or a command ─► which tests passed?

The tests run as their authors meant: the image's own Python, plugins and configuration. So an agent that replaces these in its image steers
its tests (docs/swe_tasks.md).
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from anyio.to_thread import run_sync as in_thread
from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentrl.errors import SandboxError, TaskFileError, one_line
from agentrl.machine.git import run_git
from agentrl.sandboxes.container import Container
from agentrl.workflows.agent_work import if_there
from agentrl.workflows.repository import Files, pack, relative_path

PYTEST = ("python3", "-m", "pytest", "-rA", "--tb=no", "--show-capture=no", "-p", "no:cacheprovider")
OUTPUT_MB = 16.0
SHOWN_CHARACTERS = 2000
_NO_REPOSITORY = {"GIT_DIR": os.devnull, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
_PATCHED = re.compile(r"^(?:---|\+\+\+) [ab]/(.+?)\s*$", re.MULTILINE)
_OUTCOMES = (
    re.compile(r"^(?P<outcome>PASSED|XFAIL|FAILED|ERROR|XPASS) (?P<id>\S.*?)(?: - .*)?$", re.MULTILINE),
    re.compile(r"^(?P<id>\S.*?) \.\.\. (?P<outcome>ok|expected failure|FAIL|ERROR)$", re.MULTILINE),
    re.compile(r"^(?P<id>test_\w+) (?P<outcome>ok|[fF]|E)$", re.MULTILINE),
)
"""Lines of `pytest -rA`, of `unittest -v`, and of sympy's own runner."""
_GOOD = {"PASSED", "XFAIL", "ok", "expected failure"}

Overlay = Mapping[str, bytes | None]
"""Files that are laid over a repository, by path; None: it is removed."""


class HiddenTests(BaseModel):
    """What the repository has to pass, and the agent never sees."""

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


def paths_of(patch: str) -> list[str]:
    """Return the paths that a patch names."""
    return list(dict.fromkeys(_PATCHED.findall(patch)))


async def patched(patch: str, container: Container, folder: str) -> Overlay:
    """Return what a patch makes of the files of a container, which stay as they are.

    Raises:
        TaskFileError: The patch does not apply.
        SandboxLostError: The container has ended.
    """
    paths = paths_of(patch)
    found = {path: await if_there(container.read(f"{folder}/{path}")) for path in paths}

    def apply() -> Overlay:
        with tempfile.TemporaryDirectory(prefix="agentrl-patch-") as here:
            files = {path: Path(here, path) for path in paths}
            for path, data in found.items():
                if data is not None:  # else the patch makes it
                    files[path].parent.mkdir(parents=True, exist_ok=True)
                    files[path].write_bytes(data)
            try:
                run_git(Path(here), "apply", "--whitespace=nowarn", "-", stdin=patch, **_NO_REPOSITORY)
            except OSError as error:
                raise TaskFileError(
                    f"a patch does not apply to {folder} of the image {container.spec.image}: {one_line(error)}"
                ) from error
            return {
                path: file.read_bytes() if file.is_file() and not file.is_symlink() else None
                for path, file in files.items()
            }

    return await in_thread(apply) if patch.strip() else {}


async def lay_over(overlay: Overlay, container: Container, folder: str) -> None:
    """Put files over a repository in a container, in the place of whatever has their paths.

    Raises:
        SandboxError: They cannot be put there.
        SandboxLostError: The container has ended.
    """
    await container.run(["rm", "-rf", *(f"{folder}/{path}" for path in overlay)], user="0", cwd="/")
    await container.run(["mkdir", "-p", folder], user="0", cwd="/")
    await container.unpack(pack({path: data for path, data in overlay.items() if data is not None}), folder)


async def check_tests_run(tests: HiddenTests, container: Container, begin: str) -> None:
    """Check, before an agent is there, that the program of the tests is.

    Raises:
        SandboxError: It is not.
    """
    words = ["sh", "-c", 'command -v "$0"', tests.command[0]] if tests.command else [*PYTEST[:3], "--version"]
    done = await container.run(after(begin, words))
    if not done.ok:
        missing = f"no program {tests.command[0]!r}" if tests.command else "no python3 that imports pytest"
        said = one_line(done.stderr.decode(errors="replace"), 200)
        raise SandboxError(
            f"hidden tests cannot be run in {container.spec.image}: it has {missing} ({said}); install it there"
        )


async def run_hidden_tests(tests: HiddenTests, container: Container, begin: str) -> tuple[float, str]:
    """Run the tests, and return the share of those that decide which passed, and the end of what was printed.

    Args:
        tests: The tests.
        container: A new container of the state that an agent left, with their files laid over it.
        begin: A line of sh that goes before.

    Raises:
        SandboxLostError: The container has ended.
    """
    command = after(begin, tests.command or [*PYTEST, *tests.test_files])
    done = await container.run(command, timeout_s=tests.timeout_s, output_mb=OUTPUT_MB)
    await container.check_alive()
    printed = (done.stdout + done.stderr).decode(errors="replace")
    if not tests.must_pass:
        return float(done.ok), printed[-SHOWN_CHARACTERS:]
    outcomes = outcomes_of(printed)
    failed = [test for test in tests.must_pass if not _has_passed(test, outcomes)]
    share = 1 - len(failed) / len(tests.must_pass)
    return share, f"not passed: {', '.join(failed[:3])} | {printed[-SHOWN_CHARACTERS:]}"


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
