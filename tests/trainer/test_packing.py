"""Packing: nothing lost, nothing twice, nothing over the budget, and the loss and gradients of the trajectories one by one."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from agentrl.config import TrainerConfig
from agentrl.models import NANO
from agentrl.trainer.algorithms.losses import policy_loss
from agentrl.trainer.packing import Pack, TrainingSequence, first_fit_decreasing, pack_sequences, prefix_tree
from agentrl.trainer.policy import Policy
from tests.trainer.random_trees import random_tree, training_sequence

CONFIG = TrainerConfig()
SEEDS = st.integers(0, 10_000)


def unshared(count: int, longest: int, rng: random.Random) -> list[TrainingSequence]:
    """Sequences with nothing in common."""
    made = []
    for number in range(count):
        ids = [9 + number, *(rng.randrange(9, 470) for _ in range(rng.randint(0, longest)))]
        made.append(training_sequence(ids, [False, *(rng.random() < 0.5 for _ in ids[1:])], rng))
    return made


def paths_of(batch: Pack) -> list[list[int]]:
    """Of every token of a pack its path, by the rule that the module's head states."""
    ids, ends = batch.token_ids.tolist(), batch.subtree_end.tolist()
    return [[ids[k] for k in range(q + 1) if q < ends[k]] for q in range(len(ids))]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=60), st.integers(1, 80))
def test_every_item_is_in_one_bin_within_the_budget(lengths: list[int], budget: int) -> None:
    bins = first_fit_decreasing(lengths, budget)
    assert sorted(index for members in bins for index in members) == list(range(len(lengths)))
    for members in bins:
        assert sum(lengths[i] for i in members) <= budget or len(members) == 1


@given(SEEDS, st.integers(1, 6), st.integers(20, 400))
def test_packs_hold_every_trained_token_after_its_own_past(seed: int, trees: int, budget: int) -> None:
    rng = random.Random(seed)
    sequences = [s for _ in range(trees) for s in random_tree(rng, depth=3, tokens=30)]
    packs = pack_sequences(sequences, budget)
    found = []
    for batch in packs:
        paths = paths_of(batch)
        assert [len(path) - 1 for path in paths] == batch.position_ids.tolist()
        assert len({tuple(path) for path in paths}) == len(paths), "no path is in a pack twice"
        columns = (batch.source, batch.targets, batch.behaviour_logprobs, batch.advantages, batch.versions)
        for source, target, *rest in zip(*(column.tolist() for column in columns), strict=True):
            found.append(((*paths[source], target), *rest))
        assert len(batch) <= budget or batch.sequence_count == 1
    expected = []
    for s in sequences:
        ids = s.token_ids.tolist()
        for t in s.loss_mask.nonzero().flatten().tolist():
            rest = (s.behaviour_logprobs[t].item(), s.advantages[t].item(), s.versions[t].item())
            expected.append((tuple(ids[: t + 1]), *rest))
    assert sorted(found) == sorted(expected)


@given(SEEDS)
def test_segments_cover_a_pack_and_have_the_ancestors_that_the_rule_gives(seed: int) -> None:
    batch = prefix_tree(sorted(random_tree(random.Random(seed), depth=4), key=lambda s: s.token_ids.tolist()))
    ends = batch.subtree_end.tolist()
    place = 0
    for segment in batch.segments:
        assert segment.start == place < segment.end
        above = [k for start, end in segment.ancestors for k in range(start, end)]
        assert above == [k for k in range(segment.start) if segment.start < ends[k]]
        place = segment.end
    assert place == len(batch)


def test_no_sequences_make_no_packs_and_a_step_of_nothing_does_nothing(policy: Policy) -> None:
    assert pack_sequences([], 100) == []
    assert policy.mismatch([], {}) is None
    before = [parameter.clone() for parameter in policy.model.parameters()]
    version = policy.version
    result = policy.step([])
    assert policy.version == version + 1
    assert (result.stats.tokens, result.grad_norm, result.computed_tokens) == (0, 0, 0)
    assert all(torch.equal(old, new) for old, new in zip(before, policy.model.parameters(), strict=True))


def test_what_shares_nothing_fills_the_budget() -> None:
    rng = random.Random(0)
    sequences = unshared(460, 300, rng)
    packs = pack_sequences(sequences, 4096)
    assert sum(map(len, packs)) == sum(map(len, sequences))
    assert sum(map(len, packs[:-1])) / (4096 * (len(packs) - 1)) > 0.97


def gradients(policy: Policy, packs: list[Pack]) -> tuple[float, list[torch.Tensor]]:
    policy.model.zero_grad()
    total = 0.0
    for batch in packs:
        scored = policy.logprobs(batch)
        rest = (batch.behaviour_logprobs, batch.advantages, batch.sequence_map, CONFIG)
        loss = policy_loss(scored, scored.detach() - 0.1, *rest)[0].sum()
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total, [parameter.grad.clone() for parameter in policy.model.parameters()]


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy(NANO, CONFIG)


@given(seed=SEEDS, trees=st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_a_tree_has_the_loss_and_the_gradients_of_its_paths_one_by_one(policy: Policy, seed: int, trees: int) -> None:
    rng = random.Random(seed)
    sequences = [s for _ in range(trees) for s in random_tree(rng, depth=3)]
    packed, own = gradients(policy, pack_sequences(sequences, 200))
    alone, theirs = gradients(policy, [prefix_tree([s]) for s in sequences])
    assert packed == pytest.approx(alone, rel=1e-5, abs=1e-5)
    largest = max(float(gradient.abs().max()) for gradient in theirs) or 1.0
    for one, other in zip(own, theirs, strict=True):
        assert float((one - other).abs().max()) < 1e-5 * max(1.0, largest)


def test_packed_logprobs_are_those_of_transformers_own_padded_batch(policy: Policy) -> None:
    sequences = unshared(6, 120, random.Random(3))
    reference = AutoModelForCausalLM.from_pretrained(NANO, dtype=torch.float32, attn_implementation="eager").eval()
    longest = max(len(s) for s in sequences)
    ids = torch.zeros(len(sequences), longest, dtype=torch.long)
    attended = torch.zeros_like(ids)
    for row, s in enumerate(sequences):
        ids[row, : len(s)] = s.token_ids
        attended[row, : len(s)] = 1
    with torch.no_grad():
        logits = reference(input_ids=ids, attention_mask=attended).logits
        (batch,) = pack_sequences(sequences, 1000)
        scored = policy.logprobs(batch)
    place = 0
    for row, s in enumerate(sequences):  # each begins with an id of its own, in rising order
        trained = s.loss_mask.nonzero().flatten()
        tempered = torch.log_softmax(logits[row, trained - 1] / s.temperatures[trained, None], -1)
        expected = tempered.gather(-1, s.token_ids[trained, None]).squeeze(-1)
        assert torch.allclose(scored[place : place + len(trained)], expected, atol=1e-5)
        place += len(trained)
    assert place == batch.trained_tokens
