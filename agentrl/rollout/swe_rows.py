"""Rows in the form of SWE-bench: a repository at a commit, an issue, and tests that have to pass once it is mended.

    swe:ROWS[@AGENT] ─► each row is checked, its test patch applied to its commit ─► a task of workflows/harness.py

ROWS is any other source of tasks (a file, `hf:...`, `python:...`). Of a row these columns are read, as SWE-bench, SWE-Gym and SWE-rebench have them:
`instance_id`, `repo`, `base_commit`, `problem_statement`, `patch`, `test_patch`, `FAIL_TO_PASS`, `PASS_TO_PASS`, and where they are there
`image_name` or `docker_image`. No repository is fetched: `repo` is looked for below the folder that AGENTRL_REPOSITORIES names.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from shutil import which
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from agentrl.episode import Task
from agentrl.errors import TaskFileError, one_line
from agentrl.machine.git import NO_GIT, run_git
from agentrl.machine.sandbox_bounds import FILES, MAX_PACKED_BYTES
from agentrl.rollout.task_faults import check_all_usable, unusable_task
from agentrl.rollout.task_folders import DEFAULT_AGENT
from agentrl.rollout.task_settings import ImageName
from agentrl.rollout.task_type import first_problem

TAR_BLOCK = 512
_WORD = re.compile(r"\w+")


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
    image_name: ImageName | None = None
    docker_image: ImageName | None = None

    @property
    def must_pass(self) -> list[str]:
        """The ids of the tests that decide."""
        return list(dict.fromkeys([*self.fail_to_pass, *self.pass_to_pass]))


def tasks_of_rows(
    rows: Sequence[Mapping[str, Any]],
    agent: str = DEFAULT_AGENT,
    *,
    source: str = "swe:ROWS",
    on_fault: Callable[[Mapping[str, Any], TaskFileError], Task] | None = None,
) -> Iterator[Task]:
    """Yield a task of `workflows/harness.py` for each row.

    Args:
        rows: The rows.
        agent: Who works on them: "shell", or a name of `workflows/harnesses.py`.
        source: What messages call the rows.
        on_fault: What gives a task in place of a row that cannot be used. Default: all such rows are one error.

    Raises:
        TaskFileError: Some rows are not in this form, or their repository, their commit or their test patch cannot be used; or there is
            no git, which reads them.
    """
    if which("git") is None:
        raise TaskFileError(f"{source}: {NO_GIT}: it reads the repositories of the rows")
    faults = []
    for index, given in enumerate(rows):
        try:
            yield _task_of_row(given, index, agent)
        except TaskFileError as error:
            if on_fault is not None:
                yield on_fault(given, error)
            else:
                faults.append(str(error))
    check_all_usable(source, "rows", faults, len(rows))


def unusable_row(given: Mapping[str, Any], error: TaskFileError) -> Task:
    """Return a task that stands for a row which cannot be used, for `agentrl vet`."""
    name = one_line(given.get("instance_id", "a row"), 60)
    return unusable_task(name, error, harness=DEFAULT_AGENT, repository={}, prompt="", tests={}, solution="")


def _task_of_row(given: Mapping[str, Any], index: int, agent: str) -> Task:
    where = f"row {index} ({one_line(given.get('instance_id', 'without an instance_id'), 60)})"
    try:
        row = SweRow.model_validate(given)
    except ValidationError as error:
        raise TaskFileError(f"{where}: {first_problem(error)}; see docs/swe_tasks.md") from None
    repository = _repository(row.repo, where)
    commit, tests = _commit_and_tests(repository, row, where)
    task: Task = {
        "harness": agent,
        "name": row.instance_id,
        "repository": {"git": str(repository), "commit": commit},
        "prompt": row.problem_statement,
        "tests": {**tests, "must_pass": row.must_pass},
        "solution": row.patch,
    }
    image = row.docker_image or row.image_name
    return {**task, "image": image} if image else task


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


def _commit_and_tests(repository: Path, row: SweRow, where: str) -> tuple[str, dict[str, Any]]:
    """Return the commit by its hash, as names move on, and `files` and `removed` of the tests.

    The files are those that the test patch makes or changes, and those of the tests that have to pass.

    Raises:
        TaskFileError: They cannot be had.
    """
    named = _named_files(row.must_pass, where)
    with tempfile.TemporaryDirectory(prefix="agentrl-swe-") as folder:
        # Git writes to the folder alone: the repository stays as it is.
        (objects := Path(folder) / "objects").mkdir()
        found = _git(repository, where, "rev-parse", "--path-format=absolute", "--git-path", "objects")
        env = {
            "GIT_INDEX_FILE": str(Path(folder) / "index"),
            "GIT_OBJECT_DIRECTORY": str(objects),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": found.decode().strip(),
        }

        def git(*command: str, stdin: str = "") -> bytes:
            return _git(repository, where, *command, stdin=stdin, **env)

        def is_there(word: str) -> bool:
            try:
                run_git(repository, "grep", "--cached", "-q", "-w", "-F", "-e", word, "--", "*.py", **env)
            except OSError:  # so it says that it finds nothing
                return False
            return True

        git("read-tree", f"{row.base_commit}^{{commit}}")
        commit = git("rev-parse", "--verify", f"{row.base_commit}^{{commit}}").decode().strip()
        _check_size(git("ls-tree", "-r", "-l", "-z", commit), where)
        changed: list[str] = []
        removed: list[str] = []
        if row.test_patch.strip():
            git("apply", "--cached", "--whitespace=nowarn", "-", stdin=row.test_patch)
            options = ("--cached", "--name-only", "--no-renames", "-z", commit)
            changed = _paths(git("diff", "--diff-filter=d", *options), where)
            removed = _paths(git("diff", "--diff-filter=D", *options), where)
        links = _links(git("ls-files", "--stage", "-z"))
        files = {}
        for path in dict.fromkeys([*changed, *named]):
            content = git("cat-file", "blob", f":{path}")
            if os.fsencode(path) in links:
                raise TaskFileError(f"{where}: the test file {path} is a link; leave the row out")
            files[path] = _decoded(content, f"{where}: the test file {path}")
        for test in row.must_pass:
            _check_named(test, files[test.partition("::")[0]], is_there, where)
    return commit, {"files": files, "removed": removed}


def _named_files(tests: Iterable[str], where: str) -> list[str]:
    """Return the files of tests, by the ids that pytest has for them.

    Raises:
        TaskFileError: One is no such id.
    """
    files = []
    for test in tests:
        path, colons, _ = test.partition("::")
        if not colons or path.startswith("/") or ".." in path.split("/"):
            raise TaskFileError(
                f"{where}: the test {test!r} is no id of pytest, such as tests/test_it.py::test_one; write the ids of FAIL_TO_PASS and "
                "PASS_TO_PASS so, or leave the row out"
            )
        files.append(path)
    return files


def _check_named(test: str, text: str, is_in_repository: Callable[[str], bool], where: str) -> None:
    """Check that code of the repository or its tests has the name of a test, or one that a decorator may have made it of.

    Whether pytest finds the test shows when it is run (`workflows/hidden_tests.py`): this is what can be said before.

    Args:
        test: The id.
        text: The content of its file.
        is_in_repository: Whether any code of the repository has a word.
        where: Names the row in messages.

    Raises:
        TaskFileError: There is no such name.
    """
    path, *names = test.partition("[")[0].split("::")
    if not path.endswith(".py"):
        return
    words = {*_WORD.findall(text)}
    for name in filter(str.isidentifier, names):
        parts = name.split("_")
        possible = {name, *("_".join(parts[:count]) for count in range(2, len(parts)))}
        if not possible & words and not is_in_repository(name):
            raise TaskFileError(
                f"{where}: the test {test!r} is nowhere: neither its file nor any other of the repository has the name {name!r}; correct "
                "the id in FAIL_TO_PASS or PASS_TO_PASS, or leave the row out"
            )


def _paths(listed: bytes, where: str) -> list[str]:
    return _decoded(listed, f"{where}: test_patch: a path in it").split("\0")[:-1]


def _decoded(content: bytes, what: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise TaskFileError(f"{what} is not UTF-8; leave the row out") from None


def _links(staged: bytes) -> set[bytes]:
    """Return the paths of an index that are no files of their own."""
    entries = (one.partition(b"\t") for one in staged.split(b"\0")[:-1])
    return {path for mode, _, path in entries if not mode.startswith(b"100")}


def _check_size(listed: bytes, where: str) -> None:
    entries = [one.partition(b"\t") for one in listed.split(b"\0")[:-1]]
    sizes = [int(size) for about, _, _ in entries if (size := about.split()[3]) != b"-"]
    folders: set[bytes] = set()
    for _, _, path in entries:
        while (path := path.rpartition(b"/")[0]) and path not in folders:
            folders.add(path)
    packed = TAR_BLOCK * (len(entries) + len(folders)) + sum(-(-size // TAR_BLOCK) * TAR_BLOCK for size in sizes)
    if packed > MAX_PACKED_BYTES:
        raise TaskFileError(
            f"{where}: base_commit: the repository has {packed >> 20} MB; a sandbox has room for {MAX_PACKED_BYTES >> 20}; leave the row out"
        )
    if (count := len(entries) + len(folders)) >= FILES:
        raise TaskFileError(
            f"{where}: base_commit: the repository has {count} files and folders; a sandbox has room for {FILES}; leave the row out"
        )


def _git(repository: Path, where: str, *command: str, stdin: str = "", **variables: str) -> bytes:
    try:
        return run_git(repository, *command, stdin=stdin, **variables)
    except OSError as error:
        what = (
            "test_patch does not apply to base_commit" if "apply" in command else f"{repository}: {' '.join(command)}"
        )
        raise TaskFileError(f"{where}: {what}: {one_line(error)}; mend it, or leave the row out") from error
