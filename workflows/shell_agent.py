"""The agent "shell": a model whose one tool runs commands in a sandbox. It is done when it replies without a tool call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import anyio

from agentrl import Episode
from agentrl.reporting.middle_cut import cut_middle
from agentrl.sandboxes import Sandbox

SYSTEM = (
    "You solve a task in a terminal. Run commands with the tool; each starts in {folder}, in a shell of its own, and nothing that it leaves "
    "running goes on. Files stay. There is no network. When the task is done, reply without a call."
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
    sandbox: Sandbox,
    *,
    prompt: str,
    folder: str,
    env: Mapping[str, str],
    timeout_s: float,
    max_turns: int,
) -> bool:
    """Let the model run commands until it replies without a tool call, or its turns or its time are used up.

    Args:
        episode: The episode.
        sandbox: Where the commands run.
        prompt: The task, as the model is told it.
        folder: The working folder of each command.
        env: Variables of each command, HOME among them.
        timeout_s: Bound of all of it together, in seconds.
        max_turns: Bound of the model calls.

    Returns:
        Whether its time ran out.

    Raises:
        SandboxLostError: The sandbox is lost.
    """
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM.format(folder=folder)},
        {"role": "user", "content": prompt},
    ]
    with anyio.move_on_after(timeout_s) as bound:
        await sandbox.run(["mkdir", "-p", env["HOME"]], timeout_s=30)
        for _ in range(max_turns):
            reply = await episode.client.chat.completions.create(model=episode.model, messages=messages, tools=TOOLS)
            message = reply.choices[0].message
            if not message.tool_calls:
                break
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                shown = await _shown(call, sandbox, folder, env)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": shown})
    return bound.cancelled_caught


async def _shown(call: Any, sandbox: Sandbox, folder: str, env: Mapping[str, str]) -> str:
    command = command_of(call)
    if command is None:
        return 'The tool is shell, and its arguments are {"command": "..."}.'
    done = await sandbox.run(["sh", "-c", command], cwd=folder, env=env)
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
