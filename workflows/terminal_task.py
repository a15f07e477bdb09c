"""A terminal task: an agent works in the image of a task folder, and the task's verifier grades what it leaves.

Tasks come from folders in Harbor's form, `--tasks harbor:DIR` (docs/terminal_tasks.md): each is
{"folder": PATH, "digest": ..., "name": ..., "prompt": the instruction, "agent": "shell"}.

- "agent" is "shell", a model with a shell for a tool, or a harness of `harnesses.py` such as "codex" (`--tasks harbor:DIR@codex`), or a row
  of your own.
- "max_turns" (40) bounds the model calls of the agent "shell".
- "network": true gives agent and verifier the network. Without it neither has one, whatever task.toml says.

The reward is the verifier's, from 0 to 1. Where it leaves none, or runs out of time, it is 0; where it leaves nonsense, the episode fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from anyio.to_thread import run_sync as in_thread
from pydantic import BaseModel, ConfigDict, Field

from agentrl import Episode, Reward
from agentrl.config import RunConfig
from agentrl.errors import TaskFileError
from agentrl.rollout.task_folders import read_unchanged
from agentrl.sandboxes.backends.docker_images import missing_images
from agentrl.sandboxes.container import Container
from agentrl.workflows.agent_work import AgentLimits, agents_shown, let_agent_work
from agentrl.workflows.harnesses import NamedHarness
from agentrl.workflows.task_verifier import attempt, open_task


class TerminalTask(BaseModel):
    """One task folder, and who works on it."""

    model_config = ConfigDict(extra="forbid")

    folder: Path
    prompt: str = Field(min_length=1)
    agent: NamedHarness = None
    digest: str | None = None
    """What the content of the folder must be; None: anything."""
    name: str = ""
    max_turns: int = Field(default=40, gt=0)
    network: bool = False

    @classmethod
    async def missing(cls, tasks: Sequence[Self], config: RunConfig) -> list[str]:
        """Return what the tasks need and cannot have here: their folders as they were, a Docker engine, images that they name."""
        faults, images = await in_thread(_faults_and_images, tasks)
        return [*faults, *await missing_images(images)]


def _faults_and_images(tasks: Sequence[TerminalTask]) -> tuple[list[str], dict[str, str]]:
    """Return what is wrong with the folders of tasks, and the images that they name, each with a task that names it."""
    faults: list[str] = []
    images: dict[str, str] = {}
    for task in tasks:
        try:
            found = read_unchanged(task.folder, task.digest)
        except TaskFileError as error:
            faults.append(str(error))
            continue
        named = found.settings.environment.docker_image
        if named is not None and not (found.context / "Dockerfile").is_file():
            images.setdefault(named, found.name)
    return faults, images


async def run(episode: Episode[TerminalTask]) -> Reward:
    """Return what the verifier gives for what the agent leaves.

    Raises:
        EpisodeError: The verifier gave something that is no reward.
        SandboxError: An image cannot be built, or no container can be had.
        SandboxLostError: A container ended.
        WorkflowError: The agent's program is missing, it never asked the model, or got no answer.
    """
    given, metrics = episode.task, {}
    task = await open_task(given.folder, given.digest, network=given.network)
    limits = AgentLimits(timeout_s=task.folder.settings.agent.timeout_sec, max_turns=given.max_turns)

    async def work(container: Container) -> None:
        metrics.update(await let_agent_work(episode, container, given.agent, prompt=given.prompt, limits=limits))

    result = await attempt(task, episode.container, work, await agents_shown(given.agent))
    metrics |= {
        "files_lost": float(result.files_lost),
        "no_reward": float(not result.gave_reward),
        "verifier_timed_out": float(result.timed_out),
    }
    return Reward(result.reward, metrics)
