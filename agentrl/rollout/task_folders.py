"""Folders of terminal tasks: an instruction, an image to work in, a verifier and a reference solution.

    harbor:DIR[@AGENT] ─► the folders of DIR ─► each read and checked whole ─► a task: {"folder", "digest", "name", "prompt", "agent"}

Two forms are read, and nothing is written: Harbor's (`task.toml`, in `harbor_settings.py`) and the older one of Terminal-Bench (`task.yaml`,
in `terminal_bench_form.py`).
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from agentrl.episode import Task
from agentrl.errors import TaskFileError, one_line
from agentrl.rollout.harbor_settings import TaskSettings
from agentrl.rollout.task_type import first_problem
from agentrl.rollout.terminal_bench_form import read_terminal_bench

DEFAULT_AGENT = "shell"
"""A model with a shell for a tool: `workflows/shell_agent.py`."""
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


class TaskFolder(BaseModel):
    """A folder, read and checked."""

    model_config = ConfigDict(frozen=True)

    form: Literal["harbor", "terminal-bench"]
    folder: Path
    instruction: str
    settings: TaskSettings
    context: Path
    """The folder with the Dockerfile, which images are built from."""
    has_dockerfile: bool
    tests: Path
    test_script: str
    """The name of the script that runs the tests; a sandbox has it in `/tests`."""
    solution: Path | None
    """The script of the reference solution, where there is one."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    def as_task(self, agent: str = DEFAULT_AGENT) -> Task:
        """Return the folder as a task of `workflows/terminal_task.py`. Its digest changes with every file of the folder."""
        return {
            "folder": str(self.folder),
            "digest": folder_digest(self.folder),
            "name": self.name,
            "prompt": self.instruction,
            "agent": agent,
        }


def tasks_of_folder(source: str) -> Iterator[Task]:
    """Yield the tasks below `DIR[@AGENT]`: of one folder, or of all folders in it.

    Raises:
        TaskFileError: There are none, or one cannot be used; the message names the file, the field and the remedy.
    """
    folder, agent = Path(source), DEFAULT_AGENT
    if not folder.exists() and "@" in source:
        path, _, agent = source.rpartition("@")
        folder = Path(path)
    if not folder.is_dir():
        raise TaskFileError(
            f"harbor:{source}: there is no folder {folder.absolute()}; name one with task folders in it"
        )
    for found in find_folders(folder):
        yield read_task_folder(found).as_task(agent)


def is_task_folder(task: Task) -> bool:
    """Return whether a task is one of `tasks_of_folder`."""
    return {"folder", "digest", "prompt"} <= task.keys()


def find_folders(folder: Path) -> list[Path]:
    """Return the task folders at or right below a folder, by name.

    Raises:
        TaskFileError: There are none.
    """
    if _form(folder):
        return [folder.absolute()]
    found = sorted(
        below.absolute() for below in folder.iterdir() if below.name[0] != "." and below.is_dir() and _form(below)
    )
    if not found:
        raise TaskFileError(
            f"{folder.absolute()} holds no task folders: neither it nor a folder in it has a task.toml (Harbor) or a task.yaml (Terminal-Bench)"
        )
    return found


def _form(folder: Path) -> Literal["harbor", "terminal-bench"] | None:
    if (folder / "task.toml").is_file():
        return "harbor"
    return "terminal-bench" if (folder / "task.yaml").is_file() else None


@dataclass(frozen=True)
class _Written:
    """What the files of one form say, before it is checked."""

    settings_file: Path
    settings: Mapping[str, Any]
    """As `task.toml` says them."""
    instruction_file: Path
    instruction: str
    context: Path
    test_file: Path
    solution: Path
    """Where the script of the reference solution is, if there is one."""


def _written_for_harbor(folder: Path) -> _Written:
    file, instruction_file = folder / "task.toml", folder / "instruction.md"
    try:
        settings = tomllib.loads(read_text(file))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise TaskFileError(f"{file}: not valid TOML: {one_line(error)}") from error
    return _Written(
        settings_file=file,
        settings=settings,
        instruction_file=instruction_file,
        instruction=read_text(instruction_file),
        context=folder / "environment",
        test_file=folder / "tests" / "test.sh",
        solution=folder / "solution" / "solve.sh",
    )


def _written_for_terminal_bench(folder: Path) -> _Written:
    file = folder / "task.yaml"
    instruction, settings = read_terminal_bench(file, read_text(file))
    return _Written(
        settings_file=file,
        settings=settings,
        instruction_file=file,
        instruction=instruction,
        context=folder,
        test_file=folder / "run-tests.sh",
        solution=folder / "solution.sh",
    )


def read_task_folder(folder: Path) -> TaskFolder:
    """Return what a task folder says.

    Raises:
        TaskFileError: It cannot be used; the message names the file, the field and the remedy.
    """
    form = _form(folder)
    if form is None:
        raise TaskFileError(f"{folder} is no task folder: it has neither a task.toml nor a task.yaml")
    written = _written_for_harbor(folder) if form == "harbor" else _written_for_terminal_bench(folder)
    if not written.instruction.strip():
        raise TaskFileError(f"{written.instruction_file}: the instruction is empty")
    file = written.settings_file
    settings = _checked(file, written.settings)
    for section in ("environment", "verifier", "solution"):
        variables(getattr(settings, section).env, f"{file}, {section}.env")
    has_dockerfile = _check_image(file, written.context, settings.environment.docker_image)
    if not written.test_file.is_file():
        reward = " and writes the reward to /logs/verifier/reward.txt" if form == "harbor" else ""
        raise TaskFileError(f"{written.test_file} is missing: it runs the tests{reward}")
    solution = written.solution
    for root in (written.context / "Dockerfile", folder / "tests", written.test_file, solution, solution.parent):
        if root != folder:
            _check_links(root)
    return TaskFolder(
        form=form,
        folder=folder.absolute(),
        instruction=written.instruction,
        settings=settings,
        context=written.context,
        has_dockerfile=has_dockerfile,
        tests=folder / "tests",
        test_script=written.test_file.name,
        solution=solution if solution.is_file() else None,
    )


def _check_image(file: Path, context: Path, docker_image: str | None) -> bool:
    """Check that a task has one image, and return whether it is built from a Dockerfile.

    Raises:
        TaskFileError: It has none, or is made of several services.
    """
    dockerfile, compose = context / "Dockerfile", context / "docker-compose.yaml"
    if dockerfile.is_file():
        return True
    if compose.is_file():
        raise TaskFileError(
            f"{compose}: services of Docker Compose are not started; give the task one image, by a Dockerfile beside it"
        )
    if docker_image is None:
        raise TaskFileError(
            f"{file}: the task has no image; write {dockerfile}, or name one with environment.docker_image"
        )
    return False


def _check_links(root: Path) -> None:
    """Check that no link leads out of what is copied into a sandbox, where it would lead nowhere; an absolute one leads into the image.

    Raises:
        TaskFileError: One does.
    """
    home = Path(os.path.normpath(root))
    for path in [home, *home.rglob("*")]:
        target = os.readlink(path) if path.is_symlink() else None
        if target is None or (target.startswith("/") and path != home):
            continue
        if path == home or not Path(os.path.normpath(path.parent / target)).is_relative_to(home):
            raise TaskFileError(
                f"{path} is a link to {one_line(target, 200)!r}, which a sandbox does not have; put a copy in its place"
            )


def read_text(file: Path) -> str:
    """Return the text of a file of a task folder.

    Raises:
        TaskFileError: It is missing, or is no text.
    """
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise TaskFileError(f"{file} cannot be read: {error.strerror}; a task folder needs it") from error
    except UnicodeDecodeError as error:
        raise TaskFileError(f"{file} is not UTF-8: {one_line(error)}; save it as UTF-8") from error


def _checked(file: Path, settings: Mapping[str, Any]) -> TaskSettings:
    try:
        return TaskSettings.model_validate(settings)
    except ValidationError as error:
        raise TaskFileError(f"{file}, {first_problem(error)}") from error


def variables(given: Mapping[str, str], where: str) -> dict[str, str]:
    """Return environment variables with `${NAME}` and `${NAME:-default}` filled in from this machine's, as Harbor does.

    Raises:
        TaskFileError: A variable without a default is not set.
    """

    def value(found: re.Match[str]) -> str:
        known = os.environ.get(found[1], found[2])
        if known is None:
            raise TaskFileError(
                f"{where} names the variable {found[1]}, which is not set; set it, or write ${{{found[1]}:-default}}"
            )
        return known

    result = {name: _VARIABLE.sub(value, text) for name, text in given.items()}
    for name, text in result.items():
        if not name or "=" in name or "\0" in name + text:
            raise TaskFileError(
                f"{where}: {name!r} can be no variable: there is a '=' in its name, or a NUL, or no name"
            )
    return result


def folder_digest(folder: Path | None, also: Iterable[str] = ()) -> str:
    """Return a digest of the paths, modes and contents below a folder, if there is one, and of further texts.

    Raises:
        TaskFileError: A file cannot be read.
    """
    digest = hashlib.sha256()
    for text in also:
        digest.update(f"{len(text)}:{text}".encode())
    if folder is None:
        return digest.hexdigest()[:16]
    try:
        for path in sorted(folder.rglob("*")):
            info = path.lstat()
            if stat.S_ISDIR(info.st_mode):
                continue
            if not (stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode)):
                raise TaskFileError(f"{path} is no file, folder or link; take it out")
            content = os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()
            head = f"{path.relative_to(folder)}\0{path.is_symlink()}\0{bool(info.st_mode & 0o100)}\0{len(content)}\0"
            digest.update(head.encode(errors="surrogateescape") + content)
    except OSError as error:
        raise TaskFileError(f"{error.filename} cannot be read: {error.strerror}") from error
    return digest.hexdigest()[:16]
