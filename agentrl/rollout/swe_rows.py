"""Rows in the form of SWE-bench: a repository at a commit, an issue, and tests that have to pass once it is mended.

    swe:ROWS[@AGENT] ─► each row is checked, its test patch applied to its commit ─► a task of workflows/harness.py

ROWS is any other source of tasks (a file, `hf:...`, `python:...`). Of a row these columns are read, as SWE-bench, SWE-Gym and SWE-rebench have them:
`instance_id`, `repo`, `base_commit`, `problem_statement`, `patch`, `test_patch`, `FAIL_TO_PASS`, `PASS_TO_PASS`, and where they are there
`image_name` or `docker_image`. No repository is fetched: `repo` is looked for below the folder that AGENTRL_REPOSITORIES names.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from agentrl.episode import Task
from agentrl.errors import TaskFileError, one_line

DEFAULT_AGENT = "shell"
GIT_TIMEOUT_S = 120.0
MAX_REPOSITORY_BYTES = 32 * 2**20
"""Bytes of a repository's tar archive that go into a sandbox."""
_TAR_BLOCK = 512


def _listed(given: Any) -> Any:
    """Read a list that SWE-bench has as a text of JSON.

    Raises:
        ValueError: The text is none.
    """
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except ValueError:
        raise ValueError("a text must hold a JSON list of test ids") from None


TestIds = Annotated[list[str], BeforeValidator(_listed)]


class SweRow(BaseModel):
    """What is read of a row."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    instance_id: str = Field(min_length=1)
    repo: str = Field(pattern=r"^[\w-][\w.-]*(/[\w-][\w.-]*)*$")
    base_commit: str = Field(pattern=r"^[0-9a-zA-Z][\w./^~-]*$")
    problem_statement: str = Field(min_length=1)
    patch: str = ""
    """The reference solution, which no agent sees."""
    test_patch: str = ""
    fail_to_pass: TestIds = Field(alias="FAIL_TO_PASS", min_length=1)
    pass_to_pass: TestIds = Field(alias="PASS_TO_PASS", default_factory=list)
    image_name: str | None = None
    docker_image: str | None = None

    @property
    def must_pass(self) -> list[str]:
        """The ids of the tests that decide."""
        return list(dict.fromkeys([*self.fail_to_pass, *self.pass_to_pass]))


def tasks_of_rows(rows: Iterable[Mapping[str, Any]], agent: str = DEFAULT_AGENT) -> Iterator[Task]:
    """Yield a task of `workflows/harness.py` for each row.

    Args:
        rows: The rows.
        agent: Who works on them: "shell", or a name of `workflows/harnesses.py`.

    Raises:
        TaskFileError: A row is not in this form, or its repository, its commit or its test patch cannot be used.
    """
    for index, given in enumerate(rows):
        where = f"row {index} ({one_line(given.get('instance_id', 'without an instance_id'), 60)})"
        try:
            row = SweRow.model_validate(given)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            field = ".".join(map(str, problem["loc"]))
            message = problem["msg"].removeprefix("Value error, ")
            raise TaskFileError(f"{where}: {field}: {message}; see docs/swe_tasks.md") from None
        repository = _repository(row.repo, where)
        files, deleted = _test_files(repository, row, where)
        tests = {"files": files, "must_pass": row.must_pass}
        task: Task = {
            "harness": agent,
            "name": row.instance_id,
            "repository": {"git": str(repository), "commit": row.base_commit},
            "prompt": row.problem_statement,
            "tests": {**tests, "deleted": deleted} if deleted else tests,
            "solution": row.patch,
        }
        image = row.docker_image or row.image_name
        yield {**task, "image": image} if image else task


def split_agent(source: str) -> tuple[str, str]:
    """Return what stands before and after the last `@` of a source, which in `hf:NAME@SPLIT` alone names no agent."""
    if source.count("@") < (2 if source.startswith("hf:") else 1):
        return source, DEFAULT_AGENT
    rows, _, agent = source.rpartition("@")
    return rows, agent


def _repository(repo: str, where: str) -> Path:
    root = Path(os.environ.get("AGENTRL_REPOSITORIES") or "repositories").absolute()
    for name in (repo, repo.replace("/", "__")):
        for folder in (root / name, root / f"{name}.git"):
            if folder.is_dir():
                return folder
    raise TaskFileError(
        f"{where}: the repository {repo} is not in {root}; clone it there (git clone --mirror URL {root / repo}.git), or set "
        "AGENTRL_REPOSITORIES to the folder that has it"
    )


def _test_files(repository: Path, row: SweRow, where: str) -> tuple[dict[str, str], list[str]]:
    """Return the files of the tests, and the paths that the test patch deletes.

    The files are those that the test patch makes or changes, and those of the tests that have to pass.

    Raises:
        TaskFileError: They cannot be had.
    """
    named = []
    for test in row.must_pass:
        path, colons, _ = test.partition("::")
        if not colons or path.startswith("/") or ".." in path.split("/"):
            raise TaskFileError(
                f"{where}: the test {test!r} is no id of pytest, such as tests/test_it.py::test_one; write the ids of FAIL_TO_PASS and "
                "PASS_TO_PASS so, or leave the row out"
            )
        named.append(path)
    with tempfile.TemporaryDirectory(prefix="agentrl-swe-") as folder:
        # Git writes to the folder alone: the repository stays as it is.
        (objects := Path(folder) / "objects").mkdir()
        found = _git(repository, ["rev-parse", "--path-format=absolute", "--git-path", "objects"], where)
        env = {
            "GIT_INDEX_FILE": str(Path(folder) / "index"),
            "GIT_OBJECT_DIRECTORY": str(objects),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": found.decode().strip(),
        }

        def git(*command: str, stdin: str = "") -> bytes:
            return _git(repository, command, where, env=env, stdin=stdin)

        git("read-tree", f"{row.base_commit}^{{commit}}")
        _check_size(git, row.base_commit, where)
        changed: list[str] = []
        deleted: list[str] = []
        if row.test_patch.strip():
            git("apply", "--cached", "--whitespace=nowarn", "-", stdin=row.test_patch)
            differs = ("diff", "--cached", "--name-only", "--no-renames", "-z")
            changed, deleted = (
                git(*differs, f"--diff-filter={kind}", row.base_commit).decode().split("\0")[:-1]
                for kind in ("AM", "D")
            )
        files = {}
        for path in dict.fromkeys([*changed, *named]):
            content = git("cat-file", "blob", f":{path}")
            try:
                files[path] = content.decode()
            except UnicodeDecodeError:
                raise TaskFileError(f"{where}: the test file {path} is not UTF-8; leave the row out") from None
    return files, deleted


def _check_size(git: Callable[..., bytes], commit: str, where: str) -> None:
    """Refuse what is too large for a sandbox.

    Raises:
        TaskFileError: It is.
    """
    sizes = [line.split()[3] for line in git("ls-tree", "-r", "-l", "--full-tree", commit).splitlines()]
    least = sum(_TAR_BLOCK + -(-int(size) // _TAR_BLOCK) * _TAR_BLOCK for size in sizes if size != b"-")
    # The attributes of a repository may keep files out of its archive, which takes long to make.
    if least > MAX_REPOSITORY_BYTES and (size := len(git("archive", "--format=tar", commit))) > MAX_REPOSITORY_BYTES:
        raise TaskFileError(
            f"{where}: the repository has {size} bytes at {commit}; at most {MAX_REPOSITORY_BYTES} go into a sandbox; leave the row "
            "out, or make it a terminal task, whose image has the repository (docs/terminal_tasks.md)"
        )


def _git(
    repository: Path, command: Sequence[str], where: str, *, env: Mapping[str, str] | None = None, stdin: str = ""
) -> bytes:
    try:
        done = subprocess.run(  # noqa: S603
            ["git", "-C", str(repository), *command],  # noqa: S607
            input=stdin.encode(),
            capture_output=True,
            env={**os.environ, **(env or {})},
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TaskFileError(f"{where}: git cannot be run: {error}") from error
    if done.returncode:
        said = one_line(done.stderr.decode(errors="replace").strip())
        what = (
            "test_patch does not apply to base_commit" if "apply" in command else f"{repository}: {' '.join(command)}"
        )
        raise TaskFileError(f"{where}: {what}: {said}")
    return done.stdout
