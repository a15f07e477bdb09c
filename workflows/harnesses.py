"""Agents at work in a container: programs that people use, or a model with a shell.

`harnesses.toml` is the table of the agents that people use. A row of your own is a `Harness` in `HARNESSES`, or the same fields as JSON in a task.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import anyio
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from agentrl import Episode
from agentrl.envs import ToolEnv, tool
from agentrl.errors import WorkflowError
from agentrl.sandboxes.container import Container
from agentrl.sandboxes.run_with_model import INSIDE_KEY, run_with_model
from agentrl.sandboxes.sandbox import EndReason
from agentrl.tasks.harbor import DEFAULT_AGENT
from agentrl.tasks.harbor_settings import Cpus, Megabytes, Seconds
from agentrl.workflows.black_box import model_variables

AGENTS_INSIDE = "/opt/agents"
"""Where a container sees `installed_agents()`."""
SHOWN_CHARACTERS = 500
"""How much of an agent's last words an error shows."""
SHELL_PROMPT = (
    "You solve a task in a terminal. Run commands with the tool; each starts in {folder}, in a shell of its own. Files stay, and so does what runs "
    "in the background. There is {network} network. When the task is done, reply without a call."
)
_PATH = f'export PATH="{AGENTS_INSIDE}/bin:{AGENTS_INSIDE}/node_modules/.bin:$PATH"'


class Harness(BaseModel):
    """How one agent is run.

    `command` is a line of sh, run in the folder of the repository, with the prompt on its standard input. It finds the model in
    `OPENAI_BASE_URL`, `OPENAI_API_KEY`, `OPENAI_MODEL` and the same for `ANTHROPIC`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    program: str = Field(min_length=1)
    """What must be on the PATH of the container, /opt/agents/bin and /opt/agents/node_modules/.bin included."""
    command: str = Field(min_length=1)
    environment: Mapping[str, str] = Field(default_factory=dict)
    """Further variables. `{url}` in a value becomes the address of the model, without /v1, and `{model}` its name."""


HARNESSES: dict[str, Harness] = {
    name: Harness.model_validate(row)
    for name, row in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items()
}
"""Known agents by name. Add your own."""


def find_harness(given: Any) -> Any:
    """Return the row of a name, and None for "shell"; what is no name is returned as it is.

    Raises:
        ValueError: No row has that name.
    """
    known = {DEFAULT_AGENT: None, **HARNESSES}
    if isinstance(given, str) and given not in known:
        own = "a row of your own: {'program': ..., 'command': ...}"
        raise ValueError(f"there is no harness {given!r}; use {', '.join(known)}, or {own}")
    return known[given] if isinstance(given, str) else given


NamedHarness = Annotated[Harness | None, BeforeValidator(find_harness)]
"""A harness, which a task may name; None: the agent "shell"."""


def installed_agents() -> Path:
    """Return the folder of this machine with the agents: what AGENTRL_AGENTS names, else where scripts/install_agents.sh puts them."""
    named = os.environ.get("AGENTRL_AGENTS")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(named).absolute() if named else cache / "agentrl" / "agents"


def agent_folders() -> dict[str, str]:
    """Return the folder with the agents as containers see it, where it is there: {path inside: path here}."""
    agents = installed_agents()
    return {AGENTS_INSIDE: str(agents)} if agents.is_dir() else {}


class AgentLimits(BaseModel):
    """The resources that the agent and all that it starts may use."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeout_s: Seconds = 900.0
    memory_mb: Megabytes = 4096
    disk_mb: Megabytes = 10240
    """Size of one file. The engine's storage bounds the whole."""
    cpus: Cpus = 2.0
    calls: int = Field(default=1000, gt=0)
    """Bound of the requests to the model: at one more the agent is stopped."""
    max_turns: int = Field(default=40, gt=0)
    """Bound of the model calls of the agent "shell"."""


class Shell(ToolEnv):
    """The agent "shell": a model whose one tool runs commands in a container. It is done when it replies without a tool call.

    Args:
        container: Where the commands run.
        prompt: The task, as the model is told it.
        begin: A line of sh that goes before each command.
        limits: Of which the time of one command and the turns count here.
    """

    max_result_chars = 10_000

    def __init__(self, container: Container, prompt: str, begin: str, limits: AgentLimits) -> None:
        super().__init__()
        self.container, self.prompt, self.begin = container, prompt, begin
        self.tool_timeout_s, self.max_turns = limits.timeout_s, limits.max_turns

    async def on_reset(self, task: Any) -> Any:
        """Return the system prompt and the task."""
        folder = (await self._run("pwd")).stdout.decode(errors="replace").strip()
        system = SHELL_PROMPT.format(folder=folder, network="a" if self.container.spec.network else "no")
        return [{"role": "system", "content": system}, {"role": "user", "content": self.prompt}]

    @tool
    async def shell(self, command: str) -> str:
        """Run a command with sh. Its exit code and what it prints are returned.

        Args:
            command: The command.

        Raises:
            ValueError: It cannot be one.
        """
        if "\0" in command:
            raise ValueError("a command has no NUL character")
        done = await self._run(command)
        return f"[exit code {done.exit_code}]\n{(done.stdout + done.stderr).decode(errors='replace')}"

    def on_answer(self, content: str) -> float:
        """End the work. What it is worth is seen in the container."""
        return 0.0

    async def _run(self, command: str) -> Any:
        return await self.container.run(["sh", "-c", f"{self.begin}\n{command}"], timeout_s=self.tool_timeout_s)


async def run_agent(
    episode: Episode[Any], container: Container, harness: Harness | None, prompt: str, limits: AgentLimits, begin: str
) -> dict[str, float]:
    """Run an agent in a container until it ends, or its time or its calls are used up, and return how it ended as metrics.

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
        with anyio.move_on_after(limits.timeout_s) as bound:
            await episode.env(lambda: Shell(container, prompt, begin, limits)).play(episode)
        return {"timed_out": float(bound.cancelled_caught)}
    extra = {name: value.replace("{model}", episode.model) for name, value in harness.environment.items()}
    done, calls = await run_with_model(
        container,
        ["sh", "-c", f"{begin}\n{_PATH}\n{harness.command}"],
        base_url=episode.base_url,
        api_key=episode.api_key,
        env={**model_variables("{url}", INSIDE_KEY, episode.model), **extra},
        stdin=prompt.encode(),
        timeout_s=limits.timeout_s,
        max_requests=limits.calls,
    )
    await container.check_alive()
    name = repr(harness.program)
    if not calls.requests:
        how = f"exit code {done.exit_code}" if done.end_reason is EndReason.EXIT else "its time"
        printed = (done.stderr.strip() or done.stdout.strip()).decode(errors="replace")[-SHOWN_CHARACTERS:]
        raise WorkflowError(
            f"the agent {name} ended with {how} and never asked the model; at its end it said: {printed!r}. Where the program is missing, install it in "
            "the image, or in the folder that AGENTRL_AGENTS names, as scripts/install_agents.sh does with the known agents"
        )
    if calls.refusal and not calls.replies:  # nothing that the policy did: it has said nothing
        raise WorkflowError(
            f"the agent {name} got no reply from the model, which refused what it asked ({calls.refusal}). The server must "
            "speak the agent's API, and the model's context must hold its prompt: docs/api.md"
        )
    return {
        "timed_out": float(done.end_reason is EndReason.TIMEOUT),
        "calls_used_up": float(done.end_reason is EndReason.KILLED),
        "exit_code": float(-1 if done.exit_code is None else done.exit_code),
    }
