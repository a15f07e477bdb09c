"""A terminal task: an agent works in the image of a task folder, and the task's verifier grades what it leaves.

Tasks come from folders in Harbor's or Terminal-Bench's form, `--tasks harbor:DIR` (docs/terminal_tasks.md): each is
{"folder": PATH, "digest": ..., "name": ..., "prompt": the instruction, "agent": "shell"}.

- "agent" is "shell", a model with a shell for a tool, or a harness of `harnesses.py` such as "codex" (`--tasks harbor:DIR@codex`), or a row
  of your own.
- "max_turns" (40) bounds the model calls of the agent "shell".
- "network": true gives agent and verifier the network. Without it neither has one, whatever task.toml says.

The reward is the verifier's, from 0 to 1. Where it leaves none, or runs out of time, it is 0; where it leaves nonsense, the episode fails.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from anyio.to_thread import run_sync as in_thread
from pydantic import BaseModel, ConfigDict, Field

from agentrl import Episode, Reward
from agentrl.config import RunConfig
from agentrl.errors import TaskFileError
from agentrl.rollout.task_folders import read_unchanged
from agentrl.sandboxes import Sandbox
from agentrl.sandboxes.readiness import RUN_NO_IMAGES, missing_images
from agentrl.workflows.harness import agents_shown, check_installed, files_left, run_agent
from agentrl.workflows.harnesses import Harness, NamedHarness
from agentrl.workflows.shell_agent import work_with_a_shell
from agentrl.workflows.task_verifier import OpenTask, open_task, verify

WITHOUT_TASK_IMAGES = (*RUN_NO_IMAGES, "podman")
"""Backends that do not run the images of tasks, which a Docker engine builds."""


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
        if config.sandbox.backend in WITHOUT_TASK_IMAGES:
            return [
                f"`sandbox.backend` = {config.sandbox.backend!r} runs no images that a Docker engine builds, and each of the {len(tasks)} task "
                f"folders has one, such as {tasks[0].folder}; use docker"
            ]
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
        if named is not None and not found.has_dockerfile:
            images.setdefault(named, found.name)
    return faults, images


async def run(episode: Episode[TerminalTask]) -> Reward:
    """Return what the verifier gives for what the agent leaves.

    Raises:
        EpisodeError: The verifier gave something that is no reward.
        SandboxError: The image cannot be built, or a sandbox is lost.
    """
    given = episode.task
    task = await open_task(given.folder, given.digest)
    sandbox = await episode.sandbox(
        image=task.image.image,
        limits=task.limits.of_sandbox(),
        cpus=task.limits.cpus,
        network=given.network,
        folders=await agents_shown(given.agent),
    )
    await sandbox.restore(task.image.start)
    if given.agent is None:
        timed_out = await work_with_a_shell(
            episode,
            sandbox,
            prompt=given.prompt,
            folder=task.image.workdir,
            env=task.environment({}),
            timeout_s=task.limits.timeout_s,
            max_turns=given.max_turns,
        )
    else:
        timed_out = await _work_with_a_harness(episode, sandbox, task, given.agent)
    end = await files_left(sandbox)
    # Nothing of the agent goes on while it is graded.
    await sandbox.reset()
    tester = await episode.sandbox(
        image=task.image.image, limits=task.verifier_limits, cpus=task.limits.cpus, network=given.network
    )
    result = await verify(task, tester, end)
    metrics = {
        "timed_out": float(timed_out),
        "files_lost": float(end is None),
        "no_reward": float(not result.gave_reward),
        "verifier_timed_out": float(result.timed_out),
    }
    return Reward(result.reward, metrics)


async def _work_with_a_harness(
    episode: Episode[TerminalTask], sandbox: Sandbox, task: OpenTask, harness: Harness
) -> bool:
    """Run the agent's program in the task's folder; whether its time ran out."""
    await check_installed(sandbox, harness)
    environment = {**task.environment({}), **harness.environment}
    del environment["HOME"]  # `run_agent` gives it one
    here = harness.model_copy(
        update={"environment": environment, "command": f"cd {shlex.quote(task.image.workdir)} && {harness.command}"}
    )
    done = await run_agent(episode, sandbox, here, prompt=episode.task.prompt, limits=task.limits)
    return done.exit_code is None
