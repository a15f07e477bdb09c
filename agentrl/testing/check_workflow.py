"""`check_workflow`: run a user's workflow as a run would, and report what is wrong with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from agentrl.config import RunConfig
from agentrl.errors import UsageError, error_line, one_line
from agentrl.record.end_reason import EndReason
from agentrl.rollout.episode_parts import open_run_sandboxes
from agentrl.rollout.run_episode import EpisodeRunner, remote_runner
from agentrl.rollout.workflow import Workflow, check_is_workflow, load_workflow
from agentrl.store.outcome import Outcome
from agentrl.system.loop_watchdog import watch_loop
from agentrl.system.tasks import in_thread
from agentrl.tasks.task_type import as_task, task_type_of
from agentrl.testing.check_env import BLOCKED_AFTER_S, Problems
from agentrl.testing.exercise import exercise
from agentrl.testing.scripted_model import Reply, Request, ScriptedModel

CANCEL_AFTER_S = 1.0
"""When an episode whose model is silent is cancelled."""
CANCEL_TIMEOUT_S = 1.5
"""How long it may then take to end."""
_REMEDIES = {
    "BadRewardError": "return a finite float, a bool, or a Reward(value, metrics, details)",
    "EpisodeTimeoutError": "bound the number of its turns",
    "'coroutine' object": "what an async function returns must be awaited first: write `await` before the call",
    "the model was asked once more": "give the ScriptedModel a function, which has a reply for every request",
    "": "whatever the model says, return a reward; what raises fails the episode",
}
"""What to do about a failure, by a part of its text. The first one counts."""


async def check_workflow(
    workflow: Workflow | str | Path,
    /,
    tasks: Iterable[Any],
    *,
    model: ScriptedModel | None = None,
    independent_calls: bool = False,
    seed: int = 0,
    timeout_s: float = 120.0,
    config: RunConfig | None = None,
) -> None:
    """Run a workflow on tasks against a scripted model, and raise what is wrong with it.

    It must call the model, return a number or a `Reward`, extend its conversation where it has more than one turn, do the same
    again for the same seed and replies, leave the event loop free, and end when it is cancelled.

    Args:
        workflow: `async def run(episode)`, or the path of its file. It asks by chat completions.
        tasks: Tasks of yours, as `agentrl train` would get them; a few are enough.
        model: Whose replies it gets. Default: `agentrl.testing.exercise`, which calls the tools that it is offered, rightly and
            wrongly, and then answers "42".
        independent_calls: The calls of an episode are meant to be conversations of their own.
        seed: Of the episodes.
        timeout_s: Bound of an episode.
        config: Its `sandbox` is used. Default: that of a run.

    Raises:
        CheckFailedError: Something is wrong. The message lists every problem with its remedy.
        UsageError: The workflow's file cannot be loaded, it is not async, a task is none, or there is no task.
    """
    run = await in_thread(load_workflow, Path(workflow)) if isinstance(workflow, str | Path) else workflow
    check_is_workflow(run, "the workflow")
    task_type = task_type_of(run)
    checked = [as_task(task, f"task {index}", task_type) for index, task in enumerate(tasks)]
    if not checked:
        raise UsageError("tasks is empty, so nothing would be checked; give a few of your tasks")
    named = workflow if isinstance(workflow, str | Path) else getattr(run, "__name__", run)
    check = _Check(model or ScriptedModel(exercise), seed, Problems(f"the workflow {named}"))
    async with open_run_sandboxes(config or RunConfig()) as sandboxes:
        runner = partial(_open_runner, run, sandboxes=sandboxes)
        with watch_loop(BLOCKED_AFTER_S) as watchdog:
            async with runner(ScriptedModel(check.reply), timeout_s=timeout_s) as episodes:
                for task in checked:
                    await check.twice(episodes, task)
                    if not independent_calls:
                        check.history()
                    if check.problems.found:
                        break  # other tasks would show the same
            if check.calls and not watchdog.blocked:
                silent = ScriptedModel(lambda _: anyio.sleep_forever())  # type: ignore[arg-type, return-value]
                async with runner(silent, timeout_s=CANCEL_AFTER_S, cancel_timeout_s=CANCEL_TIMEOUT_S) as episodes:
                    await check.cancellation(episodes, checked[0])
        for place in watchdog.blocked:
            check.problems.add(
                f"{place} blocks the event loop, and with it every episode",
                "await an asynchronous call there, such as one of episode.client, or call `asyncio.to_thread(...)`",
            )
    if check.problems.found:
        raise check.problems.as_error()


@asynccontextmanager
async def _open_runner(run: Workflow, model: ScriptedModel, **options: Any) -> AsyncIterator[EpisodeRunner]:
    async with (
        model.serve() as url,
        remote_runner(run, base_url=url, api_key="-", model="scripted", **options) as opened,
    ):
        yield opened


@dataclass
class _Check:
    model: ScriptedModel
    seed: int
    problems: Problems
    calls: list[tuple[Request, Reply]] = field(default_factory=list)
    """The calls of the last episode."""

    async def reply(self, request: Request) -> Reply:
        reply = await self.model.reply(request)
        self.calls.append((request, reply))
        return reply

    async def twice(self, episodes: EpisodeRunner, task: Any) -> None:
        """Note what fails, and what is not the same again."""
        seen: list[tuple[Outcome, Sequence[tuple[Request, Reply]]]] = []
        for _ in range(2):
            self.calls = []
            outcome = await episodes.run(task, self.seed, self.seed)
            seen.append((outcome, self.calls))
            if not outcome.finished:
                error = outcome.error or ""
                remedy = next(remedy for part, remedy in _REMEDIES.items() if part in error)
                self.problems.add(f"the task {one_line(repr(task), 200)} failed: {error_line(error)}", remedy)
                return
        if not self.calls:
            self.problems.add(
                f"run(episode) never called the model for the task {one_line(repr(task), 200)}",
                "call it with episode.client, or start a program with episode.base_url and episode.api_key: nothing else is trained on",
            )
        (first, calls), (second, again) = seen
        same_replies = [reply for _, reply in calls] == [reply for _, reply in again]
        same_messages = [asked["messages"] for asked, _ in calls] == [asked["messages"] for asked, _ in again]
        if same_replies and not (same_messages and first.reward == second.reward):
            self.problems.add(
                f"the same seed, task and replies gave other {'rewards' if same_messages else 'messages'} the second time",
                "draw everything random with episode.seed: an episode that is interrupted is run again to where it was",
            )

    def history(self) -> None:
        """Note when no call extends an earlier one: each is then a conversation of its own in the record."""
        known = [
            [{name: value for name, value in message.items() if value is not None} for message in request["messages"]]
            for request, _ in self.calls
        ]
        extends = any(
            len(call) > len(before) > 0 and call[: len(before)] == before
            for turn, call in enumerate(known)
            for before in known[:turn]
        )
        if len(known) > 1 and not extends:
            self.problems.add(
                f"none of its {len(known)} calls goes on from an earlier one: the history was changed, or left out, each time",
                "append the reply and what follows to the messages, and change none: each call is recorded, and trained on, as a "
                "conversation of its own otherwise. Where that is meant, say check_workflow(..., independent_calls=True)",
            )

    async def cancellation(self, episodes: EpisodeRunner, task: Any) -> None:
        """Note when an episode whose model never answers does not end."""
        outcome = await episodes.run(task, self.seed, self.seed)
        if outcome.reason == EndReason.HUNG:
            self.problems.add(
                f"it does not end when it is cancelled: {error_line(outcome.error or '')}",
                "let CancelledError pass: look for `except BaseException`, `except CancelledError` without `raise`, and `finally` "
                "blocks that wait",
            )
