"""Folders of terminal tasks in Harbor's form: an instruction, an image to work in, tests and a reference solution.

harbor:DIR[@AGENT] ─► the folders of DIR ─► each read and checked ─► a task: {"folder", "digest", "name", "prompt", "agent"}
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from agentrl.episode import Task
from agentrl.errors import TaskFileError, one_line
from agentrl.tasks.harbor_settings import TaskSettings
from agentrl.tasks.task_type import UNUSABLE, problems_of

DEFAULT_AGENT = "shell"
"""A model with a shell for a tool."""
_CANARY = re.compile(r"\A(\s*(<!--.*canary.*-->|#.*canary.*))*\s*", re.IGNORECASE)
"""The lines before an instruction that mark benchmark data, which no agent is to see."""


class TaskFolder(BaseModel):
    """A folder, read and checked."""

    model_config = ConfigDict(frozen=True)

    folder: Path
    instruction: str
    settings: TaskSettings
    solution: Path | None
    """The script of the reference solution, where there is one."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def context(self) -> Path:
        """The folder that the agent's image is built from. Tests and solution lie beside it."""
        return self.folder / "environment"

    @property
    def tests(self) -> Path:
        """The folder of the tests."""
        return self.folder / "tests"

    def as_task(self, agent: str = DEFAULT_AGENT) -> Task:
        """Return the folder as a task of `workflows/terminal_task.py`. Its digest changes with every file of the folder."""
        return {
            "folder": str(self.folder),
            "digest": folder_digest(self.folder),
            "name": self.name,
            "prompt": self.instruction,
            "agent": agent,
        }


def tasks_of_folder(source: str) -> list[Task]:
    """Return the tasks below `DIR[@AGENT]`: of one folder, or of all folders in it. One that cannot be used has a task that says why.

    Args:
        source: What stands after `harbor:`.

    Raises:
        TaskFileError: There are none.
    """
    path, agent = split_agent(source)
    folder = Path(path)
    if not folder.is_dir():
        raise TaskFileError(f"harbor:{source}: there is no folder {folder.absolute()}; name one that holds tasks")
    found = [file.parent for file in (folder / "task.toml", *sorted(folder.glob("[!.]*/task.toml"))) if file.is_file()]
    if not found:
        raise TaskFileError(f"{folder.absolute()} holds no task folders: neither it nor a folder in it has a task.toml")
    return [_task_of(path.absolute(), agent) for path in found]


def split_agent(source: str) -> tuple[str, str]:
    """Return what stands before and after the last `@` of a source, which in `hf:NAME@SPLIT` alone names no agent."""
    if Path(source).exists() or source.count("@") < (2 if source.startswith("hf:") else 1):
        return source, DEFAULT_AGENT
    rows, _, agent = source.rpartition("@")
    return rows, agent


def _task_of(folder: Path, agent: str) -> Task:
    try:
        return read_task_folder(folder).as_task(agent)
    except TaskFileError as error:
        found = {"folder": str(folder), "digest": None, "name": folder.name, "prompt": "", "agent": agent}
        return {**found, UNUSABLE: str(error)}


def is_task_folder(task: Task) -> bool:
    """Return whether a task is one of `tasks_of_folder`."""
    return {"folder", "digest", "prompt"} <= task.keys()


def read_task_folder(folder: Path, digest: str | None = None) -> TaskFolder:
    """Return what a task folder says.

    Args:
        folder: The folder.
        digest: What its content must be; None: anything.

    Raises:
        TaskFileError: It has changed, or cannot be used; the message names the file, the field and the remedy.
    """
    if digest is not None and folder_digest(folder) != digest:
        raise TaskFileError(f"{folder} has changed since its tasks were read; start a new run")
    file = folder / "task.toml"
    try:
        settings = TaskSettings.model_validate(tomllib.loads(_read_text(file)))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise TaskFileError(f"{file}: not valid TOML: {one_line(error)}") from error
    except ValidationError as error:
        raise TaskFileError(f"{file}, {problems_of(error)}") from error
    instruction = _CANARY.sub("", _read_text(folder / "instruction.md"))
    if not instruction.strip():
        raise TaskFileError(f"{folder / 'instruction.md'}: the instruction is empty")
    here = folder.absolute()
    script = here / "solution" / "solve.sh"
    task = TaskFolder(
        folder=here, instruction=instruction, settings=settings, solution=script if script.is_file() else None
    )
    compose = task.context / "docker-compose.yaml"
    if compose.is_file():
        raise TaskFileError(
            f"{compose}: services of Docker Compose are not started; give the task one image, by a Dockerfile"
        )
    dockerfile = task.context / "Dockerfile"
    if not dockerfile.is_file() and settings.environment.docker_image is None:
        raise TaskFileError(f"{file}: the task has no image; write {dockerfile}, or set environment.docker_image")
    if not (task.tests / "test.sh").is_file():
        raise TaskFileError(
            f"{task.tests / 'test.sh'} is missing: it runs the tests and writes the reward to /logs/verifier/reward.txt"
        )
    return task


def folder_digest(folder: Path) -> str:
    """Return a digest of the paths, modes and contents below a folder: the same content has the same one on every machine.

    Raises:
        TaskFileError: A file cannot be read.
    """
    digest = hashlib.sha256()
    try:
        for path in sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()):
            if not (path.is_symlink() or path.is_file()):
                raise TaskFileError(f"{path} is no file, folder or link; take it out")
            content = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
            runs = bool(path.lstat().st_mode & 0o100)
            head = f"{path.relative_to(folder)}\0{path.is_symlink()}\0{runs}\0{len(content)}\0"
            digest.update(head.encode(errors="surrogateescape") + content)
    except OSError as error:
        raise TaskFileError(f"{error.filename} cannot be read: {error.strerror}") from error
    return digest.hexdigest()[:16]


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or one_line(error)
        raise TaskFileError(f"{file} cannot be read: {why}; a task folder needs it, as UTF-8") from error
