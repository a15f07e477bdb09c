"""The figures of an evaluation in closed form, and its log."""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentrl
from agentrl.config import EngineConfig, RunConfig
from agentrl.engine.launch import open_engine
from agentrl.episode import Episode
from agentrl.errors import ConfigError, UsageError
from agentrl.evaluation.figures import EvaluatedEpisode, interval, pass_at_k, summarise
from agentrl.evaluation.log import EvaluationLog
from agentrl.evaluation.view import EvaluationView
from agentrl.models import NANO
from agentrl.proxy import ChatFormat, open_proxy


def episode(
    task: int, episode_index: int, reward: float, status: str = "finished", **metrics: float
) -> EvaluatedEpisode:
    error = "boom" if status == "failed" else None
    return EvaluatedEpisode(task, episode_index, status, reward, metrics, error, duration_s=2.0)


@given(st.integers(1, 7), st.data())
def test_pass_at_k_is_the_share_of_draws_that_hold_a_success(n: int, data: st.DataObject) -> None:
    passed = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    outcomes = [True] * passed + [False] * (n - passed)
    draws = [any(draw) for draw in itertools.combinations(outcomes, k)]
    assert pass_at_k(n, passed, k) == pytest.approx(statistics.fmean(draws))


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=30))
def test_the_interval_is_the_normal_one(values: list[float]) -> None:
    found = interval(values)
    error = statistics.stdev(values) / len(values) ** 0.5
    assert (found.mean, found.low, found.high) == pytest.approx(
        (statistics.fmean(values), statistics.fmean(values) - 1.96 * error, statistics.fmean(values) + 1.96 * error),
        abs=1e-3,
    )


def test_tasks_are_the_independent_draws() -> None:
    episodes = [episode(0, 0, 1.0), episode(0, 1, 1.0), episode(1, 0, 0.0, turns=3.0), episode(1, 1, 0.0, "failed")]
    result = summarise(episodes, pass_reward=1.0)
    assert (result.mean_reward, result.tasks, len(result.episodes), result.failed) == (0.5, 2, 4, 1)
    assert result.mean_reward_95 == pytest.approx((0.5 - 1.96 * 0.5, 0.5 + 1.96 * 0.5), abs=1e-3)
    assert {k: chance.mean for k, chance in result.pass_at.items()} == {1: 0.5, 2: 0.5}
    assert (result.pass_at[1].low, result.pass_at[1].high) == (0.0, 1.0)  # a chance ends there; a reward need not
    assert [(row.passed, row.failed) for row in result.per_task] == [(2, 0), (0, 1)]
    assert result.metrics == {"turns": 3.0}
    assert result.first_error == "boom"


def test_of_a_single_task_the_episodes_are() -> None:
    result = summarise([episode(0, s, float(s < 5)) for s in range(10)], pass_reward=1.0)
    assert sorted(result.pass_at) == [1, 2, 4, 8, 10]
    assert result.mean_reward_95[0] == pytest.approx(0.5 - 1.96 * 0.527 / 10**0.5, abs=1e-3)


def test_a_log_goes_on_where_it_was_torn(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with EvaluationLog(path, {"seed": 1}) as log:
        log.add(episode(0, 0, 1.0))
        log.add(episode(0, 1, 0.0, "failed"))
        log.add(episode(1, 0, 0.5))
    whole = path.read_text()
    path.write_text(whole[:-10])
    with EvaluationLog(path, {"seed": 1}) as log:
        assert log.done == [episode(0, 0, 1.0)]
        log.add(episode(1, 0, 0.5))
    assert path.read_text() == whole
    with EvaluationLog(path, {"seed": 1}) as log:
        assert [(e.task, e.episode_index) for e in log.done] == [(0, 0), (1, 0)]


def test_a_log_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with EvaluationLog(path, {"seed": 1}):
        pass
    with pytest.raises(ConfigError, match="holds something else than this evaluation"):
        EvaluationLog(path, {"seed": 2})


async def always(episode: Episode) -> float:
    """One short call; every second task is worth 1."""
    messages: list[Any] = [{"role": "user", "content": str(episode.task["n"])}]
    await episode.client.chat.completions.create(model=episode.model, messages=messages, max_tokens=2)
    episode.log(n=episode.task["n"])
    return float(episode.task["n"] % 2)


def settings(server_url: str, **values: Any) -> RunConfig:
    return RunConfig.model_validate(
        {"model": "nano", "engine": {"urls": [server_url]}, "eval": {"samples": 2}, **values}
    )


@pytest.mark.anyio
async def test_functions_and_lists_are_evaluated_in_the_loop_that_runs(
    server_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = [{"n": n} for n in range(4)]
    with anyio.fail_after(60):
        result = await agentrl.evaluate(
            settings(server_url), workflow=always, tasks=tasks, out=tmp_path / "episodes.jsonl"
        )
    assert (result.mean_reward, result.pass_at[2].mean, result.tasks, result.failed) == (0.5, 0.5, 4, 0)
    assert [(e.task, e.episode_index, e.reward) for e in result.episodes[:4]] == [
        (0, 0, 0),
        (0, 1, 0),
        (1, 0, 1),
        (1, 1, 1),
    ]
    assert result.metrics == {"n": 1.5}
    assert repr(result).startswith("Evaluation(mean_reward=0.500 [")
    assert len(repr(result)) < 200
    assert "<caption>evaluation of 4 tasks</caption>" in result._repr_html_()
    assert capsys.readouterr().err.splitlines()[-1] == "8 of 8 episodes"

    view = EvaluationView()  # nothing is left to run of another evaluation of the same
    with anyio.fail_after(60):
        again = await agentrl.evaluate(
            settings(server_url), workflow=always, tasks=lambda: tasks, out=tmp_path / "episodes.jsonl", view=view
        )
    assert again == result
    assert (view.total, len(view.episodes)) == (8, 8)
    assert capsys.readouterr().err == ""


@pytest.mark.anyio
async def test_the_tasks_may_be_a_file_and_the_model_elsewhere(
    server_url: str, tmp_path: Path, nano_format: ChatFormat
) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"n": 1}\n')
    elsewhere = EngineConfig(urls=[server_url])
    async with (
        open_engine(str(NANO), elsewhere, log=tmp_path / "engine.log", seed=0) as engine,
        open_proxy(engine, nano_format, "its-name") as proxy,
    ):
        with anyio.fail_after(60):
            result = await agentrl.evaluate(
                settings(server_url, model="its-name"),
                workflow=always,
                tasks=tmp_path / "tasks.jsonl",
                base_url=proxy.base_url,
                api_key=proxy.open_session().key,
                view=EvaluationView(),
            )
    assert (result.mean_reward, len(result.episodes), result.failed) == (1.0, 2, 0)


def blocking(episode: Episode) -> float:
    return 0.0


async def of_two(episode: Episode, more: int) -> float:
    return 0.0


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("given", "values", "message"),
    [
        ({"workflow": blocking}, {}, "the workflow is not async; write `async def run"),
        ({"workflow": of_two}, {}, "takes .*more.*, so it cannot be called with an episode alone"),
        ({"workflow": 3}, {}, "the workflow is not async"),
        ({"workflow": None}, {}, "workflow is not set"),
        ({"tasks": None}, {}, "tasks is not set"),
        ({"tasks": iter([{"n": 1}])}, {}, "is an iterator, which can be gone through only once"),
        ({"tasks": [1]}, {}, "tasks, task 0: a task must be a JSON object, not int"),
        ({}, {"model": ""}, r"model\.path is not set"),
        ({}, {"model": "/no/model"}, "'/no/model' is not a directory"),
        ({}, {"rollout": {"workers": 2}}, "which load it from a file: name the file"),
    ],
)
async def test_what_cannot_be_evaluated_is_refused_before_work_starts(
    given: dict[str, Any], values: dict[str, Any], message: str
) -> None:
    config = settings("http://127.0.0.1:9", **values)
    with anyio.fail_after(30), pytest.raises(UsageError, match=message):
        await agentrl.evaluate(config, **{"workflow": always, "tasks": [{"n": 1}], **given})
