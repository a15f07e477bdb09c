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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from agentrl.episode import Task
from agentrl.errors import TaskFileError, one_line
from agentrl.rollout.harbor_form import read_harbor, without_canary
from agentrl.rollout.terminal_bench_form import read_terminal_bench

DEFAULT_AGENT = "shell"
"""A model with a shell for a tool: `workflows/shell_agent.py`."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([GMK])B?", re.IGNORECASE)
_MB = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


class _Section(BaseModel):
    """A table of `task.toml`. Harbor ignores what it does not know, and so do we."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


def _megabytes(given: Any) -> Any:
    found = _SIZE.fullmatch(given.strip()) if isinstance(given, str) else None
    return int(float(found[1]) * _MB[found[2].upper()]) if found else given


Megabytes = Annotated[int, BeforeValidator(_megabytes), Field(gt=0)]


def _absolute(path: str) -> str:
    if not path.startswith("/") or os.path.normpath(path) != path or "\0" in path:
        raise ValueError(f"{path!r} must be an absolute path without '.', '..' and a final '/'")
    return path


AbsolutePath = Annotated[str, AfterValidator(_absolute)]


class Environment(_Section):
    """`[environment]`: what the agent works in."""

    build_timeout_sec: float = Field(default=600.0, gt=0)
    docker_image: str | None = Field(default=None, min_length=1)
    workdir: AbsolutePath | None = None
    """None: the WORKDIR of the image."""
    cpus: float = Field(default=1.0, gt=0)
    memory_mb: Megabytes = 2048
    storage_mb: Megabytes = 10240
    env: dict[str, str] = Field(default_factory=dict)
    os: str = "linux"
    gpus: int = 0
    tpu: Any = None
    mcp_servers: list[Any] = Field(default_factory=list)
    healthcheck: Any = None

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_schemas(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        named = {"memory": "memory_mb", "storage": "storage_mb"}
        present = {name: value for name, value in given.items() if value is not None and name not in named}
        return {**{new: given[old] for old, new in named.items() if given.get(old) is not None}, **present}

    @model_validator(mode="after")
    def _can_be_had(self) -> Environment:
        wanted = {
            "os": self.os.lower() != "linux",
            "gpus": self.gpus > 0,
            "tpu": self.tpu is not None,
            "mcp_servers": bool(self.mcp_servers),
            "healthcheck": self.healthcheck is not None,
        }
        if missing := [name for name, is_wanted in wanted.items() if is_wanted]:
            raise ValueError(
                f"{', '.join(missing)} cannot be had in a sandbox, which runs the image alone, on Linux; leave the task out"
            )
        return self


class Phase(_Section):
    """`[agent]`, or what is common to it and `[verifier]`."""

    timeout_sec: float = Field(default=600.0, gt=0)
    env: dict[str, str] = Field(default_factory=dict)


class Verifier(Phase):
    """`[verifier]`."""

    environment: Any = None

    @model_validator(mode="after")
    def _in_the_same_image(self) -> Verifier:
        if self.environment is not None:
            raise ValueError(
                "an image of the verifier's own ([verifier.environment]) is not built; it runs in a new sandbox of the task's image, "
                "so put what it needs there"
            )
        return self


class Solution(_Section):
    """`[solution]`."""

    env: dict[str, str] = Field(default_factory=dict)


class SandboxSettings(_Section):
    """`[metadata.agentrl]`: what Harbor's form has no field for."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    writable: tuple[AbsolutePath, ...] = ()
    """Folders that the agent may write to, beside the working folder. Their files are what the verifier sees of its work."""
    keep: tuple[str, ...] = ()
    """Names of files that steer tests (`agentrl.workflows.repository.STEERING`) and are the agent's to write in this task."""


class Metadata(_Section):
    """`[metadata]`, of which ours alone counts."""

    agentrl: SandboxSettings = SandboxSettings()


class TaskSettings(_Section):
    """`task.toml`."""

    environment: Environment = Environment()
    agent: Phase = Phase()
    verifier: Verifier = Verifier()
    solution: Solution = Solution()
    metadata: Metadata = Metadata()
    steps: list[Any] = Field(default_factory=list)

    @model_validator(mode="after")
    def _one_step(self) -> TaskSettings:
        if self.steps:
            raise ValueError("a task of several steps ([[steps]]) is not run; make each step a task of its own")
        return self


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
    solution: Path | None
    """The script of the reference solution, where there is one."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    def as_task(self, agent: str = DEFAULT_AGENT) -> Task:
        """Return the task of a run: a dict that JSON can say, and that changes where a file of the folder does."""
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
        settings = read_harbor(file, text)
        # A task of several steps, which is refused below, has no instruction of its own.
        instruction = "" if settings.get("steps") else without_canary(read_text(folder / "instruction.md"))
        context, script, solution = folder / "environment", "test.sh", folder / "solution" / "solve.sh"
    checked = _checked(file, settings)
    if not instruction.strip():
        raise TaskFileError(
            f"{file.with_name('instruction.md') if form == 'harbor' else file}: the instruction is empty"
        )
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
    return TaskFolder(
        form=form,
        folder=folder.absolute(),
        instruction=instruction,
        settings=checked,
        context=context,
        has_dockerfile=has_dockerfile,
        tests=folder / "tests",
        test_script=script,
        solution=solution if solution.is_file() else None,
    )


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
