"""An agent at work in a container, and an image of what it leaves there.

    open(spec) ─► a container: work(container) ─► state_after: an image of its files ─► who grades opens a new container of that image

Of what the agent did, files alone reach its tests: no process, no variable of a shell. The image is removed when it is graded.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from anyio.to_thread import run_sync as in_thread
from pydantic import BaseModel, ConfigDict, Field

from agentrl import Episode
from agentrl.errors import WorkflowError
from agentrl.rollout.task_settings import Cpus, Disk, Megabytes, Seconds
from agentrl.sandboxes.container import Container, ContainerSpec
from agentrl.sandboxes.run_with_model import INSIDE_KEY, CommandResult, run_with_model
from agentrl.workflows.black_box import model_environment
from agentrl.workflows.harnesses import AGENTS_INSIDE, Harness, installed_agents
from agentrl.workflows.shell_agent import work_with_a_shell

Open = Callable[[ContainerSpec], AbstractAsyncContextManager[Container]]
"""`episode.container`, or `open_container`."""
Work = Callable[[Container], Awaitable[None]]
SHOWN_CHARACTERS = 500
"""How much of an agent's last words an error shows."""
_PATH = f'PATH="{AGENTS_INSIDE}/bin:{AGENTS_INSIDE}/node_modules/.bin:$PATH"'


class AgentLimits(BaseModel):
    """What the agent and all that it starts may use."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeout_s: Seconds = 900.0
    memory_mb: Megabytes = 4096
    disk_mb: Disk = 10240
    """Size of one file. The engine's storage bounds the whole."""
    cpus: Cpus = 2.0
    calls: int = Field(default=1000, gt=0)
    """Bound of the requests to the model: at one more the agent is stopped."""
    max_turns: int = Field(default=40, gt=0)
    """Bound of the model calls of the agent "shell"."""


@asynccontextmanager
async def state_after(open_: Open, spec: ContainerSpec, work: Work) -> AsyncIterator[str | None]:
    """Yield an image of what some work leaves in a container; None: nothing that a program can be started in.

    Raises:
        SandboxError: No container can be opened, or its state cannot be kept.
        SandboxLostError: The container ended.
    """
    async with AsyncExitStack() as images:
        async with open_(spec) as container:
            await work(container)
            tried = await container.run(["sh", "-c", "exit 7"], timeout_s=30, user="0", cwd="/")
            image = await images.enter_async_context(container.commit()) if tried.exit_code == 7 else None
        yield image


async def let_agent_work(
    episode: Episode[Any],
    container: Container,
    harness: Harness | None,
    *,
    prompt: str,
    limits: AgentLimits,
    folder: str | None = None,
    setup: str = "",
) -> dict[str, float]:
    """Let an agent work until it ends, or its time or its calls are used up, and return how that was, as metrics.

    Args:
        episode: The episode, whose model it asks.
        container: Where it works.
        harness: The agent; None: "shell".
        prompt: What it is asked.
        limits: Of which the time, the calls and the turns count here.
        folder: Where it begins; None: the container's.
        setup: A line of sh that goes before it, and before each command of "shell".

    Raises:
        SandboxError: The image has no python3, by which an agent reaches the model.
        SandboxLostError: The container ended.
        WorkflowError: The agent's program is missing, it never asked the model, or got no answer.
    """
    if harness is None:
        return await work_with_a_shell(
            episode,
            container,
            prompt=prompt,
            folder=folder,
            setup=setup,
            timeout_s=limits.timeout_s,
            max_turns=limits.max_turns,
        )
    begin = f"{setup}\nexport {_PATH}"
    found = await container.run(["sh", "-c", f"{begin}; command -v {shlex.quote(harness.program)}"], cwd=folder)
    if not found.ok:
        raise WorkflowError(
            f"the harness needs the program {harness.program!r}, which is neither in the image {container.spec.image!r} nor in "
            f"{installed_agents()}: {harness.install}"
        )
    extra = {name: value.replace("{model}", episode.model) for name, value in harness.environment.items()}
    done = await run_with_model(
        container,
        ["sh", "-c", f"{begin}; {harness.command}"],
        base_url=episode.base_url,
        api_key=episode.api_key,
        env={**model_environment("{url}", INSIDE_KEY, episode.model), **extra},
        cwd=folder,
        stdin=prompt.encode(),
        timeout_s=limits.timeout_s,
        max_requests=limits.calls,
    )
    await container.check_alive()
    _check_asked(harness, done)
    calls_used_up = done.requests > limits.calls
    return {
        "answered": float(bool(await _answer(container, harness, done))),
        "timed_out": float(done.exit_code is None and not calls_used_up),
        "calls_used_up": float(calls_used_up),
        "exit_code": float(-1 if done.exit_code is None else done.exit_code),
    }


async def agents_shown(harness: Harness | None) -> Mapping[str, str]:
    """Return the folders of this machine that a container shows to an agent, by their paths there: that of the installed agents."""
    agents = await in_thread(installed_agents)
    return {AGENTS_INSIDE: str(agents)} if harness is not None and await in_thread(agents.is_dir) else {}


def _check_asked(harness: Harness, done: CommandResult) -> None:
    if not done.requests:
        how = "its time" if done.exit_code is None else f"exit code {done.exit_code}"
        raise WorkflowError(
            f"the agent {harness.program!r} ended with {how} and never asked the model; at its end it said: "
            f"{(done.stderr.strip() or done.stdout.strip())[-SHOWN_CHARACTERS:]!r}"
        )
    if done.refusal and not done.replies:  # nothing that the policy did: it has said nothing
        raise WorkflowError(
            f"the agent {harness.program!r} got no reply from the model, which refused what it asked ({done.refusal}). The server must "
            "speak the agent's API, and the model's context must hold its prompt: docs/clients.md"
        )


async def _answer(container: Container, harness: Harness, done: CommandResult) -> str:
    """Return what the agent said last; empty where it said nothing."""
    if harness.answer is None:
        return done.stdout.strip()
    said = await container.run(["sh", "-c", f'cat "$HOME"/{shlex.quote(harness.answer)}'])
    return said.stdout.decode(errors="replace").strip()
