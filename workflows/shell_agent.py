"""The agent "shell": a model whose one tool runs commands in a container. It is done when it replies without a tool call."""

from __future__ import annotations

from typing import Any

import anyio

from agentrl import Episode
from agentrl.envs import ToolEnv, tool
from agentrl.sandboxes.container import Container

SYSTEM = (
    "You solve a task in a terminal. Run commands with the tool; each starts in {folder}, in a shell of its own. Files stay, and so does what runs "
    "in the background. There is {network} network. When the task is done, reply without a call."
)


class Shell(ToolEnv):
    """A container as a tool environment.

    Args:
        container: Where the commands run.
        prompt: The task, as the model is told it.
        begin: A line of sh that goes before each command.
        timeout_s: Bound of one command, in seconds.
        max_turns: Bound of the model calls.
    """

    max_result_chars = 10_000

    def __init__(self, container: Container, prompt: str, begin: str, timeout_s: float, max_turns: int) -> None:
        super().__init__()
        self.container, self.prompt, self.begin = container, prompt, begin
        self.tool_timeout_s, self.max_turns = timeout_s, max_turns

    async def on_reset(self, task: Any) -> Any:
        """Return the system prompt and the task."""
        folder = (await self._run("pwd")).stdout.decode(errors="replace").strip()
        system = SYSTEM.format(folder=folder, network="a" if self.container.spec.network else "no")
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


async def work_with_a_shell(
    episode: Episode[Any], container: Container, *, prompt: str, begin: str, timeout_s: float, max_turns: int
) -> dict[str, float]:
    """Let the model run commands until it replies without a tool call, or its turns or its time are used up.

    Returns:
        Whether its time ran out, as a metric.

    Raises:
        SandboxLostError: The container has ended.
    """
    with anyio.move_on_after(timeout_s) as bound:
        await episode.env(lambda: Shell(container, prompt, begin, timeout_s, max_turns)).play(episode)
    return {"timed_out": float(bound.cancelled_caught)}
