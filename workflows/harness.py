"""A coding agent that people use works on a repository in a container, and hidden tests grade what it leaves.

A task is {"harness": "claude-code", "repository": ..., "prompt": TEXT, "tests": {"files": {"test_it.py": TEXT}}}.

- "harness" is a name of `HARNESSES` ("claude-code", "codex", "opencode", "gemini", "mini-swe-agent"), "shell" (the model with a shell for a tool,
  `shell_agent.py`), or a row of your own: {"program": ..., "command": ...}.
- "image" is a Docker image with what the repository needs; without it, it is the run's. "workdir" is the repository's folder in it (default: the
  image's WORKDIR), "setup" a line of sh that goes before the agent and the tests, "user" another than the image's.
- "repository", where it is not in the image already, is a folder, {"files": {path: text}}, or {"git": folder, "commit": name}; it is put into
  "workdir" (default: /workspace).
- "tests" are laid over what the agent left, in a new container of that state, and run by pytest or a "command" (`hidden_tests.py`).
- "limits" are {"timeout_s": 900, "memory_mb": 4096, "disk_mb": 10240, "cpus": 2, "calls": 1000, "max_turns": 40}.

The agent reaches the model and, unless "network" is true, nothing else. Its time being up, or its exit code, decides nothing: the files do. The
reward is 1 where every test that decides passes, else 0; with "partial": true, the share that passes. Rows in SWE-bench's form become such tasks:
`--tasks swe:ROWS` (docs/swe_tasks.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from anyio.to_thread import run_sync as in_thread
from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentrl import Episode, Reward
from agentrl.config import RunConfig
from agentrl.rollout.task_settings import AbsolutePath, ImageName
from agentrl.sandboxes.backends.docker_images import missing_images
from agentrl.sandboxes.container import Container, ContainerSpec
from agentrl.sandboxes.seams import DEFAULT_IMAGE
from agentrl.workflows.agent_work import AgentLimits, Open, Work, agents_shown, let_agent_work, state_after
from agentrl.workflows.harnesses import NamedHarness
from agentrl.workflows.hidden_tests import (
    HiddenTests,
    Overlay,
    TestsResult,
    check_tests_run,
    lay_over,
    patched,
    run_hidden_tests,
)
from agentrl.workflows.repository import Repository, missing_repositories

WORKSPACE = "/workspace"


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
        repositories = [task.repository for task in tasks if task.repository is not None]
        return [*await in_thread(missing_repositories, repositories), *await missing_images(images)]

    @property
    def folder(self) -> str | None:
        """The folder of the repository; None: the image's."""
        return self.workdir or (WORKSPACE if self.repository is not None else None)

    @property
    def spec(self) -> ContainerSpec:
        """The container of the agent."""
        limits = self.limits
        return ContainerSpec(
            image=self.image,
            user=self.user,
            network=self.network,
            memory_mb=limits.memory_mb,
            cpus=limits.cpus,
            disk_mb=limits.disk_mb,
            workdir=self.workdir,
        )


async def run(episode: Episode[HarnessTask]) -> Reward:
    """Let the agent work on the repository, and return the reward of what it leaves.

    Raises:
        SandboxError: No container can be had, or the tests cannot be run in the image.
        SandboxLostError: A container ended.
        TaskFileError: The test patch does not apply.
        WorkflowError: The agent's program is missing, it never asked the model, or got no answer.
    """
    task, metrics = episode.task, {}

    async def work(container: Container) -> None:
        metrics.update(
            await let_agent_work(
                episode,
                container,
                task.harness,
                prompt=task.prompt,
                limits=task.limits,
                folder=task.folder,
                setup=task.setup,
            )
        )

    result = await attempt(task, episode.container, work, replace(task.spec, folders=await agents_shown(task.harness)))
    metrics |= {"tests_passed": result.passed / max(result.total, 1), "files_lost": float(not result.total)}
    return Reward(metrics["tests_passed"] if task.partial else float(result.all_passed), metrics)


async def attempt(task: HarnessTask, open_: Open, work: Work, spec: ContainerSpec) -> TestsResult:
    """Let `work` be done on the repository of a task, and return how many of its tests pass on what that leaves.

    Raises:
        SandboxError: No container can be had, or the tests cannot be run in the image.
        SandboxLostError: A container ended.
        TaskFileError: The test patch does not apply.
    """
    folder, overlay = "", Overlay({}, ())

    async def prepare_and_work(container: Container) -> None:
        nonlocal folder, overlay
        if task.repository is not None:
            await _put_repository(task.repository, container, task.folder or WORKSPACE)
        folder = task.folder or (await container.run(["pwd"])).stdout.decode().strip()
        overlay = await patched(task.tests.patch, container, folder)
        await check_tests_run(task.tests, container, folder, task.setup)
        await work(container)

    async with state_after(open_, spec, prepare_and_work) as image:
        if image is None:
            return TestsResult(0, 0)
        async with open_(replace(spec, image=image, folders={})) as container:
            await lay_over(replace(overlay, files={**overlay.files, **task.tests.files}), container, folder)
            return await run_hidden_tests(task.tests, container, folder, task.setup)


async def _put_repository(repository: Repository, container: Container, folder: str) -> None:
    packed = await in_thread(repository.packed)
    await container.run(["mkdir", "-p", folder], user="0", cwd="/")
    await container.unpack(packed, folder)
    owner = (await container.run(["id", "-u"], cwd="/")).stdout.decode().strip()
    await container.run(["chown", "-R", owner, folder], user="0", cwd="/")
