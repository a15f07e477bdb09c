"""Folders of terminal tasks: an instruction, an image to work in, a verifier and a reference solution.

    harbor:DIR[@AGENT] ─► the folders of DIR ─► each read and checked whole ─► a task: {"folder", "digest", "name", "prompt", "agent"}

Two forms are read, and nothing is written: Harbor's (`task.toml`, schema 1.0 to 1.4, as harbor 0.25 reads it) and the older one of
Terminal-Bench (`task.yaml`, in `terminal_bench_form.py`). What a sandbox cannot give is refused here, before a run starts.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from agentrl.episode import Task
from agentrl.errors import TaskFileError, one_line
from agentrl.machine.sandbox_bounds import FILES
from agentrl.rollout.dockerfile import copied, workdir_of
from agentrl.rollout.task_settings import TaskSettings
from agentrl.rollout.terminal_bench_form import WITHHELD, read_terminal_bench

DEFAULT_AGENT = "shell"
"""A model with a shell for a tool: `workflows/shell_agent.py`."""
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
PAGE = 4096
"""A file of memory takes whole pages."""
SHOWN_FAULTS = 5


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
    """The verifier, relative to `tests`."""
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
        return (
            copied((self.context / "Dockerfile").read_text(errors="replace"), self.withheld)[1] if self.withheld else []
        )

    def as_task(self, agent: str = DEFAULT_AGENT) -> Task:
        """Return the task of a run: a dict that JSON can say, and that changes where a file of the folder does."""
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
            faults.append(str(error))
    if faults and on_fault is None:
        if len(folders) == 1:
            raise TaskFileError(faults[0])
        shown = [f"{fault}\n" for fault in faults[:SHOWN_FAULTS]]
        raise TaskFileError(
            f"harbor:{source}: {len(faults)} of {len(folders)} task folders cannot be used: mend them, take them out, or use those that "
            f"`agentrl vet harbor:{source} --output tasks.jsonl` keeps"
            + (f". The first {SHOWN_FAULTS}" if len(faults) > SHOWN_FAULTS else "")
            + f":\n{''.join(shown)}".rstrip()
        )


def unusable_task(folder: Path, error: TaskFileError) -> Task:
    """Return a task that stands for a folder which cannot be used: whoever opens it is told why."""
    return {"folder": str(folder), "digest": None, "name": folder.name, "prompt": str(error), "agent": DEFAULT_AGENT}


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


def read_task_folder(folder: Path) -> TaskFolder:
    """Return what a task folder says.

    Raises:
        TaskFileError: It cannot be used; the message names the file, the field and the remedy.
    """
    form = _form(folder)
    if form is None:
        raise TaskFileError(f"{folder} is no task folder: it has neither a task.toml nor a task.yaml")
    file = folder / ("task.toml" if form == "harbor" else "task.yaml")
    text = read_text(file)
    if form == "terminal-bench":
        instruction, settings = read_terminal_bench(file, text)
        context, script, solution = folder, "run-tests.sh", folder / "solution.sh"
    else:
        try:
            settings = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise TaskFileError(f"{file}: not valid TOML: {one_line(error)}") from error
        instruction = read_text(folder / "instruction.md")
        context, script, solution = folder / "environment", "test.sh", folder / "solution" / "solve.sh"
    if not instruction.strip():
        raise TaskFileError(
            f"{file.with_name('instruction.md') if form == 'harbor' else file}: the instruction is empty"
        )
    checked = _checked(file, settings)
    for section in ("environment", "verifier", "solution"):
        variables(getattr(checked, section).env, f"{file}, {section}.env")
    has_dockerfile = (context / "Dockerfile").is_file()
    if (context / "docker-compose.yaml").is_file() and not has_dockerfile:
        raise TaskFileError(
            f"{context / 'docker-compose.yaml'}: services of Docker Compose are not started; give the task one image, by a Dockerfile beside it"
        )
    if not has_dockerfile and checked.environment.docker_image is None:
        raise TaskFileError(
            f"{file}: the task has no image; write {context / 'Dockerfile'}, or name one with environment.docker_image"
        )
    test_file = folder / script if form == "terminal-bench" else folder / "tests" / script
    if not test_file.is_file():
        raise TaskFileError(
            f"{test_file} is missing: it runs the tests"
            + (" and writes the reward to /logs/verifier/reward.txt" if form == "harbor" else "")
        )
    for root in (context / "Dockerfile", folder / "tests", test_file, solution, solution.parent):
        if root != folder:
            _check_links(root)
    result = TaskFolder(
        form=form,
        folder=folder.absolute(),
        instruction=instruction,
        settings=checked,
        context=context,
        has_dockerfile=has_dockerfile,
        tests=folder / "tests",
        test_script=script,
        tests_bytes=_checked_room(folder / "tests", checked),
        solution=solution if solution.is_file() else None,
    )
    _check_image(file, result)
    _check_script(test_file)
    if result.solution is not None:
        _check_script(result.solution)
        _checked_room(result.solution.parent if form == "harbor" else result.solution, checked)
    return result


def _check_image(file: Path, task: TaskFolder) -> None:
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
        problem = error.errors(include_url=False)[0]
        field = ".".join(map(str, problem["loc"])) or "the task"
        message = problem["msg"].removeprefix("Value error, ")
        given = "" if problem["type"] == "value_error" else f", not {one_line(repr(problem['input']), 80)}"
        raise TaskFileError(f"{file}, {field}: {message}{given}") from error


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


def folder_digest(folder: Path | None, also: Iterable[str] = (), without: Collection[str] = ()) -> str:
    """Return a digest of the paths, modes and contents below a folder, if there is one, and of further texts.

    Args:
        folder: The folder.
        also: The texts.
        without: Names right in the folder that are left out.

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
            if stat.S_ISDIR(info.st_mode) or path.relative_to(folder).parts[0] in without:
                continue
            if not (stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode)):
                raise TaskFileError(f"{path} is no file, folder or link; take it out")
            content = os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()
            head = f"{path.relative_to(folder)}\0{path.is_symlink()}\0{bool(info.st_mode & 0o100)}\0{len(content)}\0"
            digest.update(head.encode(errors="surrogateescape") + content)
    except OSError as error:
        raise TaskFileError(f"{error.filename} cannot be read: {error.strerror}") from error
    return digest.hexdigest()[:16]
