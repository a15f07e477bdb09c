"""Rows in the form of SWE-bench: a repository at a commit, an issue, and tests that have to pass once it is mended.

    swe:ROWS[@AGENT] ─► each row is checked ─► a task of workflows/harness.py: its image, or its repository on this machine

ROWS is any other source of tasks (a file, `hf:...`, `python:...`). Of a row these columns are read, as SWE-bench, SWE-Gym, SWE-smith and R2E have
them: `instance_id`, `repo`, `base_commit`, `problem_statement`, `patch`, `test_patch`, `FAIL_TO_PASS`, `PASS_TO_PASS`, and where they are there
`image_name` or `docker_image`, and `workdir`. No repository is fetched: without an image, `repo` is looked for below the folder that
AGENTRL_REPOSITORIES names.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from agentrl.episode import Task
from agentrl.errors import TaskFileError, one_line
from agentrl.tasks.harbor import DEFAULT_AGENT
from agentrl.tasks.harbor_settings import ImageName
from agentrl.tasks.task_type import first_problem, unusable_task

CONDA = "if [ -f /opt/miniconda3/etc/profile.d/conda.sh ]; then . /opt/miniconda3/etc/profile.d/conda.sh; conda activate testbed; fi"
"""Goes before agent and tests in the image of a row: SWE-bench's images have their packages in this environment."""
SOURCES = 'export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"'
"""Goes before them where the repository is put into an image, in which it is not installed."""
RUNNERS = {
    "django/django": "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1",
    "sympy/sympy": "bin/test -C --verbose",
}
"""How repositories run their tests that do not by pytest. The files of the test patch follow."""
_PATCHED = re.compile(r"^\+\+\+ b/(.+?)\s*$", re.MULTILINE)


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
    workdir: str | None = None

    @property
    def image(self) -> str | None:
        """The image that has the repository."""
        return self.docker_image or self.image_name

    @property
    def must_pass(self) -> list[str]:
        """The ids of the tests that decide."""
        return list(dict.fromkeys([*self.fail_to_pass, *self.pass_to_pass]))


def tasks_of_rows(rows: Iterable[Mapping[str, Any]], agent: str = DEFAULT_AGENT) -> list[Task]:
    """Return a task of `workflows/harness.py` for each row. One that cannot be used has a task that says why.

    Args:
        rows: The rows.
        agent: Who works on them: "shell", or a name of `workflows/harnesses.toml`.
    """
    tasks = []
    for index, given in enumerate(rows):
        try:
            tasks.append(_task_of_row(given, index, agent))
        except TaskFileError as error:
            name = one_line(given.get("instance_id", "a row"), 60)
            fields = {"harness": agent, "repository": {}, "prompt": "", "tests": {}, "solution": ""}
            tasks.append(unusable_task(name, error, **fields))
    return tasks


def _task_of_row(given: Mapping[str, Any], index: int, agent: str) -> Task:
    where = f"row {index} ({one_line(given.get('instance_id', 'without an instance_id'), 60)})"
    try:
        row = SweRow.model_validate(given)
    except ValidationError as error:
        raise TaskFileError(f"{where}: {first_problem(error)}; see docs/agents.md") from None
    runner = RUNNERS.get(row.repo)
    files = list(dict.fromkeys(_PATCHED.findall(row.test_patch)))
    labels = [_label(path) for path in files] if runner is not None and "runtests.py" in runner else files
    command = [*runner.split(), *labels] if runner is not None else None
    if command is None and (wrong := next((test for test in row.must_pass if "::" not in test), None)) is not None:
        raise TaskFileError(
            f"{where}: the test {wrong!r} is no id of pytest, such as tests/test_it.py::test_one, and nothing is known of how {row.repo} runs its "
            "tests; make the row a task of workflows/harness.py with a tests.command, or leave it out"
        )
    tests = {"patch": row.test_patch, "must_pass": row.must_pass, **({"command": command} if command else {})}
    task: Task = {
        "harness": agent,
        "name": row.instance_id,
        "prompt": row.problem_statement,
        "tests": tests,
        "solution": row.patch,
    }
    if row.image is not None:
        return {**task, "image": row.image, "setup": CONDA, **({"workdir": row.workdir} if row.workdir else {})}
    return {
        **task,
        "setup": SOURCES,
        "repository": {"git": str(_repository(row.repo, where)), "commit": row.base_commit},
    }


def _label(path: str) -> str:
    """Return what Django's runner calls a file of its tests."""
    return path.removeprefix("tests/").removesuffix(".py").replace("/", ".")


def split_agent(source: str) -> tuple[str, str]:
    """Return what stands before and after the last `@` of a source, which in `hf:NAME@SPLIT` alone names no agent."""
    if Path(source).exists() or source.count("@") < (2 if source.startswith("hf:") else 1):
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
