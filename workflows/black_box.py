"""Any program is the agent: it is given the address of the model and a key, and what it prints is scored.

A task is {"command": ["python3", "agent.py"], "answer": ...} with a scorer of `chat.py` (of what the program prints),
and as needed "files" ({path: text}, put in its folder), "timeout_s" (300) and "sandbox": true, which runs it in a sandbox
that reaches the model and nothing else. The program finds the task, without answer and scorer, as JSON on its standard
input, and in its environment OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL and the same for ANTHROPIC.

A program that ends with another exit code than 0, or is stopped because its time is up, fails its episode, as a workflow does that raises: it earns
nothing, not even 0, the run counts it as failed, and the error has the end of what it wrote to its standard error. A program for which a bad reply of the
model is an ordinary outcome prints something that its scorer gives 0, and ends with 0.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import anyio
from anyio.to_thread import run_sync as in_thread
from pydantic import Field

from agentrl import Episode, Reward
from agentrl.concurrency.child_process import start_process
from agentrl.errors import EpisodeError, EpisodeTimeoutError, error_line, one_line
from agentrl.sandboxes.run_with_model import INSIDE_KEY, CommandResult, run_with_model
from agentrl.workflows.chat import ChatTask, score

TIMEOUT_S = 300.0
KEPT_BYTES = 2**20
HIDDEN = ("answer", "scorer")
SHOWN_CHARACTERS = 1000
"""How much of the end of a program's standard error a failure shows."""


class BlackBoxTask(ChatTask):
    """What a line of the task file needs. A program may be told of more than a prompt, or of none."""

    command: list[str] = Field(min_length=1)
    files: dict[str, str] = Field(default_factory=dict)
    timeout_s: float = Field(default=TIMEOUT_S, gt=0)
    sandbox: bool = False

    def check_prompt(self) -> None:
        """Check nothing: the program may ask what it likes."""


async def run(episode: Episode[Annotated[dict[str, Any], BlackBoxTask]]) -> Reward:
    """Return the score of what the program prints.

    Raises:
        EpisodeError: The program failed, or was stopped.
    """
    task = episode.task
    done = await (_in_a_sandbox(episode) if task.get("sandbox") else _here(episode))
    episode.log(exit_code=-1 if done.exit_code is None else done.exit_code, program_failed=done.exit_code != 0)
    check_ended_well(done, task)
    return await score(done.stdout, task)


def check_ended_well(done: CommandResult, task: dict[str, Any]) -> None:
    """Check that a program did what it had to do, so that what it printed can be scored.

    Raises:
        EpisodeError: It ended with another exit code than 0. The message has the end of its standard error.
        EpisodeTimeoutError: It was stopped.
    """
    if done.exit_code == 0:
        return
    # The last line comes first: where a message is cut to a line, that is what is read.
    last = one_line(error_line(done.stderr), 200)
    lines = " | ".join(line.strip() for line in done.stderr.strip()[-SHOWN_CHARACTERS:].splitlines())
    shown = f"{last and f': {last}'}. The end of its standard error: {lines!r}"
    program = f"the program {one_line(task['command'], 100)}"
    if done.exit_code is None:
        raise EpisodeTimeoutError(
            f"{program} was stopped: timeout_s = {task.get('timeout_s', TIMEOUT_S):g} s or another limit was used up; raise it, or mend "
            f"what it waits for{shown}"
        )
    raise EpisodeError(f"{program} ended with exit code {done.exit_code}{shown}")


def model_environment(url: str, key: str, model: str) -> dict[str, str]:
    """Return the variables in which OpenAI's and Anthropic's clients look for their server, its key and the model."""
    return {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": key,
        "OPENAI_MODEL": model,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": key,
        "ANTHROPIC_MODEL": model,
    }


def shown(task: dict[str, Any]) -> bytes:
    """Return what the program is told of its task: all but how it is scored."""
    return json.dumps({name: value for name, value in task.items() if name not in HIDDEN}).encode()


async def _in_a_sandbox(episode: Episode) -> CommandResult:
    task = episode.task
    sandbox = await episode.sandbox()
    for path, text in task.get("files", {}).items():
        await sandbox.write(path, text)
    return await run_with_model(
        sandbox,
        task["command"],
        base_url=episode.base_url,
        api_key=episode.api_key,
        env=model_environment("{url}", INSIDE_KEY, episode.model),
        stdin=shown(task),
        timeout_s=task.get("timeout_s", TIMEOUT_S),
    )


async def _here(episode: Episode) -> CommandResult:
    """Run it on this machine, as this user, in a folder of its own."""
    task = episode.task
    url = episode.base_url.removesuffix("/").removesuffix("/v1")
    env = {**os.environ, **model_environment(url, episode.api_key, episode.model)}
    folder = await in_thread(_folder, task.get("files", {}))
    try:
        return await _run(task["command"], folder.name, env, shown(task), task.get("timeout_s", TIMEOUT_S))
    finally:
        with anyio.CancelScope(shield=True):
            await in_thread(folder.cleanup)


async def _run(
    command: list[str], folder: str, env: Mapping[str, str], stdin: bytes, timeout_s: float
) -> CommandResult:
    outputs = {"stdout": bytearray(), "stderr": bytearray()}
    process = await start_process(command, cwd=folder, env=env, stderr=subprocess.PIPE, start_new_session=True)

    async def keep(stream: Any, kept: bytearray) -> None:
        async for data in stream:
            kept += data
            del kept[:-KEPT_BYTES]

    async def give_input() -> None:
        assert process.stdin is not None
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await process.stdin.send(stdin)
            await process.stdin.aclose()

    exit_code: int | None = None
    try:
        with anyio.move_on_after(timeout_s):
            async with anyio.create_task_group() as streams:
                streams.start_soon(keep, process.stdout, outputs["stdout"])
                streams.start_soon(keep, process.stderr, outputs["stderr"])
                streams.start_soon(give_input)
                exit_code = await process.wait()
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # what it left behind keeps its output open
    finally:
        with anyio.CancelScope(shield=True):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            await process.aclose()
    out, err = (data.decode(errors="replace") for data in outputs.values())
    return CommandResult(exit_code, out, err)


def _folder(files: Mapping[str, str]) -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="agentrl-agent-")
    for name, text in files.items():
        path = Path(folder.name, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
