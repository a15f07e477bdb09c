"""Faults that other asynchronous trainers have reported, each tried here on the controller and the store.

A first process trains, checkpoints and is killed with groups in flight, finished and dropped; a second one goes on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl import Episode
from agentrl.proxy import ChatFormat
from agentrl.rollout.workflow import Workflow
from agentrl.store.store import Store
from tests.checkpoints import commit
from tests.rollout.hostile_run import call, open_controller
from tests.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.anyio
SETTINGS: dict[str, Any] = {"group_size": 2, "batch_size": 4, "max_concurrent": 16, "window": 1000}
"""Two groups a batch, and whatever is finished first is trained on first."""


async def train(
    workflow: Workflow,
    chat_format: ChatFormat,
    path: Path,
    *,
    groups: int,
    batches: int = 100,
    checkpoints: int = 100,
    until: Callable[[], bool] = lambda: True,
    **config: Any,
) -> list[list[int]]:
    """One process that trains on up to so many batches, commits the first `checkpoints` of them, and dies after `until`.

    Returns the groups of each batch.
    """
    taken: list[list[int]] = []
    async with open_controller(workflow, chat_format, path, groups=groups, **{**SETTINGS, **config}) as controller:
        step = controller.gate.version
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(controller.run)
                while len(taken) < batches and (batch := await controller.next_batch()) is not None:
                    step += 1
                    taken.append(batch.group_ids)
                    if len(taken) <= checkpoints:
                        consumed = [(step, batch.group_ids)]
                        await in_thread(commit, controller.store, step, path / f"checkpoint-{step}", consumed)
                    controller.advance()
                while not until():
                    await anyio.sleep(0.01)
                tasks.cancel_scope.cancel()
    return taken


def trained_tasks(path: Path) -> list[int]:
    """The tasks in committed batches, each as often as it is in one."""
    with Store(path / "store.sqlite") as store:
        return [task for (task,) in store._db.execute("SELECT task FROM groups WHERE step IS NOT NULL ORDER BY task")]


def dropped_tasks(path: Path) -> set[int]:
    with Store(path / "store.sqlite") as store:
        return {task for (task,) in store._db.execute("SELECT task FROM groups WHERE state = 'rejected'")}


async def test_nemo_rl_3599_no_prompt_is_skipped_or_trained_twice_across_a_restart(
    nano_format: ChatFormat, tmp_path: Path
) -> None:
    """NVIDIA-NeMo/RL#3599: the saved position of the data was ahead of what was trained, so that prompts in flight at a
    checkpoint were skipped, or behind it, so that they were trained on twice."""
    first_process = True

    async def run(episode: Episode) -> float:
        await call(episode)
        if first_process and episode.task["n"] % 3 == 0:
            await anyio.sleep(60)  # in flight when the process dies
        return float(episode.seed % 5)

    taken = await train(run, nano_format, tmp_path, groups=12, batches=3, checkpoints=2)
    assert len(taken) == 3, "of which the third is lost with the process"
    first_process = False
    await train(run, nano_format, tmp_path, groups=12)
    assert await in_thread(trained_tasks, tmp_path) == list(range(12))


async def test_openrlhf_1322_finished_groups_that_no_checkpoint_contains_are_used_after_a_restart(
    nano_format: ChatFormat, tmp_path: Path
) -> None:
    """OpenRLHF#1322: what was generated and not yet trained on was dropped by a restart, and, with the data at its end, the
    epoch began again."""
    played: Counter[int] = Counter()

    async def run(episode: Episode) -> float:
        await call(episode)
        played[episode.task["n"]] += 1
        return float(episode.seed % 5)

    everything = 8 * SETTINGS["group_size"]
    await train(run, nano_format, tmp_path, groups=8, batches=1, until=lambda: played.total() == everything)
    before = await in_thread(trained_tasks, tmp_path)
    assert len(before) == 2
    second = await train(run, nano_format, tmp_path, groups=8)
    assert await in_thread(trained_tasks, tmp_path) == list(range(8))
    assert [len(batch) for batch in second] == [2, 2, 2]
    assert set(played.values()) <= {2, 3, 4}
    assert played.total() <= everything + 2 * SETTINGS["group_size"], "only what was not yet stored is played again"
    assert await train(run, nano_format, tmp_path, groups=8) == [], "the epoch does not begin again"


async def test_trl_7274_dropped_groups_do_not_hold_back_the_position_of_a_restart(
    nano_format: ChatFormat, tmp_path: Path
) -> None:
    """huggingface/trl#7274: dropped rollouts left gaps in the trained ones, so that a restart replayed prompts that had been
    trained on."""
    played: Counter[int] = Counter()

    async def run(episode: Episode) -> float:
        await call(episode)
        task = episode.task["n"]
        played[task] += 1
        return 1.0 if task in (0, 3) else float(played[task])

    options: dict[str, Any] = {"groups": 10, "drop_uniform_groups": True, "max_concurrent": 2, "window": 1}
    await train(run, nano_format, tmp_path, batches=2, **options)
    dropped = await in_thread(dropped_tasks, tmp_path)
    trained = set(await in_thread(trained_tasks, tmp_path))
    assert dropped
    assert dropped <= {0, 3}
    assert len(trained) == 4
    await train(run, nano_format, tmp_path, **options)
    assert await in_thread(trained_tasks, tmp_path) == sorted(set(range(10)) - {0, 3})
    for task in trained | dropped:
        assert played[task] == 2, f"task {task} was not played again"


@pytest.mark.soak
async def test_nemo_rl_3238_a_straggler_holds_up_neither_its_group_nor_the_resumed_run(
    nano_format: ChatFormat, tmp_path: Path
) -> None:
    """NVIDIA-NeMo/RL#3238: a group waited for one stuck rollout for ever, and so did every restart."""

    async def run(episode: Episode) -> float:
        await call(episode)
        if episode.task["n"] == 1 and episode.seed % 2:
            while True:
                try:
                    await asyncio.sleep(0.05)
                except asyncio.CancelledError:
                    continue
        return float(episode.seed % 5)

    options: dict[str, Any] = {
        "groups": 4,
        "episode_timeout_s": 0.5,
        "cancel_timeout_s": 0.1,
        "group_size": 4,
        "batch_size": 8,
    }
    await train(run, nano_format, tmp_path, batches=1, **options)
    await train(run, nano_format, tmp_path, **options)
    assert await in_thread(trained_tasks, tmp_path) == [0, 1, 2, 3]


async def test_nemo_rl_3938_a_task_that_always_fails_does_not_hold_up_the_run(
    nano_format: ChatFormat, tmp_path: Path
) -> None:
    """NVIDIA-NeMo/RL#3938: a prompt that failed on every attempt left its place empty, and training waited for it."""

    async def run(episode: Episode) -> float:
        await call(episode, "1 " * 2000 if episode.task["n"] == 1 else "1 + 1 =")
        return float(episode.seed % 5)

    taken = await train(run, nano_format, tmp_path, groups=5, max_staleness=0, retries=1, window=1)
    assert len(taken) == 2
    assert await in_thread(trained_tasks, tmp_path) == [0, 2, 3, 4]


@pytest.mark.parametrize(
    "past_the_checkpoint", [0, 3, *(pytest.param(some, marks=pytest.mark.soak) for some in (1, 2))]
)
async def test_verl_7579_a_crash_anywhere_between_checkpoints_loses_no_generated_work(
    past_the_checkpoint: int, nano_format: ChatFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl-project/verl#7579: what was generated since the last checkpoint is lost with the process, however many steps ago that
    was, and prompts are served again. Its accounting is the work that is generated twice: here none, of whole episodes and of
    single calls of unfinished ones."""
    generated = 0
    generate = ScriptedEngine.generate

    async def counted(self: ScriptedEngine, *args: Any, **settings: Any) -> Any:
        nonlocal generated
        generated += 1
        return await generate(self, *args, **settings)

    monkeypatch.setattr(ScriptedEngine, "generate", counted)
    first_process, begun, ended = True, 0, 0

    async def run(episode: Episode) -> float:
        nonlocal begun, ended
        await call(episode, "1 + 1 =")
        begun += 1
        if first_process and episode.task["n"] % 4 == 0:
            await anyio.sleep(60)  # in flight when the process dies
        await call(episode, "2 + 2 =")
        ended += 1
        return float(episode.seed % 5)

    groups = 16
    episodes = groups * SETTINGS["group_size"]
    batches = 1 + past_the_checkpoint
    taken = await train(
        run,
        nano_format,
        tmp_path,
        groups=groups,
        batches=batches,
        checkpoints=1,
        until=lambda: begun == episodes and ended == episodes * 3 // 4,
        max_concurrent=episodes,
    )
    assert len(taken) == batches
    first_process = False
    before = generated
    assert before == episodes + episodes * 3 // 4
    await train(run, nano_format, tmp_path, groups=groups, max_concurrent=episodes)
    assert generated == 2 * episodes, "each call of each episode was generated once"
    assert await in_thread(trained_tasks, tmp_path) == list(range(groups))
