"""A task of an agent in a container: the agent works there, and tests in a new container of the files that it leaves decide the reward.

    open_(spec) ─► a container: work(container) ─► state_of: an image of its files ─► open_(...): a new container, for the tests

Of what an agent did, files alone reach its tests: no process, no variable of a shell. `harness.py` and `terminal_task.py` are the two kinds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

from anyio.to_thread import run_sync as in_thread
from pydantic import BaseModel, ConfigDict, Field

from agentrl import Episode, Reward
from agentrl.errors import EpisodeError, SandboxError, SandboxLostError
from agentrl.sandboxes.container import Container, ContainerSpec
from agentrl.workflows.harnesses import AgentLimits, Harness, agent_folders, run_agent

Open = Callable[[ContainerSpec], AbstractAsyncContextManager[Container]]
"""`episode.container`, or `open_container`."""
Work = Callable[[Container], Awaitable[object]]


class FilesLostError(EpisodeError):
    """No program can be started in the files that were left."""


class ContainerTask(BaseModel, ABC):
    """One line of the task file."""

    model_config = ConfigDict(extra="forbid")

    prompt: str = Field(min_length=1)
    name: str = ""
    network: bool = False

    @property
    @abstractmethod
    def has_solution(self) -> bool:
        """Whether there is a reference solution."""

    @abstractmethod
    async def solve(self, container: Container) -> str:
        """Carry out the reference solution in the agent's container, and return the end of what it printed.

        Raises:
            SandboxLostError: The container ended.
            TaskFileError: The solution cannot be used.
        """

    @abstractmethod
    async def attempt(self, open_: Open, work: Work) -> Reward:
        """Let `work` be done in the agent's container, and return the reward of what it leaves; the detail `output` is the end of what the tests printed.

        Raises:
            EpisodeError: The tests gave no verdict, or no program can be started in what was left.
            SandboxError: No container can be had, or the tests cannot be run in it.
            SandboxLostError: A container ended.
            TaskFileError: The task cannot be used.
        """


@asynccontextmanager
async def state_of(container: Container) -> AsyncIterator[str]:
    """Yield an image of the files in a container. It is removed at the end of the context.

    Raises:
        FilesLostError: No program can be started in them.
    """
    tried = await container.run(["sh", "-c", "exit 7"], timeout_s=30, user="0", cwd="/")
    if tried.exit_code != 7:
        raise FilesLostError("no program can be started in what was left")
    async with container.commit() as image:
        yield image


async def play(episode: Episode[Any], harness: Harness | None, limits: AgentLimits, begin: str = "") -> Reward:
    """Let an agent attempt the task until it ends, or its time or its calls are used up, and return the reward, with how it worked as metrics.

    Args:
        episode: The episode of a `ContainerTask`.
        harness: The agent; None: "shell".
        limits: Of which the time, the calls and the turns count here.
        begin: A line of sh that goes before it, and before each command of "shell".

    Raises:
        EpisodeError: The tests gave no verdict.
        SandboxError: No container can be had, the image has no python3, or the tests cannot be run in it.
        SandboxLostError: A container ended.
        TaskFileError: The task cannot be used.
        WorkflowError: The agent's program is missing, it never asked the model, or got no answer.
    """
    task: ContainerTask = episode.task
    folders = await in_thread(agent_folders) if harness else {}
    metrics = {"files_lost": 0.0}

    async def work(container: Container) -> None:
        metrics.update(await run_agent(episode, container, harness, task.prompt, limits, begin))

    try:
        reward = await task.attempt(lambda spec: episode.container(replace(spec, folders=folders)), work)
    except FilesLostError as error:
        reward = Reward(0.0, {"files_lost": 1.0}, {"output": str(error)})
    return Reward(reward.value, {**metrics, **reward.metrics}, reward.details)


async def if_there(reading: Awaitable[bytes]) -> bytes | None:
    """Return what is read of a container; None where it is not there, or too much.

    Raises:
        SandboxLostError: The container ended.
    """
    try:
        return await reading
    except SandboxLostError:
        raise
    except SandboxError:
        return None
