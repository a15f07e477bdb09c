"""A controller with its proxy, its store and a scripted engine, in an event loop of the kind that `agentrl train` has."""

from __future__ import annotations

import gc
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from agentrl import Episode
from agentrl.config import RolloutConfig
from agentrl.proxy import ChatFormat, SamplingDefaults, open_proxy
from agentrl.rollout.controller import Controller
from agentrl.rollout.gate import StalenessGate
from agentrl.rollout.run_episode import local_runner
from agentrl.rollout.workflow import Workflow
from agentrl.store.store import Store
from agentrl.system.event_loop import run_loop
from agentrl.system.tasks import in_thread
from agentrl.tasks.curriculum import TaskList
from tests.scripted_engine import ScriptedEngine

GROUP_SIZE = 3
RUN_TIMEOUT_S = 50.0


@dataclass(frozen=True)
class Attempt:
    """One row of the store's episodes."""

    group: int
    reason: str
    reward: float
    error: str | None
    metrics: dict[str, float]


@dataclass(frozen=True)
class Result:
    """What a run left behind."""

    batches: int
    controller: Controller
    attempts: list[Attempt]
    open_groups: int
    open_sessions: int

    @property
    def failed(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts if attempt.reason != "finished"]

    @property
    def finished(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts if attempt.reason == "finished"]


async def call(episode: Episode, text: str = "1 + 1 =") -> Any:
    messages: list[Any] = [{"role": "user", "content": text}]
    return await episode.client.chat.completions.create(model=episode.model, messages=messages, max_tokens=3)


def first_of_its_group(hostile: Workflow) -> Workflow:
    """A workflow whose first episode of each task is `hostile`, and whose others are well."""
    met: set[int] = set()

    async def run(episode: Episode) -> Any:
        task = episode.task["n"]
        await call(episode)
        if task not in met:
            met.add(task)
            return await hostile(episode)
        await anyio.sleep(0.01)
        return 0.5

    return run


@asynccontextmanager
async def open_controller(
    workflow: Workflow, chat_format: ChatFormat, path: Path, *, groups: int, **config: Any
) -> AsyncIterator[Controller]:
    """A controller over one epoch of `groups` tasks that goes on after the last checkpoint in the store at `path`."""
    cancel_timeout_s = config.pop("cancel_timeout_s", 1.5)
    settings = {
        "batch_size": 2 * GROUP_SIZE,
        "group_size": GROUP_SIZE,
        "max_staleness": groups,
        "retries": 0,
        "drop_uniform_groups": False,
        "max_failed_share": 1.0,
        **config,
    }
    rollout = RolloutConfig.model_validate(settings)
    with await in_thread(Store, path / "store.sqlite") as store:
        await in_thread(store.begin_restart)
        kept = await in_thread(store.kept_checkpoints)
        async with (
            open_proxy(ScriptedEngine(), chat_format, "nano") as proxy,
            local_runner(
                workflow,
                proxy,
                timeout_s=rollout.episode_timeout_s,
                cancel_timeout_s=cancel_timeout_s,
                defaults=SamplingDefaults(),
            ) as runner,
        ):
            gate = StalenessGate(
                groups_per_batch=rollout.groups_per_batch,
                max_staleness=rollout.max_staleness,
                window=rollout.window or 1,
                version=kept[-1][0] if kept else 0,
            )
            tasks = TaskList([[{"n": index} for index in range(groups)]], epochs=1)
            yield Controller(tasks, rollout, 0, runner, store, gate)


def play(
    workflow: Workflow,
    chat_format: ChatFormat,
    path: Path,
    *,
    groups: int = 2,
    stop_when: Callable[[], bool] = lambda: False,
    **config: Any,
) -> Result:
    """Run one epoch of `groups` tasks to its end, or until `stop_when`. Fails when that takes `RUN_TIMEOUT_S`."""

    async def main() -> Result:
        async with open_controller(workflow, chat_format, path, groups=groups, **config) as controller:
            batches = 0
            with anyio.fail_after(RUN_TIMEOUT_S):
                async with anyio.create_task_group() as group:
                    group.start_soon(controller.run)

                    async def stop() -> None:
                        while not stop_when():
                            await anyio.sleep(0.02)
                        group.cancel_scope.cancel()

                    group.start_soon(stop)
                    while await controller.next_batch() is not None:
                        batches += 1
                        controller.advance()
                    group.cancel_scope.cancel()
            return await in_thread(_result, controller, batches)

    result = run_loop(main)
    gc.collect()  # what asyncio says of forgotten tasks: in the middle of an import, Python 3.11 may fail (gh-106905)
    return result


def _result(controller: Controller, batches: int) -> Result:
    db = controller.store._db
    rows = db.execute("SELECT group_id, reason, reward, error, metrics FROM episodes ORDER BY id").fetchall()
    attempts = [Attempt(*values, json.loads(metrics)) for *values, metrics in rows]
    (open_groups,) = db.execute("SELECT COUNT(*) FROM groups WHERE state = 'open'").fetchone()
    assert controller.runner.proxy is not None
    return Result(batches, controller, attempts, open_groups, len(controller.runner.proxy.sessions))
