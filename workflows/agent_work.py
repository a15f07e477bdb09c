"""An agent at work in a container, and a new container of the files that it leaves there.

    open(spec) ─► a container: work(container) ─► an image of its state ─► container_after: a new container of that image, for the tests

Of what the agent did, files alone reach its tests: no process, no variable of a shell. The image is removed when it is graded.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from anyio.to_thread import run_sync as in_thread
from pydantic import BaseModel, ConfigDict, Field

from agentrl import Episode
from agentrl.errors import SandboxError, SandboxLostError, WorkflowError
from agentrl.rollout.task_settings import Cpus, Disk, Megabytes, Seconds
from agentrl.sandboxes.container import Container
from agentrl.sandboxes.container_engine import ContainerSpec
from agentrl.sandboxes.run_with_model import INSIDE_KEY, run_with_model
from agentrl.workflows.black_box import model_environment
from agentrl.workflows.harnesses import AGENTS_INSIDE, Harness, installed_agents
from agentrl.workflows.shell_agent import work_with_a_shell

T = TypeVar("T")
Open = Callable[[ContainerSpec], AbstractAsyncContextManager[Container]]
"""`episode.container`, or `open_container`."""
Work = Callable[[Container], Awaitable[None]]
SHOWN_CHARACTERS = 500
"""How much of an agent's last words an error shows."""
_PATH = f'export PATH="{AGENTS_INSIDE}/bin:{AGENTS_INSIDE}/node_modules/.bin:$PATH"'


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
async def container_after(
    open_: Open, spec: ContainerSpec, work: Work, then: ContainerSpec
) -> AsyncIterator[Container | None]:
    """Yield a new container of the files that some work leaves in one; None where no program can be started in them.

    Args:
        open_: Opens containers.
        spec: The container of the work.
        work: What is done there.
        then: The new container; its image is the state that was left.

    Raises:
        SandboxError: No container can be opened, or its state cannot be kept.
        SandboxLostError: A container ended.
    """
    async with AsyncExitStack() as stack:
        async with open_(spec) as container:
            await work(container)
            tried = await container.run(["sh", "-c", "exit 7"], timeout_s=30, user="0", cwd="/")
            image = await stack.enter_async_context(container.commit()) if tried.exit_code == 7 else None
        yield None if image is None else await stack.enter_async_context(open_(replace(then, image=image)))


async def let_agent_work(
    episode: Episode[Any],
    container: Container,
    harness: Harness | None,
    *,
    prompt: str,
    limits: AgentLimits,
    begin: str = "",
) -> dict[str, float]:
    """Let an agent work until it ends, or its time or its calls are used up, and return how that was, as metrics.

    Args:
        episode: The episode, whose model it asks.
        container: Where it works.
        harness: The agent; None: "shell".
        prompt: What it is asked.
        limits: Of which the time, the calls and the turns count here.
        begin: A line of sh that goes before it, and before each command of "shell".

    Raises:
        SandboxError: The image has no python3, by which an agent reaches the model.
        SandboxLostError: The container ended.
        WorkflowError: The agent's program is missing, it never asked the model, or got no answer.
    """
    if harness is None:
        return await work_with_a_shell(
            episode, container, prompt=prompt, begin=begin, timeout_s=limits.timeout_s, max_turns=limits.max_turns
        )
    begin = f"{begin}\n{_PATH}\n"
    program = shlex.quote(harness.program)
    if not (await container.run(["sh", "-c", f"{begin}command -v {program}"])).ok:
        raise WorkflowError(
            f"the harness needs the program {harness.program!r}, which is neither in the image {container.spec.image!r} nor in "
            f"{installed_agents()}: {harness.install}"
        )
    extra = {name: value.replace("{model}", episode.model) for name, value in harness.environment.items()}
    done, calls = await run_with_model(
        container,
        ["sh", "-c", begin + harness.command],
        base_url=episode.base_url,
        api_key=episode.api_key,
        env={**model_environment("{url}", INSIDE_KEY, episode.model), **extra},
        stdin=prompt.encode(),
        timeout_s=limits.timeout_s,
        max_requests=limits.calls,
    )
    await container.check_alive()
    code = done.exit_code if done else None
    if done and not calls.requests:
        how = "its time" if code is None else f"exit code {code}"
        printed = (done.stderr.strip() or done.stdout.strip()).decode(errors="replace")
        raise WorkflowError(
            f"the agent {harness.program!r} ended with {how} and never asked the model; at its end it said: {printed[-SHOWN_CHARACTERS:]!r}"
        )
    if calls.refusal and not calls.replies:  # nothing that the policy did: it has said nothing
        raise WorkflowError(
            f"the agent {harness.program!r} got no reply from the model, which refused what it asked ({calls.refusal}). The server must "
            "speak the agent's API, and the model's context must hold its prompt: docs/clients.md"
        )
    answer = done.stdout if done else b""
    if harness.answer is not None:
        answer = (await container.run(["sh", "-c", f'cat "$HOME"/{shlex.quote(harness.answer)}'])).stdout
    return {
        "answered": float(bool(answer.strip())),
        "timed_out": float(done is not None and code is None),
        "calls_used_up": float(done is None),
        "exit_code": float(-1 if code is None else code),
    }


async def agents_shown(harness: Harness | None) -> Mapping[str, str]:
    """Return the folders of this machine that a container shows to an agent, by their paths there: that of the installed agents."""
    agents = await in_thread(installed_agents)
    return {AGENTS_INSIDE: str(agents)} if harness is not None and await in_thread(agents.is_dir) else {}


async def if_there(reading: Awaitable[T]) -> T | None:
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
