"""A terminal task: an agent works in the image of a task folder, and the task's verifier grades what it leaves.

    image ─► a container: the agent ─┬─► its state ─► a new container of that, tests/ put in ──────────────┬─► test.sh ─► reward
                                     └─► separate: the declared artifacts ─► the verifier's own image ────┘

Tasks come from folders in Harbor's form, `--tasks harbor:DIR` (docs/agents.md): each is
{"folder": PATH, "digest": ..., "name": ..., "prompt": the instruction, "agent": "shell"}.

- "agent" is "shell", a model with a shell for a tool, or a harness of `harnesses.py` such as "codex" (`--tasks harbor:DIR@codex`), or a row
  of your own.
- "max_turns" (40) bounds the model calls of the agent "shell".
- "network": true gives agent and verifier the network. Without it neither has one, whatever task.toml says.

The reward is the verifier's, from 0 to 1. Where it leaves none it is 0; where it leaves nonsense, or runs out of its time, the episode fails.
In a container of its state an agent's programs and libraries are there too, as in Harbor: one that replaces `python` or `pytest` steers its
tests. The remedy is Harbor's `environment_mode = "separate"`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Self

from anyio.to_thread import run_sync as in_thread
from pydantic import Field

from agentrl import Episode, Reward
from agentrl.config import RunConfig
from agentrl.errors import EpisodeError, TaskFileError, one_line
from agentrl.sandboxes import EndReason
from agentrl.sandboxes.backends.docker_images import ImageSource, built_image, missing_images
from agentrl.sandboxes.container import Container, ContainerSpec
from agentrl.sandboxes.sandbox import ExecResult
from agentrl.tasks.harbor import TaskFolder, folder_digest, read_task_folder
from agentrl.tasks.harbor_settings import Environment
from agentrl.workflows.container_task import ContainerTask, Open, Work, if_there, play, state_of
from agentrl.workflows.harnesses import AgentLimits, NamedHarness
from agentrl.workflows.repository import pack_folder

TESTS, REWARDS, ARTIFACTS = "/tests", "/logs/verifier", "/logs/artifacts"
"""Where a container has them."""
MAX_REWARD_BYTES = 2**16
MAX_ARTIFACT_BYTES = 256 * 2**20
SHOWN_CHARACTERS = 2000
REWARD_FILES = ("reward.json", "reward.txt")
"""Where a verifier writes its reward. As in Harbor, the first goes first."""


class TerminalTask(ContainerTask):
    """One task folder, and who works on it."""

    folder: Path
    agent: NamedHarness = None
    digest: str | None = None
    """What the content of the folder must be; None: anything."""
    max_turns: int = Field(default=40, gt=0)

    @classmethod
    async def missing(cls, tasks: Sequence[Self], config: RunConfig) -> list[str]:
        """Return what the tasks need and cannot have here: their folders as they were, a Docker engine, images that they name."""
        faults: list[str] = []
        images: dict[str, str] = {}
        for task in tasks:
            try:
                found = await in_thread(read_task_folder, task.folder, task.digest)
            except TaskFileError as error:
                faults.append(str(error))
                continue
            verifier = found.settings.verifier
            places = [(found.settings.environment, found.context)]
            places += [(verifier.environment, found.tests)] if verifier.is_separate and verifier.environment else []
            for environment, folder in places:
                if environment.docker_image and not await in_thread((folder / "Dockerfile").is_file):
                    images.setdefault(environment.docker_image, found.name)
        return [*faults, *await missing_images(images)]

    @property
    def has_solution(self) -> bool:
        """Whether there is a reference solution."""
        return read_task_folder(self.folder).solution is not None

    async def solve(self, container: Container) -> str:
        """Run the reference solution in the task's container, and return the end of what it printed.

        Raises:
            SandboxLostError: The container ended.
            TaskFileError: The folder cannot be used.
        """
        folder = await in_thread(read_task_folder, self.folder)
        script, settings = folder.folder / "solution" / "solve.sh", folder.settings
        return _end_of(await _run_script(container, script, settings.solution.env, settings.agent.timeout_sec))

    async def attempt(self, open_: Open, work: Work) -> Reward:
        """Let `work` be done in the task's container, and return the verifier's reward for what it leaves.

        Raises:
            EpisodeError: The verifier gave something that is no reward, or ran out of its time.
            FilesLostError: No program can be started in what was left.
            SandboxError: An image cannot be built, or no container can be had.
            SandboxLostError: A container ended.
            TaskFileError: The folder cannot be used, or has changed.
        """
        folder = await in_thread(read_task_folder, self.folder, self.digest)
        environment, verifier = folder.settings.environment, folder.settings.verifier
        image, own = await _image(folder, folder.context, environment), None
        if verifier.is_separate:
            own = await _image(folder, folder.tests, verifier.environment or Environment())
        agent = self._spec(environment, image, folder.settings.agent.user)
        tests = self._spec(verifier.environment or environment, own or image, verifier.user)
        artifacts: dict[str, bytes | None] = {}
        async with AsyncExitStack() as states:
            async with open_(agent) as container:
                await work(container)
                if verifier.is_separate:
                    for path in (ARTIFACTS, *folder.settings.artifacts):
                        artifacts[path] = await if_there(container.pack(path, MAX_ARTIFACT_BYTES))
                else:
                    tests = replace(tests, image=await states.enter_async_context(state_of(container)))
            async with open_(tests) as container:
                for path, archive in artifacts.items():
                    if archive is not None:
                        above = str(PurePosixPath(path).parent)
                        await container.run(["mkdir", "-p", above], user="0", cwd="/")
                        await container.unpack(archive, above)
                return await _verify(folder, container)

    def _spec(self, environment: Environment, image: str | None, user: str | None) -> ContainerSpec:
        return ContainerSpec(
            image=image,
            user=user,
            network=self.network,
            memory_mb=environment.memory_mb,
            cpus=environment.cpus,
            disk_mb=environment.storage_mb,
            env=environment.env,
            workdir=environment.workdir,
        )


async def run(episode: Episode[TerminalTask]) -> Reward:
    """Return what the verifier gives for what the agent leaves.

    Raises:
        EpisodeError: The verifier gave something that is no reward, or ran out of its time.
        SandboxError: An image cannot be built, or no container can be had.
        SandboxLostError: A container ended.
        TaskFileError: The folder cannot be used, or has changed.
        WorkflowError: The agent's program is missing, it never asked the model, or got no answer.
    """
    task = episode.task
    timeout_s = (await in_thread(read_task_folder, task.folder)).settings.agent.timeout_sec
    return await play(episode, task.agent, AgentLimits(timeout_s=timeout_s, max_turns=task.max_turns))


async def _verify(folder: TaskFolder, container: Container) -> Reward:
    settings = folder.settings.verifier
    clean = 'rm -rf "$@" && mkdir -p "$1" && chmod 777 "$1"'
    await container.run(["sh", "-c", clean, "sh", REWARDS, TESTS], user="0", cwd="/")
    done = await _run_script(container, folder.tests / "test.sh", settings.env, settings.timeout_sec)
    await container.check_alive()
    if done.end_reason is EndReason.TIMEOUT:  # as on a machine that is busy: Harbor gives no reward either
        raise EpisodeError(
            f"the verifier of {folder.name} did not end within verifier.timeout_sec = {settings.timeout_sec:g}; raise it: {_end_of(done)}"
        )
    reward, printed = await _reward_written(container, folder.name), _end_of(done)
    if reward is None:
        printed = f"test.sh ended with exit code {done.exit_code} and left no reward in {REWARDS}: {printed}"
    return Reward(reward or 0.0, {"no_reward": float(reward is None)}, {"output": printed})


async def _run_script(container: Container, script: Path, env: Mapping[str, str], timeout_s: float) -> ExecResult:
    """Put the folder of a script into a container, as /tests or /solution, and run the script where the task is worked on."""
    folder = script.parent
    await container.unpack(await in_thread(pack_folder, folder, folder.name), "/")
    return await container.run(["sh", "-c", f"exec /{folder.name}/{script.name}"], env=env, timeout_s=timeout_s)


async def _image(folder: TaskFolder, context: Path, environment: Environment) -> str | None:
    """Return the image that is built from a folder; without a Dockerfile, the one that the task names."""
    if not await in_thread((context / "Dockerfile").is_file):
        return environment.docker_image
    digest = await in_thread(folder_digest, context)
    return await built_image(ImageSource(folder.name, context, digest, environment.build_timeout_sec))


async def _reward_written(container: Container, name: str) -> float | None:
    """Return the reward that stands in a file of the verifier; None without one.

    Raises:
        EpisodeError: It is no number from 0 to 1.
        SandboxLostError: The container ended.
    """
    for file in REWARD_FILES:
        data = await if_there(container.read(f"{REWARDS}/{file}", MAX_REWARD_BYTES))
        if data is None:
            continue
        try:
            return read_reward(data)
        except Exception as error:
            wrong = f"the verifier of {name} left {one_line(data.decode(errors='replace'), 80)!r} in {file}"
            raise EpisodeError(f"{wrong}, which is no reward from 0 to 1: {error}") from error
    return None


def read_reward(data: bytes) -> float:
    """Return the reward in a file: a number, or a JSON object with the key `reward`.

    Raises:
        ValueError: It is not from 0 to 1.
    """
    reward = float(json.loads(data)["reward"] if data.lstrip().startswith(b"{") else data)
    if not 0 <= reward <= 1:
        raise ValueError(f"{reward:g} is not from 0 to 1")
    return reward


def _end_of(done: ExecResult) -> str:
    return (done.stdout + done.stderr).decode(errors="replace").strip()[-SHOWN_CHARACTERS:]
