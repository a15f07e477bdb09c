"""Turns whose sampling was altered: what they weigh in the loss, and how many there are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentrl.config import TrainerConfig
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.record.trajectory import TokenRecord
from agentrl.store.episodes import FinishedEpisode
from agentrl.trainer.sequences import training_sequences
from agentrl.trainer.step_metrics import altered_sampling

SAID = st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans()), min_size=1, max_size=6)


@given(SAID, st.sampled_from(["mask", "train"]))
def test_a_turn_of_an_altered_sampling_has_no_weight_in_the_loss_and_stays_in_the_context(
    said: list[tuple[int, bool, bool]], setting: str
) -> None:
    """Of random trees: (which turn it goes on from, whether its sampling was altered, whether its role is trained on)."""
    record = TokenRecord()
    for number, (pick, altered, trained) in enumerate(said):
        parent = ([None, *record.turns])[pick % (len(record.turns) + 1)]
        ids = (parent.token_ids() if parent else []) + [100 + number]
        reply = Generation(
            output_ids=[10 + number, 50 + number], logprobs=[-1.0, -2.0], versions=[VersionSpan(0, 0, 2)], finish="stop"
        )
        turn = record.add(f"call-{number}", parent, ids, reply, 1.0)
        turn.alterations = {"top_k": 5} if altered else {}
        turn.trained = trained
    wanted = {
        10 + number
        for number, (_, altered, trained) in enumerate(said)
        if trained and not (altered and setting != "train")
    }
    config = TrainerConfig.model_validate({"turns": {"altered_sampling": setting}, "advantage": {"kind": "dr_grpo"}})
    plain = [path.token_ids for path in record.trajectories()]
    episode = FinishedEpisode(id=0, restart=0, group_id=0, reward=1.0, replayed_tokens=0, record=record)
    (sequences,) = training_sequences([episode], config)
    weighed = [t for s in sequences for t in s.token_ids[s.loss_mask].tolist() if t < 50]
    assert sorted(weighed) == sorted(wanted), "each token that is trained on is so once"
    assert all(s.token_ids.tolist() in plain for s in sequences), "whatever is masked is context of what is not"
    assert [path.token_ids for path in record.trajectories()] == plain


def test_the_share_of_altered_tokens_is_of_roles_that_are_trained_on() -> None:
    record = TokenRecord()
    reply = Generation(output_ids=[20, 21], logprobs=[-1.0] * 2, versions=[VersionSpan(0, 0, 2)], finish="stop")
    turns = [record.add(name, None, [10], reply, 1.0) for name in "abcde"]
    turns[0].alterations = turns[4].alterations = {"min_p": 0.1}
    turns[4].trained = False
    assert altered_sampling([record]) == {"altered_sampling_share": 0.25}
    assert altered_sampling([TokenRecord()]) == {}
