"""A terminal task from its folder to its reward, apart from who works on it.

    image ─► a container: the work ─┬─► its state ─► a new container of that, tests/ put in ──────────────┬─► test.sh ─► reward
                                    └─► separate: the declared artifacts ─► the verifier's own image ────┘

Of the work, files alone reach the tests. In a container of its state an agent's programs and libraries are there too, as in Harbor: one that
replaces `python` or `pytest` steers its tests. The remedy is Harbor's `environment_mode = "separate"`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from anyio.to_thread import run_sync as in_thread

from agentrl.errors import EpisodeError, SandboxError, SandboxLostError, one_line
from agentrl.rollout.folder_digest import folder_digest
from agentrl.rollout.task_folders import TaskFolder, read_unchanged, variables
from agentrl.rollout.task_settings import Environment
from agentrl.sandboxes import EndReason
from agentrl.sandboxes.backends.docker_images import ImageSource, built_image
from agentrl.sandboxes.container import Container, ContainerSpec
from agentrl.workflows.agent_work import Open, Work, state_after
from agentrl.workflows.repository import pack_folder

TESTS, SOLUTION, REWARDS, ARTIFACTS = "/tests", "/solution", "/logs/verifier", "/logs/artifacts"
"""Where a container has them."""
MAX_REWARD_BYTES = 2**16
MAX_ARTIFACT_BYTES = 256 * 2**20
SHOWN_CHARACTERS = 2000


@dataclass(frozen=True)
class OpenTask:
    """A task folder whose images are there."""

    folder: TaskFolder
    agent: ContainerSpec
    """The container that is worked in."""
    verifier: ContainerSpec
    """That of the tests. Its image is the state of the agent's, unless the verifier is separate."""


@dataclass(frozen=True)
class VerifierResult:
    """The outcome of the verifier."""

    reward: float
    """0 where it gave none."""
    gave_reward: bool = False
    timed_out: bool = False
    files_lost: bool = False
    said: str = ""
    """The end of its output."""


async def open_task(folder: Path, digest: str | None = None, *, network: bool = False) -> OpenTask:
    """Return a task, with its images.

    Args:
        folder: The task folder.
        digest: What its content must be; None: anything.
        network: Whether the agent and the tests have one.

    Raises:
        TaskFileError: It cannot be used, or has changed.
        SandboxError: An image cannot be had.
    """
    found = await in_thread(read_unchanged, folder, digest)
    settings = found.settings
    image = await _image(found.name, found.context, settings.environment)
    agent = replace(_spec(found, settings.environment, network), image=image, user=settings.agent.user)
    own = settings.verifier.environment or settings.environment
    verifier = replace(_spec(found, own, network), image=image, user=settings.verifier.user)
    if settings.verifier.is_separate:
        has_own = settings.verifier.environment is not None and settings.verifier.environment.docker_image is not None
        if has_own or await in_thread((found.tests / "Dockerfile").is_file):
            verifier = replace(verifier, image=await _image(found.name, found.tests, own))
    return OpenTask(found, agent, verifier)


async def attempt(task: OpenTask, open_: Open, work: Work, folders: Mapping[str, str] | None = None) -> VerifierResult:
    """Let `work` be done in the task's container, and return what the verifier gives for what that leaves.

    Args:
        task: The task.
        open_: Opens containers.
        work: What is done in the first.
        folders: Folders of this machine that the first sees.

    Raises:
        EpisodeError: The verifier gave something that is no reward.
        SandboxError: No container can be had.
        SandboxLostError: A container ended.
    """
    spec = replace(task.agent, folders=folders or {})
    if task.folder.settings.verifier.is_separate:
        async with open_(spec) as container:
            await work(container)
            paths = (ARTIFACTS, *task.folder.settings.artifacts)
            artifacts = {path: found for path in paths if (found := await _artifact(container, path)) is not None}
        async with open_(task.verifier) as container:
            return await _verify(task, container, artifacts)
    async with state_after(open_, spec, work) as image:
        if image is None:
            return VerifierResult(0.0, files_lost=True, said="no program can be started in what was left")
        async with open_(replace(task.verifier, image=image)) as container:
            return await _verify(task, container, {})


async def solve(task: OpenTask, container: Container) -> str:
    """Run the reference solution in a task's container, and return the end of what it printed.

    Raises:
        SandboxLostError: The container ended.
    """
    script = task.folder.solution
    assert script is not None
    env = variables(task.folder.settings.solution.env, f"{task.folder.folder}: an env")
    done = await _run_script(container, script, SOLUTION, env, task.folder.settings.agent.timeout_sec)
    return _tail(done.stdout + done.stderr)


async def _verify(task: OpenTask, container: Container, artifacts: Mapping[str, bytes]) -> VerifierResult:
    await container.run(["rm", "-rf", TESTS, REWARDS], user="0", cwd="/")
    await container.run(["sh", "-c", 'mkdir -p "$0" && chmod 777 "$0"', REWARDS], user="0", cwd="/")
    for path, archive in artifacts.items():
        above = str(PurePosixPath(path).parent)
        await container.run(["mkdir", "-p", above], user="0", cwd="/")
        await container.unpack(archive, above)
    settings = task.folder.settings.verifier
    env = variables(settings.env, f"{task.folder.folder}: an env")
    done = await _run_script(container, task.folder.tests / "test.sh", TESTS, env, settings.timeout_sec)
    await container.check_alive()
    reward = await _reward_written(container, task.folder.name)
    return VerifierResult(
        reward=reward or 0.0,
        gave_reward=reward is not None,
        timed_out=done.end_reason is EndReason.TIMEOUT,
        said=_tail(done.stdout + done.stderr),
    )


async def _run_script(container: Container, script: Path, folder: str, env: Mapping[str, str], timeout_s: float) -> Any:
    """Put the folder of a script into a container, and run it where the task is worked on."""
    await container.unpack(await in_thread(pack_folder, script.parent, folder.lstrip("/")), "/")
    return await container.run(["sh", "-c", f"exec {folder}/{script.name}"], env=env, timeout_s=timeout_s)


async def _image(name: str, context: Path, environment: Environment) -> str:
    if not await in_thread((context / "Dockerfile").is_file):
        assert environment.docker_image is not None
        return environment.docker_image
    digest = await in_thread(folder_digest, context)
    return await built_image(ImageSource(name, context, digest, environment.build_timeout_sec))


def _spec(folder: TaskFolder, environment: Environment, network: bool) -> ContainerSpec:
    return ContainerSpec(
        network=network,
        memory_mb=environment.memory_mb,
        cpus=environment.cpus,
        disk_mb=environment.storage_mb,
        env=variables(environment.env, f"{folder.folder}: an env"),
        workdir=environment.workdir,
    )


async def _artifact(container: Container, path: str) -> bytes | None:
    try:
        return await container.pack(path, MAX_ARTIFACT_BYTES)
    except SandboxLostError:
        raise
    except SandboxError:  # there is none, or too much
        return None


async def _reward_written(container: Container, name: str) -> float | None:
    """Return the reward that stands in the file of the verifier; None without one. As in Harbor, `reward.json` goes first.

    Raises:
        EpisodeError: It is no number from 0 to 1.
        SandboxLostError: The container ended.
    """
    for file, parse in (("reward.json", json.loads), ("reward.txt", str.strip)):
        try:
            text = (await container.read(f"{REWARDS}/{file}", MAX_REWARD_BYTES)).decode(errors="replace")
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


def _tail(output: bytes) -> str:
    return output.decode(errors="replace").strip()[-SHOWN_CHARACTERS:]
