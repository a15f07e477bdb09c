"""A coding agent that people use works on a repository in a container, and hidden tests grade what it leaves.

A task is {"harness": "claude-code", "repository": ..., "prompt": TEXT, "tests": {"files": {"test_it.py": TEXT}}}.

- "harness" is a name of `harnesses.toml` ("claude-code", "codex", "opencode", "gemini", "mini-swe-agent"), "shell" (the model with a shell for a tool,
  `harnesses.py`), or a row of your own: {"program": ..., "command": ...}.
- "image" is a Docker image with what the repository needs; without it, it is the run's. "workdir" is the repository's folder in it (default: the
  image's WORKDIR), "setup" a line of sh that goes before the agent and the tests, "user" another than the image's.
- "repository", where it is not in the image already, is a folder, {"files": {path: text}}, or {"git": folder, "commit": name}; it is put into
  "workdir" (default: /workspace).
- "tests" are laid over what the agent left, in a new container of that state, and run by pytest or a "command" (`repository.py`).
- "limits" are {"timeout_s": 900, "memory_mb": 4096, "disk_mb": 10240, "cpus": 2, "calls": 1000, "max_turns": 40}.

The agent reaches the model and, unless "network" is true, nothing else. Its time being up, or its exit code, decides nothing: the files do. The
reward is 1 where every test that decides passes, else 0; with "partial": true, the share that passes. Rows in SWE-bench's form become such tasks:
`--tasks swe:ROWS` (docs/agents.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Self

from anyio.to_thread import run_sync as in_thread
from pydantic import model_validator

from agentrl import Episode, Reward
from agentrl.config import RunConfig
from agentrl.sandboxes.backends.docker_images import missing_images
from agentrl.sandboxes.container import Container, ContainerSpec
from agentrl.sandboxes.sandbox import DEFAULT_IMAGE
from agentrl.tasks.harbor_settings import AbsolutePath, ImageName
from agentrl.workflows.container_task import ContainerTask, Open, Work, play, state_of
from agentrl.workflows.harnesses import AgentLimits, NamedHarness
from agentrl.workflows.repository import HiddenTests, Repository, overlay_of

WORKSPACE = "/workspace"
"""Where a repository is put whose task names no folder."""


class HarnessTask(ContainerTask):
    """One line of the task file."""

    harness: NamedHarness
    tests: HiddenTests
    repository: Repository | None = None
    image: ImageName | None = None
    workdir: AbsolutePath | None = None
    setup: str = ""
    user: str | None = None
    partial: bool = False
    limits: AgentLimits = AgentLimits()
    solution: str = ""
    """A patch that passes the tests, for `agentrl vet`. No agent sees it."""

    @model_validator(mode="after")
    def _repository_is_somewhere(self) -> HarnessTask:
        if self.repository is None and self.image is None:
            raise ValueError("a task needs a 'repository', or an 'image' that has it")
        return self

    @classmethod
    async def missing(cls, tasks: Sequence[Self], config: RunConfig) -> list[str]:
        """Return what the tasks need and cannot have here: repositories, git, a Docker engine, images."""
        images: dict[str, str] = {}
        for index, task in enumerate(tasks):
            images.setdefault(task.image or config.sandbox.image, task.name or f"{index}")
        images.pop(DEFAULT_IMAGE, None)  # which is built
        missing = [await in_thread(task.repository.missing) for task in tasks if task.repository is not None]
        return [*dict.fromkeys(filter(None, missing)), *await missing_images(images)]

    @property
    def has_solution(self) -> bool:
        """Whether there is a reference solution."""
        return bool(self.solution)

    async def solve(self, container: Container) -> str:
        """Apply the solution.

        Raises:
            SandboxLostError: The container ended.
            TaskFileError: The patch does not apply.
        """
        folder = await folder_of(container)
        await (await overlay_of(self.solution, {}, container, folder)).put(container, folder)
        return ""

    async def attempt(self, open_: Open, work: Work) -> Reward:
        """Let `work` be done on the repository, and return the reward of what it leaves.

        Raises:
            FilesLostError: No program can be started in what was left.
            SandboxError: No container can be had, or the tests cannot be run in the image.
            SandboxLostError: A container ended.
            TaskFileError: The test patch does not apply.
        """
        spec = ContainerSpec(
            image=self.image,
            user=self.user,
            network=self.network,
            memory_mb=self.limits.memory_mb,
            cpus=self.limits.cpus,
            disk_mb=self.limits.disk_mb,
            workdir=self.workdir or (WORKSPACE if self.repository is not None else None),
        )
        async with AsyncExitStack() as states:
            async with open_(spec) as container:
                folder = await folder_of(container)
                if self.repository is not None:
                    await self.repository.put(container, folder)
                overlay = await overlay_of(self.tests.patch, self.tests.files, container, folder)
                await self.tests.check_program(container, self.setup)
                await work(container)
                image = await states.enter_async_context(state_of(container))
            async with open_(replace(spec, image=image)) as container:
                await overlay.put(container, folder)
                share, printed = await self.tests.run(container, self.setup)
        return Reward(share if self.partial else float(share == 1), {"tests_passed": share}, {"output": printed})


async def run(episode: Episode[HarnessTask]) -> Reward:
    """Let the agent work on the repository, and return the reward of what it leaves.

    Raises:
        SandboxError: No container can be had, or the tests cannot be run in the image.
        SandboxLostError: A container ended.
        TaskFileError: The test patch does not apply.
        WorkflowError: The agent's program is missing, it never asked the model, or got no answer.
    """
    return await play(episode, episode.task.harness, episode.task.limits, episode.task.setup)


async def folder_of(container: Container) -> str:
    """Return the folder of the repository in a container.

    Raises:
        SandboxLostError: The container ended.
    """
    return (await container.run(["pwd"])).stdout.decode().strip()
