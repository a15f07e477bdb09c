"""`check_workflow`: run a user's workflow as a run would, and say what is wrong with it."""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from agentrl.config import RunConfig
from agentrl.episode import Episode
from agentrl.errors import UsageError, error_line, one_line
from agentrl.record.end_reason import EndReason
from agentrl.reward import Reward
from agentrl.rollout.check_start import with_model
from agentrl.rollout.episode_parts import open_run_sandboxes
from agentrl.rollout.run_episode import EpisodeRunner, remote_runner
from agentrl.rollout.workflow import Workflow, load_workflow
from agentrl.rollout.workflow import check_workflow as check_is_workflow
from agentrl.store.outcome import Outcome
from agentrl.system.loop_watchdog import watch_loop
from agentrl.system.tasks import in_thread
from agentrl.tasks.task_type import as_task, task_type_of
from agentrl.testing.check_env import BLOCKED_AFTER_S
from agentrl.testing.exercise import exercise
from agentrl.testing.problems import Problems
from agentrl.testing.scripted_model import Reply, Request, ScriptedModel
from agentrl.testing.served_model import served_model

CANCEL_AFTER_S = 1.0
"""When an episode whose model is silent is cancelled."""
CANCEL_TIMEOUT_S = 1.5
"""How long it may then take to end."""


@dataclass
class _Watched:
    """A model with the replies that it gave to each request."""

    model: ScriptedModel
    asked: list[tuple[Request, Any]] = field(default_factory=list)
    silent: bool = False

    async def reply(self, request: Request) -> Reply:
        if self.silent:
            await anyio.sleep_forever()
        reply = await self.model.reply(request)
        self.asked.append((request, reply))
        return reply


async def check_workflow(
    workflow: Workflow | str | Path,
    /,
    tasks: Iterable[Any],
    *,
    model: ScriptedModel | str | Path = "scripted",
    independent_calls: bool = False,
    seed: int = 0,
    timeout_s: float = 120.0,
    config: RunConfig | None = None,
) -> None:
    """Run a workflow on tasks against a model, and raise what is wrong with it.

    It must call the model, return a number or a `Reward`, extend its conversation where it has more than one turn, do the same
    again for the same seed and replies, leave the event loop free, and end when it is cancelled.

    Args:
        workflow: `async def run(episode)`, or the path of its file.
        tasks: Tasks of yours, as `agentrl train` would get them; a few are enough.
        model: Whose replies it gets. "scripted" is `agentrl.testing.exercise`, which calls the tools that it is offered, rightly
            and wrongly, and then answers "42"; or a `ScriptedModel` with a function; or a checkpoint's directory or "nano", which is
            served here for the time.
        independent_calls: The calls of an episode are meant to be conversations of their own.
        seed: Of the episodes.
        timeout_s: Bound of an episode.
        config: Its `sandbox`, `engine` and `rollout.max_tokens` are used. Default: that of a run.

    Raises:
        CheckFailedError: Something is wrong. The message lists every problem with its remedy.
        UsageError: The workflow's file cannot be loaded, it is not async, a task is none, or there is no task.
    """
    run = await in_thread(load_workflow, Path(workflow)) if isinstance(workflow, str | Path) else workflow
    problems = Problems(
        f"the workflow {workflow if isinstance(workflow, str | Path) else getattr(run, '__name__', run)}"
    )
    check_is_workflow(run, "the workflow")
    task_type = task_type_of(run)
    checked = [as_task(task, f"task {index}", task_type) for index, task in enumerate(tasks)]
    if not checked:
        raise UsageError("tasks is empty, so nothing would be checked; give a few of your tasks")
    async with (
        _model_of(model, config or RunConfig()) as source,
        open_run_sandboxes(config or RunConfig()) as sandboxes,
    ):
        watched = _Watched(source)

        @asynccontextmanager
        async def runner(of: Workflow, **bounds: Any) -> AsyncIterator[EpisodeRunner]:
            async with (
                ScriptedModel(watched.reply).serve() as url,
                remote_runner(of, base_url=url, api_key="-", model="scripted", sandboxes=sandboxes, **bounds) as opened,
            ):
                yield opened

        with watch_loop(BLOCKED_AFTER_S) as watchdog:
            async with runner(run, timeout_s=timeout_s) as episodes:
                for task in checked:
                    await _check_task(episodes, watched, task, seed, problems)
                    if not independent_calls:
                        _check_history(watched.asked, problems)
                    if problems.found:
                        break  # other tasks would show the same
            if watched.asked and not watchdog.blocked:
                await _check_cancellation(run, runner, watched, checked[0], seed, problems)
        for place in watchdog.blocked:
            problems.add(
                f"{place} blocks the event loop, and with it every episode",
                "await an asynchronous call there, such as one of episode.client, or call `asyncio.to_thread(...)`",
            )
    problems.raise_any()


@asynccontextmanager
async def _model_of(model: ScriptedModel | str | Path, config: RunConfig) -> AsyncIterator[ScriptedModel]:
    if isinstance(model, ScriptedModel):
        yield model
    elif model == "scripted":
        yield ScriptedModel(exercise)
    else:
        named = config.model_copy(update={"model": config.model.model_copy(update={"path": str(model)})})
        async with served_model(await in_thread(with_model, named)) as served:
            yield served


async def _check_task(runner: EpisodeRunner, watched: _Watched, task: Any, seed: int, problems: Problems) -> None:
    outcomes: list[Outcome] = []
    asked: list[list[tuple[Request, Any]]] = []
    for _ in range(2):
        watched.asked.clear()
        outcomes.append(await runner.run(task, seed, seed))
        asked.append(list(watched.asked))
        if not outcomes[-1].finished:
            _add_failure(outcomes[-1].error or "", task, problems)
            return
    if not asked[0]:
        problems.add(
            f"run(episode) never called the model for the task {_shown(task)}",
            "call it with episode.client, or start a program with episode.base_url and episode.api_key: nothing else is trained on",
        )
        return
    same_replies = [reply for _, reply in asked[0]] == [reply for _, reply in asked[1]]
    first, second = ([request["messages"] for request, _ in calls] for calls in asked)
    if same_replies and (first != second or outcomes[0].reward != outcomes[1].reward):
        problems.add(
            f"the same seed, task and replies gave other {'messages' if first != second else 'rewards'} the second time",
            "draw everything random with episode.seed: an episode that is interrupted is run again to where it was",
        )


def _add_failure(error: str, task: Any, problems: Problems) -> None:
    what, remedy = error_line(error), "whatever the model says, return a reward; what raises fails the episode"
    if "BadRewardError" in error:
        remedy = "return a finite float, a bool, or a Reward(value, metrics, details)"
    elif "EpisodeTimeoutError" in error:
        remedy = "bound the number of its turns"
    elif "'coroutine' object" in what:
        remedy = "what an async function returns must be awaited first: write `await` before the call"
    elif "refused by the script" in error or "was asked once more" in error:
        remedy = "give the ScriptedModel a function, which has a reply for every request"
    problems.add(f"the task {_shown(task)} failed: {what}", remedy)


def _check_history(calls: Sequence[tuple[Request, Any]], problems: Problems) -> None:
    """Note when no call extends an earlier one: each is then a conversation of its own in the record."""
    known = [[_plain(message) for message in request["messages"]] for request, _ in calls]
    turns = range(1, len(calls))
    if len(calls) > 1 and not any(
        known[turn][: len(known[before])] == known[before] and len(known[turn]) > len(known[before])
        for turn in turns
        for before in range(turn)
        if known[before]
    ):
        problems.add(
            f"none of its {len(calls)} calls goes on from an earlier one: the history was changed, or left out, each time",
            "append the reply and what follows to the messages, and change none: each call is recorded, and trained on, as a "
            "conversation of its own otherwise. Where that is meant, say check_workflow(..., independent_calls=True)",
        )


async def _check_cancellation(
    run: Workflow, runner: Any, watched: _Watched, task: Any, seed: int, problems: Problems
) -> None:
    """Run an episode whose model never answers, and cancel it."""
    returned: list[float] = []
    started = time.monotonic()

    @functools.wraps(run)
    async def noted(episode: Episode[Any]) -> float | Reward:
        value = await run(episode)
        returned.append(time.monotonic() - started)
        return value

    watched.silent = True
    async with runner(noted, timeout_s=CANCEL_AFTER_S, cancel_timeout_s=CANCEL_TIMEOUT_S) as silent:
        started = time.monotonic()
        outcome: Outcome = await silent.run(task, seed, seed)
    watched.silent = False
    remedy = "let CancelledError pass: look for `except BaseException`, `except CancelledError` without `raise`, and `finally` blocks that wait"
    if outcome.reason == EndReason.HUNG:
        problems.add(f"it does not end when it is cancelled: {error_line(outcome.error or '')}", remedy)
    elif returned and returned[0] >= CANCEL_AFTER_S:
        problems.add("it swallows its cancellation, and returns a reward as if nothing had happened", remedy)


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without what says nothing."""
    return {name: value for name, value in message.items() if value is not None}


def _shown(value: Any) -> str:
    return one_line(repr(value), 200)
