"""The gain of asynchrony that a run's trace implies, on traces whose gain is known in closed form."""

from __future__ import annotations

import pytest

from agentrl.run.speedup import Speedup, estimate_speedup, ideal_gain, list_schedule_s


def test_a_batch_takes_as_long_as_its_episodes_one_after_the_other_on_the_slots() -> None:
    assert list_schedule_s([2.0] * 6, slots=3) == 4.0
    assert list_schedule_s([1.0, 1.0, 5.0], slots=8) == 5.0
    assert list_schedule_s([3.0, 1.0, 1.0, 1.0, 4.0], slots=2) == 7.0  # the last one waits until 3


def test_a_run_that_hides_training_behind_equal_episodes_gains_as_the_formula_says() -> None:
    """Per step: 8 episodes on 4 slots of 3.5 s, of which they sit 0.5 s through a pause (κ = 1, R = 7 s), T = 2 s, p = 1 s. A step of R is the ideal."""
    rows = [{"step": step, "step_s": 7.0, "wait_s": 4.0, "pause_s": 1.0} for step in (1, 2, 3)]
    episodes = [(step, 3.5, True) for step in (1, 2, 3) for _ in range(8)]
    found = estimate_speedup(episodes, rows, slots=4)
    assert found == Speedup(
        gain=pytest.approx(10 / 7), bound=pytest.approx(10 / 7), efficiency=pytest.approx(1.0), steps=3
    )


def test_a_synchronous_run_gains_nothing_and_is_told_what_it_could() -> None:
    """Per step: 4 episodes on 4 slots, one of 10 s and three of 2 s (R = 4 s, κ = 2.5), T = 5 s, no pause: S_max = 15 / 5."""
    rows = [{"step": step, "step_s": 15.0, "wait_s": 10.0, "pause_s": 0.0} for step in (1, 2)]
    episodes = [(step, duration, True) for step in (1, 2) for duration in (10.0, 2.0, 2.0, 2.0)]
    found = estimate_speedup(episodes, rows, slots=4)
    assert found == Speedup(gain=pytest.approx(1.0), bound=pytest.approx(3.0), efficiency=pytest.approx(1 / 3), steps=2)
    assert ideal_gain(rollout_s=4, sync_rollout_s=10, train_s=5, pause_s=0) == pytest.approx((2.5 + 1.25) / 1.25)


def test_steps_that_a_restart_took_again_on_stored_episodes_count_for_nothing() -> None:
    rows = [{"step": step, "step_s": 1.0, "wait_s": 0.0, "pause_s": 0.0} for step in (1, 2)]
    assert estimate_speedup([(1, 9.0, False), (2, 1.0, True)], rows, 1) == Speedup(2.0, 2.0, 1.0, 1)
    assert estimate_speedup([(1, 9.0, False)], rows, 1) is None
