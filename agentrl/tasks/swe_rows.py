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
from agentrl.tasks.task_type import UNUSABLE, problems_of

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


TestIds = Annotated[list[str], BeforeValidator(lambda given: json.loads(given) if isinstance(given, str) else given)]
"""SWE-bench has them as a text of JSON."""


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


def tasks_of_rows(rows: Iterable[Mapping[str, Any]], agent: str = DEFAULT_AGENT) -> list[Task]:
    """Return a task of `workflows/harness.py` for each row. One that cannot be used has a task that says why.

    Args:
        rows: The rows.
        agent: Who works on them: "shell", or a name of `workflows/harnesses.toml`.
    """
    return [_task_or_fault(given, index, agent) for index, given in enumerate(rows)]


def _task_or_fault(given: Mapping[str, Any], index: int, agent: str) -> Task:
    name = one_line(given.get("instance_id", "without an instance_id"), 60)
    try:
        return _task_of_row(SweRow.model_validate(given), f"row {index} ({name})", agent)
    except ValidationError as error:
        why = f"row {index} ({name}): {problems_of(error)}; see docs/agents.md"
    except TaskFileError as error:
        why = str(error)
    row = {"name": name, "harness": agent, "repository": {}, "prompt": "", "tests": {}, "solution": ""}
    return {**row, UNUSABLE: why}


def _task_of_row(row: SweRow, where: str, agent: str) -> Task:
    must_pass = list(dict.fromkeys([*row.fail_to_pass, *row.pass_to_pass]))
    tests: Task = {"patch": row.test_patch, "must_pass": must_pass}
    if runner := RUNNERS.get(row.repo):
        files = dict.fromkeys(_PATCHED.findall(row.test_patch))
        tests["command"] = [*runner.split(), *(map(_label, files) if "runtests.py" in runner else files)]
    elif wrong := next((test for test in must_pass if "::" not in test), None):
        raise TaskFileError(
            f"{where}: the test {wrong!r} is no id of pytest, such as tests/test_it.py::test_one, and nothing is known of how {row.repo} runs its "
            "tests; make the row a task of workflows/harness.py with a tests.command, or leave it out"
        )
    task: Task = {
        "harness": agent,
        "name": row.instance_id,
        "prompt": row.problem_statement,
        "tests": tests,
        "solution": row.patch,
    }
    if image := row.docker_image or row.image_name:
        return {**task, "image": image, "setup": CONDA, **({"workdir": row.workdir} if row.workdir else {})}
    repository = {"git": str(_repository(row.repo, where)), "commit": row.base_commit}
    return {**task, "setup": SOURCES, "repository": repository}


def _label(path: str) -> str:
    """Return what Django's runner calls a file of its tests."""
    return path.removeprefix("tests/").removesuffix(".py").replace("/", ".")


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
