"""docs/credit.md in closed form: from rewards to the return of every turn."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.trainer import GroupAdvantage, TrainerConfig
from agentrl.record.credit import immediate_rewards, mask_turns, turn_advantages, turn_returns, turn_rewards
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.record.trajectory import TokenRecord


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
    assert turn_returns(chain(3), 0.7) == [0.7, 0.7, 0.7]


def test_a_turn_with_a_reward_of_its_own_is_worth_that() -> None:
    assert turn_returns(chain(3, reward=[None, -1.0, None]), 0.5) == [0.5, -1.0, 0.5]


def test_a_role_with_a_reward_of_its_own_is_worth_that_and_shared_turns_the_mean() -> None:
    record = record_of([None, 0, 0, None], role_reward=[None, 1.0, 0.0, None])
    assert turn_returns(record, 0.25) == [0.5, 1.0, 0.0, 0.25]


@given(st.integers(1, 12), st.floats(0, 1), st.floats(-3, 3))
def test_the_discounted_score_of_a_sparse_episode(turns: int, discount: float, reward: float) -> None:
    expected = [discount ** (turns - 1 - k) * reward for k in range(turns)]
    assert turn_returns(chain(turns), reward, discount) == pytest.approx(expected)


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=12), st.floats(0, 1))
def test_the_discounted_return_of_rewards_at_every_turn(rewards: list[float], discount: float) -> None:
    expected = [sum(discount ** (j - k) * r for j, r in enumerate(rewards) if j >= k) for k in range(len(rewards))]
    scores = turn_returns(chain(len(rewards), reward=list(rewards)), 99.0, discount)
    assert scores == pytest.approx(expected, abs=1e-9)


def test_a_penalty_on_the_way_and_the_episode_at_the_end_add_up() -> None:
    assert turn_returns(chain(3, reward=[None, -0.5, None]), 1.0, 1.0) == [0.5, 0.5, 1.0]


def test_a_turn_that_is_continued_twice_is_worth_the_mean_of_both() -> None:
    record = record_of([None, 0, 0, 2], reward=[0.1, None, 0.3, None])
    # leaves: 1.0 each; turn 2: 0.3 + 0.5·1; turn 0: 0.1 + 0.5·mean(1.0, 0.8)
    assert turn_returns(record, 1.0, 0.5) == pytest.approx([0.1 + 0.5 * 0.9, 1.0, 0.8, 1.0])


def advantages(records: list[TokenRecord], rewards: list[float], **settings: Any) -> list[list[float]]:
    config = TrainerConfig(**{"advantage": "dr_grpo", **settings})
    assert isinstance(config.advantage, GroupAdvantage)
    return turn_advantages(records, rewards, config.advantage, config.turns)


def test_every_role_is_compared_with_its_own_kind() -> None:
    """Two episodes of self-play: the episode's reward is the same, the seats' are not."""
    group = [
        record_of([None, None], role=["a", "b"], role_reward=[1.0, -1.0]),
        record_of([None, None], role=["a", "b"], role_reward=[0.0, 0.0]),
    ]
    assert advantages(group, [0.0, 0.0]) == [[0.5, -0.5], [-0.5, 0.5]]
    assert advantages(group, [0.0, 0.0], advantage="rloo") == [[1.0, -1.0], [-1.0, 1.0]]


def test_a_role_that_only_one_episode_has_is_compared_with_nothing() -> None:
    group = [record_of([None, None], role=["", "helper"]), record_of([None])]
    assert advantages(group, [1.0, 0.0]) == [[0.5, 0.0], [-0.5]]


def test_under_a_discount_turns_are_compared_with_all_turns() -> None:
    group = [chain(2), chain(1)]
    # returns 0.5, 1.0 and 0.0: mean 0.5
    assert advantages(group, [1.0, 0.0], advantage={"kind": "dr_grpo", "discount": 0.5}) == [[0.0, 0.5], [-0.5]]
    # rloo: the other episode's returns only
    assert advantages(group, [1.0, 0.0], advantage={"discount": 0.5, "kind": "rloo"}) == [[0.5, 1.0], [-0.75]]


def test_a_turn_reward_is_compared_with_the_scores_of_all_turns_each_episode_weighing_the_same() -> None:
    group = [chain(2, reward=[3.0, None]), chain(1)]
    # episodes 2.0 (the mean of 3.0 and 1.0) and 0.0
    assert advantages(group, [1.0, 0.0]) == [[2.0, 0.0], [-1.0]]
    assert advantages(group, [1.0, 0.0], advantage="rloo") == [[3.0, 1.0], [-2.0]]
    spread = ((2.0**2 + 0.0**2) / 2 + 1.0**2) ** 0.5
    expected = [[2.0 / spread, 0.0], [-1.0 / spread]]
    for own, others in zip(advantages(group, [1.0, 0.0], advantage="grpo"), expected, strict=True):
        assert own == pytest.approx(others, abs=1e-5)


def test_turns_with_rewards_of_their_own_in_episodes_that_are_worth_the_same() -> None:
    """The episodes do not differ, so what a turn is divided by must be the spread of the turns."""
    grpo = {"advantage": "grpo"}
    malformed = [chain(2, reward=[None, -1.0]), chain(2)]
    # P = 0, −1 (each with weight 1/2), 0, 0: mean −1/4, variance ½/16 + ½·9/16 + 1/16 = 3/8
    better, worse = 0.25 / 0.375**0.5, -0.75 / 0.375**0.5
    assert advantages(malformed, [0.0, 0.0], **grpo)[0] == pytest.approx([better, worse], abs=1e-5)
    assert advantages(malformed, [0.0, 0.0], **grpo)[1] == pytest.approx([better, better], abs=1e-5)
    shared = {"role": ["", "a", "b"]}
    group = [
        record_of([None, 0, 0], role_reward=[None, 1.0, 1.0], **shared),
        record_of([None, 0, 0], role_reward=[None, 0.0, 0.0], **shared),
    ]
    for episode, sign in zip(advantages(group, [0.0, 0.0], **grpo), (1, -1), strict=True):
        assert episode == pytest.approx([sign * 0.5 / 0.5**0.5] * 3, abs=1e-5)
    assert advantages([chain(1, reward=[-1.0])], [0.0], **grpo) == [[0.0]]


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[TokenRecord], list[float]]:
    """A group of random forests, with rewards of turns, of roles, of both or of none."""
    reward = st.one_of(st.sampled_from([0.0, 1.0, 0.1, -1.0]), st.floats(-1e6, 1e6))
    records = []
    names = draw(st.sampled_from([[""], ["a", "b"], ["", "a"]]))
    crediting = draw(st.sampled_from([st.none(), st.one_of(st.none(), reward)]))
    for _ in range(draw(st.integers(1, 5))):
        size = draw(st.integers(1, 5))
        parents = [None, *(draw(st.sampled_from([None, *range(i)])) for i in range(1, size))]
        roles = [draw(st.sampled_from(names)) for _ in parents]
        of_name = {name: draw(crediting) for name in names}
        records.append(
            record_of(
                parents,
                reward=[draw(crediting) for _ in parents],
                role=roles,
                role_reward=[of_name[name] for name in roles],
            )
        )
    equal = draw(st.booleans())
    first = draw(reward)
    return records, [first if equal else draw(reward) for _ in records]


@given(groups(), st.sampled_from([None, 0.5, 1.0]))
def test_what_is_divided_by_a_spread_is_a_deviation_of_the_scores_that_it_is_of(
    group: tuple[list[TokenRecord], list[float]], discount: float | None
) -> None:
    """docs/credit.md's formula, evaluated by itself; and |A| < √(W/w), whatever is rewarded."""
    records, rewards = group
    got = advantages(records, rewards, advantage={"kind": "grpo", "discount": discount})
    scores = [turn_returns(record, reward, discount) for record, reward in zip(records, rewards, strict=True)]
    for name in {turn.role for record in records for turn in record.turns}:
        own = [
            (episode, s, a)
            for episode, record in enumerate(records)
            for turn, s, a in zip(record.turns, scores[episode], got[episode], strict=True)
            if turn.role == name
        ]
        turns = Counter(episode for episode, _, _ in own)
        weights = [1.0 if discount is not None else 1 / turns[episode] for episode, _, _ in own]
        whole = round(sum(weights))
        middle = sum(w * s for w, (_, s, _) in zip(weights, own, strict=True)) / whole
        squares = sum(w * (s - middle) ** 2 for w, (_, s, _) in zip(weights, own, strict=True))
        std = (squares / max(1, whole - 1)) ** 0.5
        for w, (_, s, a) in zip(weights, own, strict=True):
            assert abs(a) <= (whole / w) ** 0.5
            if std == 0 or std > 1e-3:  # in between, rounding is of the size of the spread
                assert a == pytest.approx((s - middle) / (std + 1e-6), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("estimator", ["grpo", "dr_grpo", "rloo", "reinforce_pp_baseline"])
@given(st.floats(-1e6, 1e6), st.lists(st.integers(1, 4), min_size=2, max_size=9))
def test_equal_rewards_give_advantages_of_exactly_zero(estimator: str, reward: float, sizes: list[int]) -> None:
    group = [record_of([None, *[0] * (size - 1)]) for size in sizes]
    assert all(a == 0 for own in advantages(group, [reward] * len(sizes), advantage=estimator) for a in own)


@pytest.mark.parametrize("kind", ["truncated", "failed"])
def test_bad_turns_are_trained_masked_or_penalised(kind: str) -> None:
    def group() -> list[TokenRecord]:
        return [chain(2, **{kind: [True, False]}), chain(1)]

    rewards = [1.0, 0.0]
    assert advantages(group(), rewards) == [[0.5, 0.5], [-0.5]]
    penalised = advantages(group(), rewards, turns={kind: "penalise"})
    assert penalised == [[-0.5, 0.5], [-0.5]]
    records = group()
    mask_turns(records[0], TrainerConfig(turns={kind: "mask"}).turns)
    (path,) = records[0].trajectories()
    assert path.loss_mask == [False, False, False, True]


ESTIMATORS = st.sampled_from(["grpo", "dr_grpo", "rloo"])


@given(st.lists(st.tuples(st.floats(-3, 3), st.integers(1, 4)), min_size=2, max_size=6), ESTIMATORS)
def test_an_episode_of_many_roots_weighs_what_an_episode_of_one_weighs(
    group: list[tuple[float, int]], kind: str
) -> None:
    """A conversation that was compacted is several trajectories with one return."""
    rewards = [reward for reward, _ in group]
    # Of each root two turns: [None, 0, None, 2, ...].
    several = [record_of([parent for k in range(roots) for parent in (None, 2 * k)]) for _, roots in group]
    single = advantages([chain(2) for _ in group], rewards, advantage=kind)
    found = advantages(several, rewards, advantage=kind)
    for own, one, (_, roots) in zip(found, single, group, strict=True):
        assert own == pytest.approx([one[0]] * 2 * roots, abs=1e-9)


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=6), st.data())
def test_what_is_left_out_counts_nowhere_and_gets_nothing(rewards: list[float], data: st.DataObject) -> None:
    """With turn rewards and with roles, under every estimator."""
    kind = data.draw(ESTIMATORS)
    discount = data.draw(st.none() | st.just(0.5))
    advantage = {"kind": kind, "discount": discount}
    own = [data.draw(st.none() | st.floats(-3, 3)) for _ in rewards]
    alone = [record_of([None, 0], reward=[value, None]) for value in own]
    beside = [
        record_of(
            [None, None, 0, 1],
            reward=[value, 9.0, None, -9.0],
            left_out=[False, True, False, True],
            truncated=[False, True, False, True],
        )
        for value in own
    ]
    settings = {"turns": {"truncated": "penalise"}, "advantage": advantage}
    expected = advantages(alone, rewards, **settings)
    found = advantages(beside, rewards, **settings)
    assert [(values[0], values[2]) for values in found] == [tuple(values) for values in expected]
    assert all(values[1] == values[3] == 0.0 for values in found)


def test_a_sub_agent_is_compared_with_itself_in_the_other_episodes() -> None:
    """In closed form: two of three episodes have one, with four turns and with one."""
    name = "sub-agent-0a1b2c3d"
    records = [
        record_of([None, None, 1, 2, 3, 0], role=["", name, name, name, name, ""]),
        record_of([None, None, 0], role=["", name, ""]),
        record_of([None]),
    ]
    found = advantages(records, [1.0, 0.0, 0.2])
    main, sub = (1.0 + 0.0 + 0.2) / 3, (1.0 + 0.0) / 2
    assert found[0] == pytest.approx([1 - main, *[1 - sub] * 4, 1 - main])
    assert found[1] == pytest.approx([0 - main, 0 - sub, 0 - main])
    assert found[2] == pytest.approx([0.2 - main])


def test_every_adapter_earns_the_reward_of_its_role_at_its_own_last_turn() -> None:
    """Two roles that speak in turn in one conversation, and one that speaks once more in one of two branches."""
    names = ["writer", "critic", "writer", "critic"]
    record = chain(4, adapter=names, role=names)
    assert immediate_rewards(record, 1.0) == [0.0, 0.0, 1.0, 1.0]

    names = ["writer", "critic", "writer", "critic"]
    record = record_of([None, 0, 1, 1], adapter=names, role=names, role_reward=[0.5, -1.0, 0.5, -1.0])
    # The writer says nothing after turn 0 in one of two branches; the critic nothing after turn 1 in the other.
    assert immediate_rewards(record, 99.0) == [0.25, -0.5, 0.5, -1.0]


@given(st.data(), st.integers(1, 8))
def test_an_adapter_earns_as_much_as_if_it_had_spoken_alone(data: st.DataObject, size: int) -> None:
    names = [data.draw(st.sampled_from(["a", "b"])) for _ in range(size)]
    rewards = [data.draw(st.sampled_from([None, None, 2.0])) for _ in range(size)]
    together = immediate_rewards(chain(size, adapter=names, role=names, reward=rewards), 1.0)
    for name in set(names):
        own = [index for index in range(size) if names[index] == name]
        alone = immediate_rewards(chain(len(own), adapter=[name] * len(own), reward=[rewards[i] for i in own]), 1.0)
        assert [together[index] for index in own] == alone


def test_a_role_that_does_not_speak_last_has_its_own_reward() -> None:
    names = ["writer", "critic"]
    record = chain(2, role=names, role_reward=[0.5, -1.0])
    assert turn_returns(record, 99.0) == [0.5, -1.0]


def test_what_is_not_trained_on_hands_its_reward_to_its_own_adapter_alone() -> None:
    names = ["writer", "critic", "writer", "critic"]
    record = chain(4, adapter=names, role=names, role_reward=[1.0, 7.0, 1.0, 7.0], trained=[True, True, False, False])
    assert turn_rewards(record, 99.0, TrainerConfig().turns) == [1.0, 7.0, 0.0, 0.0]
    record = chain(2, adapter=["writer", "critic"], role_reward=[0.0, 7.0], trained=[True, False])
    assert turn_rewards(record, 99.0, TrainerConfig().turns) == [0.0, 0.0]
