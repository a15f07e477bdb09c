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
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyio.to_thread import run_sync as in_thread

from agentrl.errors import EpisodeError, SandboxError, SandboxLostError, one_line
from agentrl.machine.sandbox_bounds import FILES, MAX_PACKED_BYTES, WORK
from agentrl.rollout.folder_digest import folder_digest
from agentrl.rollout.task_folders import PAGE, TaskFolder, read_unchanged, variables
from agentrl.sandboxes import EndReason, Limits, Sandbox
from agentrl.sandboxes.task_image import ImageSource, TaskImage, task_image
from agentrl.workflows.harness import HOME, AgentLimits
from agentrl.workflows.hidden_tests import merged
from agentrl.workflows.links_to_tests import links_out
from agentrl.workflows.repository import Archive, archive_of, name_of
from agentrl.workflows.task_steering import (
    LOOK,
    Steering,
    interpreter_of,
    looks_in_workdir,
    places_of,
    sites_of,
    steering,
)

TESTS, SOLUTION, REWARDS = "tests", "solution", "logs/verifier"
"""Where a sandbox has them, below its folder; the image has links to these in its root."""
MAX_REWARD_BYTES = 2**16
MAX_OUTPUT_MB = 64.0
LOOK_TIMEOUT_S = 60.0
MOST_LOOKED = 64
"""Images of which what was found is kept."""
SHOWN_CHARACTERS = 2000
VERIFIER_MB = 16
"""Room in the verifier's sandbox for what its programs write."""
LARGEST_LEFT_MB = (MAX_PACKED_BYTES + FILES * PAGE) >> 20
"""Room that the files of a snapshot take in a sandbox at most, where each has whole pages."""
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
        return AgentLimits(
            timeout_s=settings.agent.timeout_sec,
            memory_mb=settings.environment.memory_mb,
            disk_mb=settings.disk_mb,
            cpus=settings.environment.cpus,
        )

    @property
    def verifier_limits(self) -> Limits:
        """What the verifier may use: whatever the agent left, its files and the tests have room together."""
        own = self.limits.of_sandbox()
        tests_mb = -(-self.folder.tests_bytes >> 20)
        needed = min(own.disk_mb, LARGEST_LEFT_MB) + tests_mb + VERIFIER_MB
        return own.but(disk_mb=max(own.disk_mb, needed))

    @property
    def home(self) -> str:
        """The home of the task's programs: outside of what the tests see, unless the task says that it belongs there."""
        return "/root" if "/root" in self.image.writable else HOME

    @property
    def test_script(self) -> Path:
        """The verifier, on this machine."""
        folder = self.folder
        return (folder.folder if folder.form == "terminal-bench" else folder.tests) / folder.test_script

    @property
    def verifier_environment(self) -> dict[str, str]:
        """The variables of the verifier."""
        return self.environment({"PYTHONNOUSERSITE": "1", **self.folder.settings.verifier.env})

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of the task's programs: the image's, the task's and `more`."""
        where = f"{self.folder.folder}: an env"
        given = self.folder.settings.environment
        own = {**given.service_env, **variables({**given.env, **more}, where)}
        return {**self.image.env, "HOME": self.home, "PWD": self.image.workdir, **own}


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
        found = read_unchanged(folder, digest)
        return found, image_source(found)

    found, source = await in_thread(read)
    task = OpenTask(found, await task_image(source))
    disk_mb = found.settings.disk_mb
    if task.image.start_bytes > disk_mb << 20:
        raise SandboxError(
            f"the image of the task {found.name}: its files in {', '.join(task.image.writable)} take {-(-task.image.start_bytes >> 20)} MB, "
            f"and environment.storage_mb and memory_mb leave a sandbox {disk_mb}; raise them"
        )
    return task


def image_source(folder: TaskFolder) -> ImageSource:
    """Return what the image of a task is made of."""
    environment, settings = folder.settings.environment, folder.settings.metadata.agentrl
    image = None if folder.has_dockerfile else environment.docker_image
    parts = (image or "", environment.workdir or "", *settings.writable)
    return ImageSource(
        name=folder.name,
        digest=folder_digest(folder.context, parts, folder.withheld) if image is None else folder_digest(None, parts),
        context=folder.context,
        withheld=folder.withheld,
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
        ["/bin/sh", "-c", _in_workdir(task, await in_thread(_command, script, SOLUTION))],
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
        EpisodeError: The verifier cannot be started, or gave something that is no reward.
        SandboxError: The task's own files cannot be put into the sandbox.
        SandboxLostError: The sandbox is lost.
    """
    steers_here = await _steering(task, sandbox)
    if end is None or not await _lay_out(task, sandbox, end, steers_here):
        return VerifierResult(0.0, gave_reward=False, timed_out=False, said="the agent's files cannot be put anywhere")
    done = await sandbox.run(
        ["/bin/sh", "-c", _in_workdir(task, await in_thread(_command, task.test_script, TESTS))],
        env=task.verifier_environment,
        timeout_s=task.folder.settings.verifier.timeout_sec,
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


_looked: dict[tuple[str, str], dict[str, Any]] = {}
"""What was found of the places of an image. It cannot change while the image is the same."""


async def _steering(task: OpenTask, sandbox: Sandbox) -> Steering:
    """Return which of the agent's files steer the verifier, by a look at the files as they were at the start.

    Raises:
        EpisodeError: The image has no program that the verifier begins with.
        SandboxError: The files of the start cannot be put into the sandbox.
    """
    script = await in_thread(task.test_script.read_bytes)
    env = task.verifier_environment
    places = places_of(env)
    start = await in_thread(lambda: [name_of(one) for one in archive_of(task.image.start).members])
    asked = {
        "workdir": task.image.workdir,
        "path": places.path,
        "paths": [path for group in places.groups for path in group],
        "programs": interpreter_of(script),
        "sites": [f"{WORK}/{site}" for site in sites_of(start)],
    }
    key = task.image.image, json.dumps(asked)
    if (found := _looked.get(key)) is None:
        await sandbox.restore(task.image.start)
        await sandbox.run(["/bin/sh", "-c", f"mkdir -p {_folders(task)}"], timeout_s=LOOK_TIMEOUT_S)
        done = await sandbox.run_python(code=LOOK, stdin=key[1].encode(), timeout_s=LOOK_TIMEOUT_S)
        if not done.ok:
            raise EpisodeError(f"the sandbox of {task.folder.name} cannot be looked at: {_tail(done.stderr)}")
        found = _looked[key] = json.loads(done.stdout)
        while len(_looked) > MOST_LOOKED:
            del _looked[next(iter(_looked))]
    if found["missing"]:
        raise EpisodeError(
            f"the verifier of {task.folder.name} cannot be started: its image has no {found['missing'][0]}, which "
            f"{task.test_script} is run by; install it there"
        )
    return steering(
        places,
        found["real"],
        found["programs"],
        found["modules"],
        writable=task.image.writable,
        keep=task.folder.settings.metadata.agentrl.keep,
        in_workdir=looks_in_workdir(script.decode(errors="replace"), env),
        start=start,
    )


async def _lay_out(task: OpenTask, sandbox: Sandbox, end: bytes, steers_here: Steering) -> bool:
    """Put the agent's files and the tests into a sandbox, and return whether that could be done.

    Raises:
        SandboxError: Not even the tests alone can be put there, so that it is nothing of the agent's doing.
        SandboxLostError: The sandbox is lost.
    """
    roots = {root.strip("/") for root in task.image.writable}

    def is_own(one: tarfile.TarInfo) -> bool:
        if one.name in roots:
            return one.isdir()
        return any(one.name.startswith(f"{root}/") for root in roots)

    def tree(left_by: bytes) -> bytes:
        left = Archive(left_by)
        own = [one for one in left.members if is_own(one)]
        links = {one.name: one.linkname for one in own if one.issym()}
        dropped = {name for name in links if steers_here.stands_for_a_place(name)} | links_out(
            links, task.image.writable
        )
        result = merged(
            archive_of(task.image.start), left, own, set(), lambda path: path in dropped or steers_here(path)
        )
        with tarfile.open(fileobj=result, mode="w") as packed:
            _add(packed, task.folder.tests, TESTS)
            if task.folder.form == "terminal-bench":
                _add(packed, task.test_script, TESTS)
        return result.getvalue()

    try:
        await sandbox.restore(await in_thread(tree, end))
    except SandboxLostError:
        raise
    except SandboxError:
        # Files that cannot be put anywhere are the agent's doing, if the tests can be.
        await sandbox.restore(await in_thread(tree, task.image.start))
        return False
    return True


def _with_folder(archive: bytes, source: Path, name: str) -> bytes:
    result = io.BytesIO(archive)
    with tarfile.open(fileobj=result, mode="a") as packed:
        _add(packed, source, name)
    return result.getvalue()


def _add(packed: tarfile.TarFile, source: Path, name: str) -> None:
    """Add the files of a folder of this machine to an archive, below `name`, or one file there."""

    def anyones(one: tarfile.TarInfo) -> tarfile.TarInfo:
        one.uid = one.gid = 0
        one.uname = one.gname = ""
        one.mode |= 0o755 if one.isdir() or one.name.endswith(".sh") else 0o644
        return one

    if source.is_dir():
        packed.add(source, arcname=name, filter=anyones)
    elif source.is_file():
        packed.add(source, arcname=f"{name}/{source.name}", filter=anyones)


def _command(script: Path, folder: str) -> str:
    """Return how a script is run in the folder of a sandbox: by what its first line names, or else by bash, as both forms have it."""
    with script.open("rb") as file:
        interpreter = "" if file.read(2) == b"#!" else "bash "
    return f"{interpreter}/{folder}/{script.name}"


def _in_workdir(task: OpenTask, command: str) -> str:
    """Return a line of sh that runs a command where the task is worked on."""
    return f'mkdir -p {_folders(task)} "$HOME" {REWARDS} && cd {shlex.quote(task.image.workdir)} && exec {command}'


def _folders(task: OpenTask) -> str:
    """Return the agent's folders as words of sh."""
    return " ".join(f'"$(readlink {root})"' for root in map(shlex.quote, task.image.writable))


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
        except SandboxError as error:
            if str(error).startswith(FileNotFoundError.__name__):
                continue
            raise EpisodeError(f"the verifier of {name} left no text in {file}: {one_line(error)}") from error
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
