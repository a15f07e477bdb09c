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
from collections.abc import Mapping
from pathlib import Path
from subprocess import DEVNULL
from typing import Annotated, Any

import anyio
from anyio.to_thread import run_sync as in_thread
from pydantic import Field

from agentrl import Episode, Reward
from agentrl.errors import EpisodeError, EpisodeTimeoutError, error_line, one_line
from agentrl.sandboxes import EndReason
from agentrl.sandboxes.run_with_model import INSIDE_KEY, run_with_model
from agentrl.sandboxes.sandbox import ExecResult
from agentrl.system import traces
from agentrl.system.child_process import kill_group
from agentrl.system.files import scratch_directory
from agentrl.workflows.chat import ChatTask, score

HIDDEN = ("answer", "scorer", "criteria")
READ_BYTES = 2**20
"""How much of the end of each output stream is read."""
SHOWN_CHARACTERS = 1000
"""How much of the end of a program's standard error a failure shows."""


class BlackBoxTask(ChatTask):
    """A line of the task file. A program may need more than a prompt, or none."""

    command: list[str] = Field(min_length=1)
    files: dict[str, str] = Field(default_factory=dict)
    timeout_s: float = Field(default=300.0, gt=0)
    sandbox: bool = False

    def check_prompt(self) -> None:
        """Check nothing: the program may ask what it likes."""


async def run(episode: Episode[Annotated[dict[str, Any], BlackBoxTask]]) -> Reward:
    """Return the score of what the program prints.

    Raises:
        EpisodeError: The program ended with another exit code than 0. The message has the end of its standard error.
        EpisodeTimeoutError: It was stopped.
    """
    task = BlackBoxTask.model_validate(episode.task)
    shown = json.dumps({name: value for name, value in episode.task.items() if name not in HIDDEN}).encode()
    done = await (_in_a_sandbox if task.sandbox else _here)(episode, task, shown)
    stopped = done.end_reason not in (EndReason.EXIT, EndReason.SIGNAL)
    code = -done.signal if done.signal else done.exit_code
    episode.log(exit_code=-1 if stopped or code is None else code, program_failed=not done.ok)
    if done.ok:
        return await score(done.stdout.decode(errors="replace"), episode.task)
    how = f"ended with exit code {code}"
    if stopped:
        how = f"was stopped ({done.end_reason}): timeout_s = {task.timeout_s:g} s or another limit was used up; raise it, or mend what it waits for"
    # The last line comes first: where a message is cut to a line, that is what is read.
    printed = done.stderr.decode(errors="replace").strip()
    last = one_line(error_line(printed), 200)
    rest = " | ".join(line for line in map(str.strip, printed[-SHOWN_CHARACTERS:].splitlines()) if line != last)
    end = f": {last or 'its standard error is empty'}" + (f". It also wrote: {rest!r}" if rest else "")
    error = EpisodeTimeoutError if stopped else EpisodeError
    raise error(f"the program {one_line(task.command, 100)} {how}{end}")


def model_variables(url: str, key: str, model: str) -> dict[str, str]:
    """Return the variables in which OpenAI's and Anthropic's clients look for their server, its key and the model, and OpenTelemetry for its trace."""
    return {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": key,
        "OPENAI_MODEL": model,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": key,
        "ANTHROPIC_MODEL": model,
        **traces.variables(),
    }


async def _in_a_sandbox(episode: Episode[Any], task: BlackBoxTask, stdin: bytes) -> ExecResult:
    sandbox = await episode.sandbox()
    for path, text in task.files.items():
        await sandbox.write(path, text)
    done, _ = await run_with_model(
        sandbox,
        task.command,
        base_url=episode.base_url,
        api_key=episode.api_key,
        env=model_variables("{url}", INSIDE_KEY, episode.model),
        stdin=stdin,
        timeout_s=task.timeout_s,
    )
    return done


async def _here(episode: Episode[Any], task: BlackBoxTask, stdin: bytes) -> ExecResult:
    """Run it on this machine, as this user, in a folder of its own."""
    url = episode.base_url.removesuffix("/").removesuffix("/v1")
    env = {**os.environ, **model_variables(url, episode.api_key, episode.model)}
    words = 'mkdir -p work && cd work && exec "$@" < ../stdin > ../stdout 2> ../stderr'
    command, code = ["sh", "-c", words, "sh", *task.command], None
    async with scratch_directory("agentrl-agent-") as folder:
        await in_thread(write_files, folder / "work", task.files)
        await in_thread((folder / "stdin").write_bytes, stdin)
        with anyio.CancelScope(shield=True):
            process = await anyio.open_process(
                command, cwd=folder, env=env, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True
            )
        try:
            with anyio.move_on_after(task.timeout_s):
                code = await process.wait()
        finally:
            with anyio.CancelScope(shield=True):
                kill_group(process)
                await process.wait()
        stdout, stderr = [await in_thread(_end_of, folder / name) for name in ("stdout", "stderr")]
    reason = EndReason.TIMEOUT if code is None else EndReason.EXIT
    return ExecResult(end_reason=reason, exit_code=code, stdout=stdout, stderr=stderr)


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files below a folder. Scripts that begin with #! can be run."""
    for name, content in files.items():
        path, data = folder / name, content.encode() if isinstance(content, str) else content
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        if data.startswith(b"#!"):
            path.chmod(0o755)


def _end_of(file: Path) -> bytes:
    return file.read_bytes()[-READ_BYTES:]
