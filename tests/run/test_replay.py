"""One episode again from its record: the same when it asks the same, and what it asks else when it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl import Episode
from agentrl.config import RunConfig
from agentrl.engine.client import sglang_engine
from agentrl.errors import StoreError
from agentrl.models import NANO
from agentrl.proxy import ChatFormat, SamplingDefaults, open_proxy
from agentrl.rollout.run_episode import local_runner
from agentrl.run.replay import replay
from agentrl.store.changes import InsertEpisode, OpenGroup
from agentrl.store.store import Store
from agentrl.tasks.tasks import GroupTask, episode_seed, group_seed

pytestmark = pytest.mark.anyio
TASKS = [{"n": 3}]


async def two_calls(episode: Episode) -> float:
    history: list[Any] = [{"role": "user", "content": f"{episode.task['n']} + {episode.seed % 10} ="}]
    for question in ("and?", ""):
        reply = await episode.client.chat.completions.create(
            model=episode.model, messages=history, max_tokens=8, temperature=1.5
        )
        history += [{"role": "assistant", "content": reply.choices[0].message.content}]
        history += [{"role": "user", "content": question}]
    return float(len(str(history)) % 7)


async def two_other_calls(episode: Episode) -> float:
    await two_calls(episode)
    await episode.client.chat.completions.create(
        model=episode.model, messages=[{"role": "user", "content": "9 + 9 ="}], max_tokens=8
    )
    return 0.5


@pytest.fixture
async def run_dir(server_url: str, nano_format: ChatFormat, tmp_path: Path) -> Path:
    """A run directory with one episode."""
    config = RunConfig.model_validate({"run_dir": str(tmp_path), "model": {"path": str(NANO)}})
    (tmp_path / "config.json").write_text(config.model_dump_json())
    async with (
        sglang_engine([server_url]) as engine,
        open_proxy(engine, nano_format, "nano") as proxy,
        local_runner(two_calls, proxy, timeout_s=30, defaults=SamplingDefaults()) as runner,
    ):
        outcome = await runner.run(TASKS[0], episode_seed(0, 0, 1), group_seed(0, 0))
    with await in_thread(Store, tmp_path / "store.sqlite") as store:
        await in_thread(store.begin_restart)
        await in_thread(store.write, [OpenGroup(0, 0, 0, 0, GroupTask(0, 0, TASKS[0]).digest)])
        await in_thread(store.write, [InsertEpisode(0, 1, 0, outcome)])
    return tmp_path


async def test_the_same_workflow_says_the_same(run_dir: Path) -> None:
    found = await replay(run_dir, 1, workflow=two_calls, tasks=TASKS)
    assert found.same
    assert found.outcome.reward == found.recorded.reward
    assert (len(found.conversation), found.calls_recorded) == (2, 2)
    assert found.outcome.record.to_json() == found.recorded.record.to_json()
    assert "3 + " in found.conversation[0][0]


async def test_a_workflow_that_changed_shows_what_it_asks_now(run_dir: Path) -> None:
    found = await replay(run_dir, 1, workflow=two_other_calls, tasks=TASKS)
    assert not found.same
    assert len(found.conversation) == 2
    (asked,) = found.unknown
    assert "9 + 9 =" in asked
    assert not found.outcome.finished
    assert "a replay has no engine" in (found.outcome.error or "")


async def test_an_episode_that_does_not_exist(run_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(StoreError, match="holds no episode 7; its episodes are 1 to 1"):
        await replay(run_dir, 7, workflow=two_calls, tasks=TASKS)
    with pytest.raises(StoreError, match="holds no run"):
        await replay(tmp_path_factory.mktemp("nothing"), 1, workflow=two_calls, tasks=TASKS)


async def test_another_task_in_the_place_of_the_episodes_own_is_refused(run_dir: Path) -> None:
    with pytest.raises(StoreError, match="the task of group 0 is another now than the one that episode 1 had"):
        await replay(run_dir, 1, workflow=two_calls, tasks=[{**TASKS[0], "other": 1}])
