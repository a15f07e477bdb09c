"""The figures of an evaluation in closed form, and its log."""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.evaluation.figures import EvaluatedEpisode, interval, pass_at_k, summarise
from agentrl.evaluation.log import EvaluationLog


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
