"""The agent "shell": a model whose one tool runs commands in a container. It is done when it replies without a tool call."""

from __future__ import annotations

import json
from typing import Any

import anyio

from agentrl import Episode
from agentrl.reporting.middle_cut import cut_middle
from agentrl.sandboxes.container import Container

SYSTEM = (
    "You solve a task in a terminal. Run commands with the tool; each starts in {folder}, in a shell of its own. Files stay, and so does what runs "
    "in the background. There is {network} network. When the task is done, reply without a call."
)
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "shell",
            "description": "Run a command with sh. Its exit code and what it prints are returned.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string", "description": "The command."}},
                "required": ["command"],
            },
        },
    }
]
SHOWN_CHARACTERS = 10_000
"""How much the model is shown of what one command prints."""


async def work_with_a_shell(
    episode: Episode[Any],
    container: Container,
    *,
    prompt: str,
    folder: str | None,
    setup: str,
    timeout_s: float,
    max_turns: int,
) -> dict[str, float]:
    """Let the model run commands until it replies without a tool call, or its turns or its time are used up.

    Args:
        episode: The episode.
        container: Where the commands run.
        prompt: The task, as the model is told it.
        folder: The working folder of each command; None: the container's.
        setup: A line of sh that goes before each command.
        timeout_s: Bound of all of it together, in seconds.
        max_turns: Bound of the model calls.

    Returns:
        Whether its time ran out, as a metric.

    Raises:
        SandboxLostError: The container has ended.
    """
    where = (await container.run(["pwd"], cwd=folder)).stdout.decode(errors="replace").strip()
    system = SYSTEM.format(folder=where, network="a" if container.spec.network else "no")
    messages: list[Any] = [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
    with anyio.move_on_after(timeout_s) as bound:
        for _ in range(max_turns):
            reply = await episode.client.chat.completions.create(model=episode.model, messages=messages, tools=TOOLS)
            message = reply.choices[0].message
            if not message.tool_calls:
                break
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                left_s = max(0.0, bound.deadline - anyio.current_time())
                shown = await _shown(call, container, folder, setup, left_s)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": shown})
    return {"timed_out": float(bound.cancelled_caught)}


async def _shown(call: Any, container: Container, folder: str | None, setup: str, timeout_s: float) -> str:
    command = command_of(call)
    if command is None:
        return 'The tool is shell, and its arguments are {"command": "..."}.'
    done = await container.run(["sh", "-c", f"{setup}\n{command}"], cwd=folder, timeout_s=timeout_s)
    ended = done.end_reason.value if done.exit_code is None else f"exit code {done.exit_code}"
    printed = (done.stdout + done.stderr).decode(errors="replace")
    return f"[{ended}]\n{cut_middle(printed, SHOWN_CHARACTERS)}"


def command_of(call: Any) -> str | None:
    """Return the command of a tool call; None where it is a call of another tool, or its arguments are malformed."""
    try:
        command = json.loads(call.function.arguments)["command"]
        str(command).encode()  # it may hold half a character, which nothing takes
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return command if call.function.name == "shell" and isinstance(command, str) and "\0" not in command else None
