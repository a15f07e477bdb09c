"""A coding agent that people use works on a repository, and hidden tests grade what it leaves.

A task is {"harness": "claude-code", "repository": ..., "prompt": TEXT, "tests": {"files": {"test_it.py": TEXT}}}.

- "harness" is a name of `HARNESSES` ("claude-code", "codex", "opencode", "gemini", "mini-swe-agent"), "shell" (the model with a shell for a tool,
  `shell_agent.py`), or a row of your own: {"program": ..., "command": ...}.
- "repository" is a folder, {"files": {path: text}}, or {"git": folder, "commit": name}.
- "tests" are put over the repository when the agent has been stopped, and run in a sandbox that nobody has used: by pytest, or by a "command". "must_pass"
  names those that decide, "removed" the files that are gone then.
- "image" is a Docker image with what the repository needs; without it, it is the run's.
- "limits" are {"timeout_s": 900, "memory_mb": 4096, "disk_mb": 512, "cpus": 2, "calls": 1000}.

The agent runs in a sandbox that reaches the model and nothing else. Its time being up, or its exit code, decides nothing: the repository does. The reward is
1 where every hidden test passes, else 0; with "partial": true, the share that passes. Rows in SWE-bench's form become such tasks: `--tasks swe:ROWS`
(docs/swe_tasks.md).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Self

from anyio.to_thread import run_sync as in_thread
from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentrl import Episode, Reward
from agentrl.config import RunConfig
from agentrl.errors import ConfigError, SandboxError, SandboxLostError, TaskFileError, WorkflowError
from agentrl.rollout.episode_parts import backend_order, load_backend
from agentrl.rollout.task_settings import Cpus, Disk, ImageName, Megabytes, Seconds
from agentrl.sandboxes import Limits, Sandbox
from agentrl.sandboxes.readiness import missing_sandboxes
from agentrl.sandboxes.run_with_model import INSIDE_KEY, CommandResult, run_with_model
from agentrl.sandboxes.seams import WORK
from agentrl.workflows.black_box import model_environment
from agentrl.workflows.harnesses import AGENTS_INSIDE, Harness, NamedHarness, installed_agents
from agentrl.workflows.hidden_tests import FAILED, HiddenTests, TestResult, run_hidden_tests, tests_not_there
from agentrl.workflows.repository import Repository, missing_repositories, with_patch
from agentrl.workflows.shell_agent import work_with_a_shell

HOME = "/tmp/home"  # noqa: S108 - in the sandbox
"""The agent's home, outside of the repository: what the agent keeps there is no part of that."""
SHOWN_CHARACTERS = 500
"""How much of an agent's last words an error shows."""
_PATH = f'PATH="{AGENTS_INSIDE}/bin:{AGENTS_INSIDE}/node_modules/.bin:$PATH"'


class AgentLimits(BaseModel):
    """What the agent and all that it starts may use."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeout_s: Seconds = 900.0
    memory_mb: Megabytes = 4096
    disk_mb: Disk = 512
    """Bound of the repository, and of the home and the temporary files. All of them are in memory."""
    cpus: Cpus = 2.0
    calls: int = Field(default=1000, gt=0)
    """Bound of the requests to the model: at one more the agent is stopped."""

    def of_sandbox(self) -> Limits:
        """Return the limits of the agent's sandbox: agents start many threads, and open many files."""
        return Limits(
            timeout_s=self.timeout_s,
            memory_mb=self.memory_mb,
            disk_mb=self.disk_mb,
            file_mb=self.disk_mb,
            processes=512,
            open_files=4096,
        )


class HarnessTask(BaseModel):
    """One line of the task file."""

    model_config = ConfigDict(extra="forbid")

    harness: NamedHarness
    repository: Repository
    prompt: str = Field(min_length=1)
    tests: HiddenTests
    partial: bool = False
    limits: AgentLimits = AgentLimits()
    name: str = ""
    image: ImageName | None = None
    max_turns: int = Field(default=40, gt=0)
    """Bound of the model calls of the agent "shell"."""
    solution: str = ""
    """A patch that passes the tests: for `agentrl vet`, and to tell a test that is nowhere from one that the agent had vanish. No agent sees it."""

    @model_validator(mode="after")
    def _tests_have_room(self) -> HarnessTask:
        size = sum(len(text.encode(errors="replace")) for text in self.tests.files.values())
        if size > self.limits.disk_mb << 20:
            raise ValueError(
                f"tests.files have {-(-size >> 20)} MB, and limits.disk_mb = {self.limits.disk_mb} leaves a sandbox no room for them; raise it"
            )
        return self

    @classmethod
    async def missing(cls, tasks: Sequence[Self], config: RunConfig) -> list[str]:
        """Return what the tasks need and cannot have here: repositories, git, a backend of sandboxes, images."""
        images: dict[str, str] = {}
        for index, task in enumerate(tasks):
            images.setdefault(task.image or config.sandbox.image, task.name or f"{index}")
        return [
            *await in_thread(missing_repositories, [task.repository for task in tasks]),
            *await missing_sandboxes(
                await load_backend(config.sandbox.backend),
                images,
                runtime=config.sandbox.runtime,
                order=backend_order(config),
            ),
        ]

    def grading_limits(self) -> Limits:
        """Return the limits of the sandbox that the hidden tests run in."""
        memory_mb = min(self.limits.memory_mb, 1024)
        return Limits(timeout_s=self.tests.timeout_s, memory_mb=memory_mb, disk_mb=self.limits.disk_mb)


async def run(episode: Episode[HarnessTask]) -> Reward:
    """Let the agent work on the repository, and return the reward of what it leaves.

    Raises:
        SandboxLostError: A sandbox is lost.
        TaskFileError: A test that has to pass is nowhere, whatever the agent did.
        WorkflowError: The agent's program is missing, it never asked the model, or got no answer.
    """
    task = episode.task
    start = await in_thread(task.repository.packed)
    sandbox = await episode.sandbox(
        image=task.image,
        limits=task.limits.of_sandbox(),
        cpus=task.limits.cpus,
        folders=await agents_shown(task.harness),
    )
    if task.harness is not None:
        await check_installed(sandbox, task.harness)
    await sandbox.restore(start)
    how_it_ended = await _work(episode, sandbox)
    end = await files_left(sandbox)
    # Nothing of the agent goes on while it is graded.
    await sandbox.reset()
    result = FAILED if end is None else await _graded(episode, start, end)
    metrics = {
        "tests_passed": result.passed / max(result.total, 1),
        **how_it_ended,
        "repository_lost": float(end is None),
    }
    value = metrics["tests_passed"] if task.partial else float(result.all_passed)
    return Reward(value, metrics)


async def _work(episode: Episode[HarnessTask], sandbox: Sandbox) -> dict[str, float]:
    """Let the agent work, and return how that ended, as metrics."""
    task = episode.task
    if task.harness is None:
        timed_out = await work_with_a_shell(
            episode,
            sandbox,
            prompt=task.prompt,
            folder=WORK,
            env={"HOME": HOME},
            timeout_s=task.limits.timeout_s,
            max_turns=task.max_turns,
        )
        return {"timed_out": float(timed_out)}
    done = await run_agent(episode, sandbox, task.harness, prompt=task.prompt, limits=task.limits)
    answer = await read_answer(sandbox, task.harness, done)
    return {
        "answered": float(bool(answer)),
        "timed_out": float(done.exit_code is None and done.requests <= task.limits.calls),
        "calls_used_up": float(done.requests > task.limits.calls),
        "exit_code": float(-1 if done.exit_code is None else done.exit_code),
    }


async def agents_shown(harness: Harness | None) -> dict[str, str]:
    """Return the folders of this machine that a sandbox shows to an agent, by their paths in the sandbox.

    It is the folder of the installed agents, where there is one. The agent "shell" (None) needs none.
    """
    agents = await in_thread(installed_agents)
    return {AGENTS_INSIDE: str(agents)} if harness is not None and await in_thread(agents.is_dir) else {}


async def files_left(sandbox: Sandbox) -> bytes | None:
    """Return the files of a sandbox; None where they are too many, or cannot be read.

    Raises:
        SandboxLostError: The sandbox is lost.
    """
    try:
        return await sandbox.snapshot()
    except SandboxLostError:
        raise
    except SandboxError:
        return None


async def check_installed(sandbox: Sandbox, harness: Harness) -> None:
    """Check that the agent's program is in the sandbox.

    Raises:
        WorkflowError: It is not. The message names what to install.
    """
    found = await sandbox.run(["sh", "-c", f"{_PATH} command -v {shlex.quote(harness.program)}"], timeout_s=30)
    if not found.ok:
        raise WorkflowError(
            f"the harness needs the program {harness.program!r}, which is neither in the image {sandbox.spec.image!r} nor in "
            f"{installed_agents()}: {harness.install}"
        )


async def run_agent(
    episode: Episode[Any], sandbox: Sandbox, harness: Harness, *, prompt: str, limits: AgentLimits
) -> CommandResult:
    """Run an agent until it ends, or its time or its calls are used up. All that it started ends with it.

    Args:
        episode: The episode, whose model it asks.
        sandbox: Where it runs.
        harness: The agent.
        prompt: What it is asked, on its standard input.
        limits: Of which `timeout_s` and `calls` count here.

    Returns:
        How it ended.

    Raises:
        SandboxLostError: The sandbox is lost.
        WorkflowError: It never asked the model, or the model's server refused all that it asked.
    """
    extra = {name: value.replace("{model}", episode.model) for name, value in harness.environment.items()}
    script = f"export {_PATH} HOME={HOME}; mkdir -p {HOME}; {harness.command}"
    done = await run_with_model(
        sandbox,
        ["sh", "-c", script],
        base_url=episode.base_url,
        api_key=episode.api_key,
        env={**model_environment("{url}", INSIDE_KEY, episode.model), **extra},
        stdin=prompt.encode(),
        timeout_s=limits.timeout_s,
        max_requests=limits.calls,
    )
    if not done.requests:
        raise WorkflowError(
            f"the agent {harness.program!r} ended with {_end(done)} and never asked the model; at its end it said: "
            f"{(done.stderr.strip() or done.stdout.strip())[-SHOWN_CHARACTERS:]!r}"
        )
    if done.refusal and not done.replies:  # nothing that the policy did: it has said nothing
        raise WorkflowError(
            f"the agent {harness.program!r} got no reply from the model, which refused what it asked ({done.refusal}). The server must "
            "speak the agent's API, and the model's context must hold its prompt: docs/clients.md"
        )
    return done


async def read_answer(sandbox: Sandbox, harness: Harness, done: CommandResult) -> str:
    """Return what the agent said last; empty where it said nothing.

    Args:
        sandbox: Where it ran.
        harness: The agent, which says where its answer stands.
        done: What `run_agent` returned.

    Raises:
        SandboxLostError: The sandbox is lost.
    """
    if harness.answer is None:
        return done.stdout.strip()
    try:
        return (await sandbox.read(f"{HOME}/{harness.answer}")).decode(errors="replace").strip()
    except SandboxLostError:
        raise
    except SandboxError:
        return ""


def _end(done: CommandResult) -> str:
    return "its time" if done.exit_code is None else f"exit code {done.exit_code}"


async def _graded(episode: Episode[HarnessTask], start: bytes, end: bytes) -> TestResult:
    task = episode.task
    sandbox = await episode.sandbox(image=task.image, limits=task.grading_limits())
    result = await run_hidden_tests(sandbox, start, end, task.tests)
    if result.absent:
        # The agent may have had them vanish. What it was given, and the solution, say whether it could have been otherwise.
        await sandbox.reset()
        solved = await in_thread(_solved, task, start)
        if nowhere := await tests_not_there(sandbox, start, start if solved is None else solved, task.tests):
            found_in = "the repository as agents find it" if solved is None else "the repository with its solution"
            raise TaskFileError(
                f"the task {task.name or task.prompt[:60]!r}: tests.must_pass names {', '.join(map(repr, nowhere))}, and pytest finds no such "
                f"test in {found_in}, so no agent can earn anything; correct the id"
                + (", or give the task the 'solution' with which the test is there" if solved is None else "")
            )
    return result


def _solved(task: HarnessTask, start: bytes) -> bytes | None:
    """Return the repository with the task's solution; None where there is none that applies."""
    try:
        return with_patch(start, task.solution) if task.solution else None
    except ConfigError:
        return None
