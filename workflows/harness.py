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

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self

from anyio.to_thread import run_sync as in_thread
from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentrl import Episode, Reward
from agentrl.config import RunConfig
from agentrl.sandboxes.backends.docker_images import missing_images
from agentrl.sandboxes.container import Container, ContainerSpec
from agentrl.sandboxes.sandbox import DEFAULT_IMAGE
from agentrl.tasks.harbor_settings import AbsolutePath, ImageName
from agentrl.workflows.harnesses import AgentLimits, NamedHarness, Open, Work, container_after, play
from agentrl.workflows.repository import HiddenTests, Overlay, Repository, overlay_of

WORKSPACE = "/workspace"
"""Where a repository is put whose task names no folder."""


class HarnessTask(BaseModel):
    """One line of the task file."""

    model_config = ConfigDict(extra="forbid")

    harness: NamedHarness
    prompt: str = Field(min_length=1)
    tests: HiddenTests
    repository: Repository | None = None
    image: ImageName | None = None
    workdir: AbsolutePath | None = None
    setup: str = ""
    user: str | None = None
    network: bool = False
    partial: bool = False
    limits: AgentLimits = AgentLimits()
    name: str = ""
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

    async def attempt(self, open_: Open, work: Work, folders: Mapping[str, str]) -> tuple[Reward, str]:
        """Let `work` be done on the repository, and return the reward of what that leaves, and the end of what the tests printed.

        Args:
            open_: Opens containers.
            work: What is done.
            folders: Folders of this machine that it sees.

        Raises:
            SandboxError: No container can be had, or the tests cannot be run in the image.
            SandboxLostError: A container ended.
            TaskFileError: The test patch does not apply.
        """
        folder, overlay, limits = "", Overlay(), self.limits
        spec = ContainerSpec(
            image=self.image,
            user=self.user,
            network=self.network,
            memory_mb=limits.memory_mb,
            cpus=limits.cpus,
            disk_mb=limits.disk_mb,
            workdir=self.workdir or (WORKSPACE if self.repository is not None else None),
        )

        async def prepare_and_work(container: Container) -> None:
            nonlocal folder, overlay
            folder = await folder_of(container)
            if self.repository is not None:
                await self.repository.put(container, folder)
            overlay = await overlay_of(self.tests.patch, self.tests.files, container, folder)
            await self.tests.check_program(container, self.setup)
            await work(container)

        async with container_after(open_, replace(spec, folders=folders), prepare_and_work, spec) as container:
            share, printed = 0.0, ""
            if container is not None:
                await overlay.put(container, folder)
                share, printed = await self.tests.run(container, self.setup)
        metrics = {"tests_passed": share, "files_lost": float(container is None)}
        return Reward(share if self.partial else float(share == 1), metrics), printed

    async def solve(self, container: Container) -> str:
        """Apply the solution.

        Raises:
            SandboxLostError: The container ended.
            TaskFileError: The patch does not apply.
        """
        folder = await folder_of(container)
        await (await overlay_of(self.solution, {}, container, folder)).put(container, folder)
        return ""


async def run(episode: Episode[HarnessTask]) -> Reward:
    """Let the agent work on the repository, and return the reward of what it leaves.

    Raises:
        SandboxError: No container can be had, or the tests cannot be run in the image.
        SandboxLostError: A container ended.
        TaskFileError: The test patch does not apply.
        WorkflowError: The agent's program is missing, it never asked the model, or got no answer.
    """
    task = episode.task
    return await play(episode, task.attempt, task.harness, prompt=task.prompt, limits=task.limits, begin=task.setup)


async def folder_of(container: Container) -> str:
    """Return the folder of the repository in a container.

    Raises:
        SandboxLostError: The container ended.
    """
    return (await container.run(["pwd"])).stdout.decode().strip()
