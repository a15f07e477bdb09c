"""docs/credit.md in closed form: from rewards to the score of every turn."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config import TrainerConfig
from agentrl.credit import turn_scores
from agentrl.engine.protocol import Generation, VersionSpan
from agentrl.trainer.advantages import mask_turns, turn_advantages
from agentrl.trajectory import TokenRecord


def record_of(parents: list[int | None], **columns: list[Any]) -> TokenRecord:
    """A record whose turn i continues turn `parents[i]`; `columns` sets fields of the turns."""
    record = TokenRecord()
    for index, parent in enumerate(parents):
        before = None if parent is None else record.turns[parent]
        ids = [*(before.token_ids() if before else []), 1000 + index]
        generation = Generation(
            output_ids=[index], logprobs=[-1.0], versions=[VersionSpan(0, 0, 1)], finish="stop", cached_tokens=0
        )
        turn = record.add(f"call-{index}", before, ids, generation, 1.0)
        for name, values in columns.items():
            setattr(turn, name, values[index])
    return record


def chain(length: int, **columns: list[Any]) -> TokenRecord:
    return record_of([None, *range(length - 1)], **columns)


def test_without_anything_else_every_turn_is_worth_the_episode() -> None:
    assert turn_scores(chain(3), 0.7) == [0.7, 0.7, 0.7]


def test_a_turn_with_a_reward_of_its_own_is_worth_that() -> None:
    assert turn_scores(chain(3, credit=[None, -1.0, None]), 0.5) == [0.5, -1.0, 0.5]


def test_a_branch_with_a_reward_of_its_own_is_worth_that_and_shared_turns_the_mean() -> None:
    record = record_of([None, 0, 0, None], branch_reward=[None, 1.0, 0.0, None])
    assert turn_scores(record, 0.25) == [0.5, 1.0, 0.0, 0.25]


@given(st.integers(1, 12), st.floats(0, 1), st.floats(-3, 3))
def test_the_discounted_score_of_a_sparse_episode(turns: int, discount: float, reward: float) -> None:
    expected = [discount ** (turns - 1 - k) * reward for k in range(turns)]
    assert turn_scores(chain(turns), reward, discount) == pytest.approx(expected)


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=12), st.floats(0, 1))
def test_the_discounted_return_of_rewards_at_every_turn(rewards: list[float], discount: float) -> None:
    expected = [sum(discount ** (j - k) * r for j, r in enumerate(rewards) if j >= k) for k in range(len(rewards))]
    scores = turn_scores(chain(len(rewards), credit=list(rewards)), 99.0, discount)
    assert scores == pytest.approx(expected, abs=1e-9)


def test_a_penalty_on_the_way_and_the_episode_at_the_end_add_up() -> None:
    assert turn_scores(chain(3, credit=[None, -0.5, None]), 1.0, 1.0) == [0.5, 0.5, 1.0]


def test_a_turn_that_is_continued_twice_is_worth_the_mean_of_both() -> None:
    record = record_of([None, 0, 0, 2], credit=[0.1, None, 0.3, None])
    # leaves: 1.0 each; turn 2: 0.3 + 0.5·1; turn 0: 0.1 + 0.5·mean(1.0, 0.8)
    assert turn_scores(record, 1.0, 0.5) == pytest.approx([0.1 + 0.5 * 0.9, 1.0, 0.8, 1.0])


def advantages(records: list[TokenRecord], rewards: list[float], **settings: Any) -> list[list[float]]:
    return turn_advantages(records, rewards, TrainerConfig(**{"advantage": "dr_grpo", **settings}))


def test_every_branch_is_compared_with_its_own_kind() -> None:
    """Two episodes of self-play: the episode's reward is the same, the seats' are not."""
    group = [
        record_of([None, None], branch=["a", "b"], branch_reward=[1.0, -1.0]),
        record_of([None, None], branch=["a", "b"], branch_reward=[0.0, 0.0]),
    ]
    assert advantages(group, [0.0, 0.0]) == [[0.5, -0.5], [-0.5, 0.5]]
    assert advantages(group, [0.0, 0.0], advantage="rloo") == [[1.0, -1.0], [-1.0, 1.0]]


def test_a_branch_that_only_one_episode_has_is_compared_with_nothing() -> None:
    group = [record_of([None, None], branch=["", "helper"]), record_of([None])]
    assert advantages(group, [1.0, 0.0]) == [[0.5, 0.0], [-0.5]]


def test_under_a_discount_turns_are_compared_with_all_turns() -> None:
    group = [chain(2), chain(1)]
    # returns 0.5, 1.0 and 0.0: mean 0.5
    assert advantages(group, [1.0, 0.0], turn_discount=0.5) == [[0.0, 0.5], [-0.5]]
    # rloo: the other episode's returns only
    assert advantages(group, [1.0, 0.0], turn_discount=0.5, advantage="rloo") == [[0.5, 1.0], [-0.75]]


def test_a_turn_reward_is_compared_with_the_episodes_when_there_is_no_discount() -> None:
    group = [chain(2, credit=[3.0, None]), chain(1)]
    assert advantages(group, [1.0, 0.0]) == [[2.5, 0.5], [-0.5]]


@pytest.mark.parametrize("kind", ["truncated", "failed"])
def test_bad_turns_are_trained_masked_or_penalised(kind: str) -> None:
    def group() -> list[TokenRecord]:
        return [chain(2, **{kind: [True, False]}), chain(1)]

    rewards = [1.0, 0.0]
    assert advantages(group(), rewards) == [[0.5, 0.5], [-0.5]]
    penalised = advantages(group(), rewards, **{f"{kind}_turns": "penalise", "turn_penalty": 2.0})
    assert penalised == [[-1.5, 0.5], [-0.5]]
    records = group()
    mask_turns(records[0], TrainerConfig(**{f"{kind}_turns": "mask"}))
    (path,) = records[0].trajectories([1.0, 1.0])
    assert path.loss_mask == [False, False, False, True]
