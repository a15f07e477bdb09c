"""A terminal task from its folder to its reward, apart from the agent: the sandbox it works in, and the tests of what it leaves.

    image ─► a sandbox: the agent, or the reference solution ─► its files ─► steering files as at the start, tests/ put in
                 └─ everything of it ends here                                    └─► a sandbox as new ─► test.sh ─► reward

Of what the agent did, the files of the task's writable folders reach the tests, and nothing else: no process, no other file, no
variable. Code of the agent's that the tests themselves run has the tests' rights, as in Harbor (docs/terminal_tasks.md).
"""

from __future__ import annotations

import io
import json
import math
import re
import shlex
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from anyio.to_thread import run_sync as in_thread

from agentrl.errors import EpisodeError, SandboxError, SandboxLostError, TaskFileError, one_line
from agentrl.rollout.folder_digest import folder_digest
from agentrl.rollout.task_folders import TaskFolder, read_task_folder, variables
from agentrl.sandboxes import EndReason, Sandbox
from agentrl.sandboxes.task_image import ImageSource, TaskImage, task_image
from agentrl.workflows.harness import HOME, AgentLimits
from agentrl.workflows.links_to_tests import links_out
from agentrl.workflows.repository import steers, with_tests

TESTS, SOLUTION, REWARDS = "tests", "solution", "logs/verifier"
"""Where a sandbox has them, below its folder; the image has links to these in its root."""
MAX_REWARD_BYTES = 2**16
MAX_OUTPUT_MB = 64.0
SHOWN_CHARACTERS = 2000
MODULES = (sys.stdlib_module_names - {"test"}) | {
    "pytest",
    "_pytest",
    "pluggy",
    "iniconfig",
    "packaging",
    "pygments",
    "py",
    "tomli",
    "sitecustomize",
    "usercustomize",
}
"""Modules that tests are run by."""
_LOOKS_IN_WORKDIR = re.compile(
    r"""PYTHONPATH
    | \bpython[\d.]*["'}]* ([\s\\]+ (-[WX][\s\\]+\S+ | -\w+))* [\s\\]* ((?<=[\s\\])-\w*[mc] | (?<=\s)-(?=\s) | <)
    | \| [\s\\]* (\S*/)?python[\d.]* \s* $""",
    re.VERBOSE | re.MULTILINE,
)
"""`python -m`, and a program of its command line (`-c`) or of its standard input."""
_SUMMARY = re.compile(r"^=+ short test summary info =+\s*$", re.MULTILINE)
_OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) ", re.MULTILINE)


@dataclass(frozen=True)
class OpenTask:
    """A task folder whose image is there."""

    folder: TaskFolder
    image: TaskImage

    @property
    def limits(self) -> AgentLimits:
        """What the agent, and each of its programs, may use. Files are in memory."""
        settings = self.folder.settings
        memory = settings.environment.memory_mb
        return AgentLimits(
            timeout_s=settings.agent.timeout_sec,
            memory_mb=memory,
            disk_mb=min(settings.environment.storage_mb, memory),
            cpus=settings.environment.cpus,
        )

    @property
    def home(self) -> str:
        """The home of the task's programs: outside of what the tests see, unless the task says that it belongs there."""
        return "/root" if "/root" in self.image.writable else HOME

    @property
    def test_script(self) -> Path:
        """The verifier, on this machine."""
        folder = self.folder
        return (folder.tests if folder.form == "harbor" else folder.folder) / folder.test_script

    @cached_property
    def imports_from_workdir(self) -> bool:
        """Whether a module of the working folder goes before Python's own of that name, for programs of the verifier."""
        named = {**self.image.env, **self.folder.settings.environment.env, **self.folder.settings.verifier.env}
        return (
            "PYTHONPATH" in named or _LOOKS_IN_WORKDIR.search(self.test_script.read_text(errors="replace")) is not None
        )

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of the task's programs: the image's, the task's and `more`."""
        where = f"{self.folder.folder}: an env"
        own = self.folder.settings.environment.env
        return {**self.image.env, "HOME": self.home, "PWD": self.image.workdir, **variables({**own, **more}, where)}


@dataclass(frozen=True)
class VerifierResult:
    """What came of the verifier."""

    reward: float
    """0 where it gave none."""
    gave_reward: bool
    timed_out: bool
    said: str
    """The end of its output."""


async def open_task(folder: Path, digest: str | None = None) -> OpenTask:
    """Return a task, with its image.

    Args:
        folder: The task folder.
        digest: What its content must be; None: anything.

    Raises:
        TaskFileError: It cannot be used, or has changed.
        SandboxError: Its image cannot be had.
    """

    def read() -> tuple[TaskFolder, ImageSource]:
        if digest is not None and folder_digest(folder) != digest:
            raise TaskFileError(f"{folder} has changed since its tasks were read; start a new run")
        found = read_task_folder(folder)
        return found, image_source(found)

    found, source = await in_thread(read)
    return OpenTask(found, await task_image(source))


def image_source(folder: TaskFolder) -> ImageSource:
    """Return what the image of a task is made of."""
    environment, settings = folder.settings.environment, folder.settings.metadata.agentrl
    image = None if folder.has_dockerfile else environment.docker_image
    parts = (image or "", environment.workdir or "", *settings.writable)
    return ImageSource(
        name=folder.name,
        digest=folder_digest(folder.context, also=parts) if image is None else folder_digest(None, parts),
        context=folder.context,
        image=image,
        workdir=environment.workdir,
        writable=settings.writable,
        timeout_s=environment.build_timeout_sec,
    )


async def solve(task: OpenTask, sandbox: Sandbox) -> str:
    """Run the reference solution in a sandbox that holds the task's files, and return the end of what it printed.

    Raises:
        SandboxLostError: The sandbox is lost.
    """
    script = task.folder.solution
    assert script is not None
    folder = script.parent if task.folder.form == "harbor" else script
    await sandbox.restore(await in_thread(_with_folder, task.image.start, folder, SOLUTION))
    done = await sandbox.run(
        ["sh", "-c", _in_workdir(task, await in_thread(_command, script, SOLUTION))],
        env=task.environment(task.folder.settings.solution.env),
        timeout_s=task.limits.timeout_s,
        limits=sandbox.spec.limits.but(output_mb=MAX_OUTPUT_MB),
    )
    return _tail(done.stdout + done.stderr)


async def verify(task: OpenTask, sandbox: Sandbox, end: bytes | None) -> VerifierResult:
    """Run the task's verifier in a sandbox that nobody has used.

    Args:
        task: The task.
        sandbox: The sandbox.
        end: What `harness.files_left` gave of the one that the agent worked in.

    Raises:
        EpisodeError: The verifier gave something that is no reward.
        SandboxLostError: The sandbox is lost.
    """
    if end is None or not await _lay_out(task, sandbox, end):
        return VerifierResult(0.0, gave_reward=False, timed_out=False, said="the agent's files cannot be put anywhere")
    settings = task.folder.settings.verifier
    done = await sandbox.run(
        ["sh", "-c", _in_workdir(task, await in_thread(_command, task.test_script, TESTS))],
        env=task.environment({"PYTHONNOUSERSITE": "1", **settings.env}),
        timeout_s=settings.timeout_sec,
        limits=sandbox.spec.limits.but(output_mb=MAX_OUTPUT_MB),
    )
    if task.folder.form == "harbor":
        reward = await _reward_written(sandbox, task.folder.name)
    else:
        reward = pytest_reward(done.stdout.decode(errors="replace")) if done.ok else 0.0
    return VerifierResult(
        reward=reward or 0.0,
        gave_reward=reward is not None,
        timed_out=done.end_reason is EndReason.TIMEOUT,
        said=_tail(done.stdout + done.stderr),
    )


async def _lay_out(task: OpenTask, sandbox: Sandbox, end: bytes) -> bool:
    def tree() -> bytes:
        folder = task.folder
        own = _only(end, [root.strip("/") for root in task.image.writable])
        with tarfile.open(fileobj=io.BytesIO(own)) as left:
            leading_out = links_out(left, task.image.writable)
        packed = with_tests(task.image.start, own, {}, lambda path: path in leading_out or steers_tests(task, path))
        packed = _with_folder(packed, folder.tests, TESTS)
        return packed if folder.form == "harbor" else _with_folder(packed, task.test_script, TESTS)

    try:
        await sandbox.restore(await in_thread(tree))
    except SandboxLostError:
        raise
    except SandboxError:
        return False  # files that cannot be put anywhere are the agent's doing
    return True


def steers_tests(task: OpenTask, path: str) -> bool:
    """Return whether a file of the agent's is to be as it was at the start.

    It steers tests by its name, or it is where programs are looked for, or where modules are: `python -m pytest` takes those of the
    working folder before its own.
    """
    programs = [where.strip("/") for where in task.image.env.get("PATH", "").split(":")]
    if any(below and f"{path}/".startswith(f"{below}/") for below in programs):
        return True
    kept = task.folder.settings.metadata.agentrl.keep
    parts = [part for part in path.split("/") if not any(fnmatchcase(part, name) for name in kept)]
    if steers("/".join(parts)):
        return True
    for root in task.image.writable if task.imports_from_workdir else ():
        first, _, _ = path.removeprefix(f"{root.strip('/')}/").partition("/")
        if path.startswith(f"{root.strip('/')}/") and first in parts and first.partition(".")[0] in MODULES:
            return True
    return False


def _only(archive: bytes, roots: list[str]) -> bytes:
    """Return the members of an archive that are below `roots`, which are folders themselves."""
    result = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(archive)) as found, tarfile.open(fileobj=result, mode="w") as packed:
        for one in found:
            below = [root for root in roots if one.name == root or one.name.startswith(f"{root}/")]
            if below and (one.name not in roots or one.isdir()):
                packed.addfile(one, found.extractfile(one) if one.isreg() else None)
    return result.getvalue()


def _with_folder(archive: bytes, source: Path, name: str) -> bytes:
    """Return an archive with the files of a folder of this machine below `name`, or with one file there."""

    def anyones(one: tarfile.TarInfo) -> tarfile.TarInfo:
        one.uid = one.gid = 0
        one.uname = one.gname = ""
        one.mode |= 0o755 if one.isdir() or one.name.endswith(".sh") else 0o644
        return one

    result = io.BytesIO(archive)
    with tarfile.open(fileobj=result, mode="a") as packed:
        if source.is_dir():
            packed.add(source, arcname=name, filter=anyones)
        elif source.is_file():
            packed.add(source, arcname=f"{name}/{source.name}", filter=anyones)
    return result.getvalue()


def _command(script: Path, folder: str) -> str:
    """Return how a script is run in the folder of a sandbox: by what its first line names, or else by bash, as both forms have it."""
    with script.open("rb") as file:
        interpreter = "" if file.read(2) == b"#!" else "bash "
    return f"{interpreter}/{folder}/{script.name}"


def _in_workdir(task: OpenTask, command: str) -> str:
    """Return a line of sh that runs a command where the task is worked on."""
    folders = " ".join(f'"$(readlink {root})"' for root in map(shlex.quote, task.image.writable))
    return f"mkdir -p {folders} $HOME {REWARDS} && cd {shlex.quote(task.image.workdir)} && exec {command}"


async def _reward_written(sandbox: Sandbox, name: str) -> float | None:
    """Return the reward that stands in the file of the verifier; None without one. As in Harbor, `reward.json` goes first.

    Raises:
        EpisodeError: It is no number from 0 to 1.
        SandboxLostError: The sandbox is lost.
    """
    for file, parse in (("reward.json", json.loads), ("reward.txt", str.strip)):
        try:
            text = (await sandbox.read(f"{REWARDS}/{file}", MAX_REWARD_BYTES)).decode(errors="replace")
        except SandboxLostError:
            raise
        except SandboxError:
            continue
        try:
            return reward_of(parse(text))
        except (ValueError, RecursionError) as error:
            raise EpisodeError(
                f"the verifier of {name} left {one_line(text, 80)!r} in {file}: {one_line(error)}"
            ) from error
    return None


def reward_of(given: Any) -> float:
    """Return the reward that a text, a number or an object with the key `reward` says.

    Raises:
        ValueError: It is no number from 0 to 1.
    """
    if isinstance(given, dict):
        given = given.get("reward")
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise ValueError("a reward is a number, or an object with the number 'reward'")
    try:
        value = float(given)
    except OverflowError:
        value = math.inf
    if not (math.isfinite(value) and 0 <= value <= 1):
        raise ValueError("a reward is a number from 0 to 1")
    return value


def pytest_reward(output: str) -> float:
    """Return 1 where the summaries of pytest in an output (`pytest -rA`) have tests that passed, and no others; else 0."""
    _, *summaries = _SUMMARY.split(output, maxsplit=1)
    return float({outcome for text in summaries for outcome in _OUTCOME.findall(text)} == {"PASSED"})


def _tail(output: bytes) -> str:
    return output.decode(errors="replace").strip()[-SHOWN_CHARACTERS:]
