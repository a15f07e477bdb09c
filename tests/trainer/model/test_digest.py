"""The digest sees every change of a value, a place, a name or a type, and not how tensors are spread."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.config import TrainerConfig
from agentrl.models import NANO
from agentrl.rollout.manifest import read_manifest
from agentrl.trainer.model.checkpoint import read_state, state_on_disk
from agentrl.trainer.model.digest import ROW, _sum, digest
from agentrl.trainer.model.ranks import Ranks
from agentrl.trainer.policy import Policy
from tests.trainer.random_trees import random_tree

SIZES = st.integers(min_value=2, max_value=3 * ROW)


def of(**tensors: torch.Tensor) -> str:
    return digest(tensors.items(), Ranks())


def test_it_is_what_the_formula_says() -> None:
    assert of(a=torch.zeros(0)) == of(a=torch.zeros(0))
    assert int(_sum(torch.zeros(100), 0)) == 0
    (one, two, both) = (int(_sum(torch.tensor(values), 0)) for values in ([1, 0], [0, 1], [1, 1]))
    assert one % 2 == two % 2 == 1, "keys are odd"
    assert one != two
    assert (one + two - both) % 2**64 == 0


@settings(max_examples=30, deadline=None)
@given(SIZES, st.data())
def test_a_changed_bit_and_a_swap_are_seen_and_parts_add_up(size: int, data: st.DataObject) -> None:
    values = torch.randn(size, generator=torch.Generator().manual_seed(size))
    whole = int(_sum(values, 0))
    cuts = sorted(data.draw(st.lists(st.integers(0, size), max_size=4)))
    ends = [0, *cuts, size]
    parts = [int(_sum(values[a:b], a)) for a, b in zip(ends[:-1], ends[1:], strict=True)]
    assert (sum(parts) - whole) % 2**64 == 0

    place, bit = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, 31))
    changed = values.clone()
    changed.view(torch.int32)[place] ^= (1 << bit) - (2**32 if bit == 31 else 0)
    assert int(_sum(changed, 0)) != whole

    other = data.draw(st.integers(0, size - 1))
    swapped = values.clone()
    swapped[[place, other]] = values[[other, place]]
    assert (int(_sum(swapped, 0)) == whole) == bool(torch.equal(swapped, values))


def test_names_types_and_shapes_count_and_the_order_of_tensors_does_not() -> None:
    a, b = torch.ones(6), torch.full((6,), 2.0)
    digests = {
        of(a=a, b=b),
        of(a=b, b=a),
        of(a=a, c=b),
        of(a=a),
        of(a=a.to(torch.bfloat16), b=b),
        of(a=a.view(2, 3), b=b),
    }
    assert len(digests) == 6
    assert of(a=a, b=b) == of(b=b, a=a)
    assert of(a=-torch.zeros(3)) != of(a=torch.zeros(3)), "bits, not values"


@pytest.mark.parametrize(
    "settings_", [{}, {"lora": {"rank": 2}}, {"advantage": "gae"}], ids=["whole", "adapter", "critic"]
)
def test_what_lies_on_the_disk_has_the_digest_of_what_lay_in_memory(settings_: dict[str, Any], tmp_path: Path) -> None:
    """And what is loaded again; before the first step and after it."""
    config = TrainerConfig(optimizer={"lr": 1e-3, "warmup_steps": 0}, **settings_)
    policy = Policy(NANO, config)
    digests = set()
    for step in range(2):
        policy.save(tmp_path / str(step), NANO)
        digests.add(policy.digest())
        assert (
            digest(state_on_disk(tmp_path / str(step)), Ranks())
            == policy.digest()
            == read_manifest(tmp_path / str(step)).digest
        )
        assert read_state(tmp_path / str(step)).optimizer_counts == ({1} if step else set())
        again = Policy(NANO, config)
        again.load(tmp_path / str(step))
        assert again.digest() == policy.digest()
        policy.step(random_tree(random.Random(7), depth=2))
    assert len(digests) == 2
