"""Folders of terminal tasks: an instruction, an image to work in, a verifier and a reference solution.

    harbor:DIR[@AGENT] ─► the folders of DIR ─► each read and checked whole ─► a task: {"folder", "digest", "name", "prompt", "agent"}

Two forms are read, and nothing is written: Harbor's (`task.toml`, in `task_settings.py`) and the older one of Terminal-Bench (`task.yaml`,
in `terminal_bench_form.py`).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from agentrl.episode import Task
from agentrl.errors import TaskFileError, one_line
from agentrl.machine.evidence import regular
from agentrl.machine.sandbox_bounds import FILES
from agentrl.rollout.dockerfile import copied, workdir_of
from agentrl.rollout.folder_digest import folder_digest
from agentrl.rollout.harbor_form import read_harbor, without_canary
from agentrl.rollout.task_faults import check_all_usable, unusable_task
from agentrl.rollout.task_settings import TaskSettings
from agentrl.rollout.task_type import first_problem
from agentrl.rollout.terminal_bench_form import WITHHELD, read_terminal_bench

DEFAULT_AGENT = "shell"
"""A model with a shell for a tool: `workflows/shell_agent.py`."""
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
PAGE = 4096
"""A file of memory takes whole pages."""


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
    tests_bytes: int
    """The room that the tests take in a sandbox."""
    solution: Path | None
    """The script of the reference solution, where there is one."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def withheld(self) -> tuple[str, ...]:
        """What lies in the folder of the Dockerfile and is no part of what the image is built from: the tests and the solution."""
        return WITHHELD if self.form == "terminal-bench" else ()

    def copies_all(self) -> list[str]:
        """Return the instructions of the Dockerfile that would take tests and solution into the image, were they there for it."""
        if not self.withheld or not self.has_dockerfile:
            return []
        return copied((self.context / "Dockerfile").read_text(encoding="utf-8", errors="replace"), self.withheld)[1]

    def as_task(self, agent: str = DEFAULT_AGENT) -> Task:
        """Return the folder as a task of `workflows/terminal_task.py`. Its digest changes with every file of the folder."""
        return {
            "folder": str(self.folder),
            "digest": folder_digest(self.folder),
            "name": self.name,
            "prompt": self.instruction,
            "agent": agent,
        }


def tasks_of_folder(source: str, on_fault: Callable[[Path, TaskFileError], Task] | None = None) -> Iterator[Task]:
    """Yield the tasks below `DIR[@AGENT]`: of one folder, or of all folders in it.

    Args:
        source: What stands after `harbor:`.
        on_fault: What gives a task in place of a folder that cannot be used. Default: all such folders are one error.

    Raises:
        TaskFileError: There are none, or some cannot be used; the message names the file, the field and the remedy.
    """
    folder, agent = Path(source), DEFAULT_AGENT
    if not folder.exists() and "@" in source:
        path, _, agent = source.rpartition("@")
        folder = Path(path)
    if not folder.is_dir():
        raise TaskFileError(
            f"harbor:{source}: there is no folder {folder.absolute()}; name one with task folders in it"
        )
    faults, folders = [], find_folders(folder)
    for found in folders:
        try:
            yield read_task_folder(found).as_task(agent)
        except TaskFileError as error:
            if on_fault is not None:
                yield on_fault(found, error)
            else:
                faults.append(str(error))
    check_all_usable(f"harbor:{source}", "task folders", faults, len(folders))


def unusable_folder(folder: Path, error: TaskFileError) -> Task:
    """Return a task that stands for a folder which cannot be used, for `agentrl vet`."""
    return unusable_task(folder.name, error, folder=str(folder), digest=None, prompt="", agent=DEFAULT_AGENT)


def is_task_folder(task: Task) -> bool:
    """Return whether a task is one of `tasks_of_folder`."""
    return {"folder", "digest", "prompt"} <= task.keys()


def is_folder_of_task(folder: Path) -> bool:
    """Return whether a folder is a task folder."""
    return _form(folder) is not None


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
    settings = read_harbor(file, read_text(file))
    return _Written(
        settings_file=file,
        settings=settings,
        instruction_file=instruction_file,
        # A task of several steps, which is refused, has no instruction of its own.
        instruction="" if settings.get("steps") else without_canary(read_text(instruction_file)),
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
    file = written.settings_file
    settings = _checked(file, written.settings)
    if not written.instruction.strip():
        raise TaskFileError(f"{written.instruction_file}: the instruction is empty")
    for section in ("environment", "verifier", "solution"):
        variables(getattr(settings, section).env, f"{file}, {section}.env")
    _check_names(settings.environment.service_env, f"{file.parent}, docker-compose.yaml, environment")
    has_dockerfile = _has_dockerfile(file, written.context, settings.environment.docker_image)
    if not written.test_file.is_file():
        reward = " and writes the reward to /logs/verifier/reward.txt" if form == "harbor" else ""
        raise TaskFileError(f"{written.test_file} is missing: it runs the tests{reward}")
    solution = written.solution
    for root in (written.context / "Dockerfile", folder / "tests", written.test_file, solution, solution.parent):
        if root != folder:
            _check_links(root)
    result = TaskFolder(
        form=form,
        folder=folder.absolute(),
        instruction=written.instruction,
        settings=settings,
        context=written.context,
        has_dockerfile=has_dockerfile,
        tests=folder / "tests",
        test_script=written.test_file.name,
        tests_bytes=_checked_room(folder / "tests", settings),
        solution=solution if solution.is_file() else None,
    )
    _check_folders(file, result)
    _check_script(written.test_file)
    if result.solution is not None:
        _check_script(result.solution)
        _checked_room(result.solution.parent if form == "harbor" else result.solution, settings)
    return result


def read_unchanged(folder: Path, digest: str | None) -> TaskFolder:
    """Return what a task folder says, whose content must be that of a digest; None: anything.

    Raises:
        TaskFileError: It cannot be used, or has changed.
    """
    if digest is not None and folder_digest(folder) != digest:
        raise TaskFileError(f"{folder} has changed since its tasks were read; start a new run")
    return read_task_folder(folder)


def _check_folders(file: Path, task: TaskFolder) -> None:
    """Check that the agent may write to the folders of the image that are its own, and finds neither tests nor solution there.

    Raises:
        TaskFileError: It may not, or finds them.
    """
    dockerfile = task.context / "Dockerfile"
    text = dockerfile.read_text(encoding="utf-8", errors="replace") if task.has_dockerfile else ""
    workdir = None if task.settings.environment.workdir else workdir_of(text)
    try:
        task.settings.check_folders(workdir)
    except ValueError as error:
        where = f"{dockerfile}, WORKDIR" if workdir and f"{error}".startswith(f"{workdir} ") else f"{file}, environment"
        raise TaskFileError(f"{where}: {error}") from None
    naming, _ = copied(text, task.withheld)
    if naming:
        raise TaskFileError(
            f"{dockerfile}: {one_line(naming[0], 120)!r} puts tests or the solution before the agent; take it out, and what both need "
            "into a folder of another name"
        )


def _check_script(script: Path) -> None:
    """Check that a script can be started: the kernel takes a carriage return for a part of the interpreter's name.

    Raises:
        TaskFileError: It cannot.
    """
    with script.open("rb") as file:
        first = file.readline(256)
    if first.startswith(b"#!") and first.endswith(b"\r\n"):
        raise TaskFileError(
            f"{script}: its lines end as on Windows, so that it cannot be started; save it with line feeds alone"
        )


def _checked_room(folder: Path, settings: TaskSettings) -> int:
    """Return the bytes that the content of a folder takes in a sandbox, whose files are in memory.

    Raises:
        TaskFileError: A sandbox has no room for them.
    """
    found = [path.lstat() for path in folder.rglob("*")]
    size = sum(-(-one.st_size // PAGE) * PAGE for one in found if not stat.S_ISDIR(one.st_mode))
    if size > settings.disk_mb << 20:
        raise TaskFileError(
            f"{folder}: its files take {-(-size >> 20)} MB, and environment.storage_mb and memory_mb leave a sandbox {settings.disk_mb}; "
            "raise them, or put large files into the image"
        )
    if len(found) > FILES // 2:
        raise TaskFileError(
            f"{folder}: it has {len(found)} files and folders, and a sandbox has room for {FILES}, the agent's among them; put them into "
            f"the image, or into an archive: at most {FILES // 2} can be here"
        )
    return size


def _has_dockerfile(file: Path, context: Path, docker_image: str | None) -> bool:
    """Return whether a task's image is built from a Dockerfile.

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
        return regular(file).read_text(encoding="utf-8")
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
    _check_names(result, where)
    return result


def _check_names(given: Mapping[str, str], where: str) -> None:
    """Check that a program can have such variables.

    Raises:
        TaskFileError: It cannot.
    """
    for name, text in given.items():
        if not name or "=" in name or "\0" in name + text:
            raise TaskFileError(f"{where}: {name!r} can be no variable: it has a '=' in its name, a NUL, or no name")
