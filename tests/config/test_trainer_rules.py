"""Combinations of the trainer's settings that make no sense: most cannot be written, and what crosses sections is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.config import load_config
from agentrl.errors import ConfigError

ILLEGAL: list[tuple[dict[str, Any], str]] = [
    # A key of another kind.
    (
        {"objective": {"kind": "gspo", "dual_clip": 3}},
        "trainer.objective.dual_clip = 3: unknown key; it is one of ppo",
    ),
    (
        {"objective": {"kind": "m2po", "proximal": "interpolate"}, "importance": "none"},
        'trainer.objective.proximal = "interpolate": unknown key; it is one of ppo, gspo, cispo, sapo, reinforce',
    ),
    (
        {"advantage": {"critic_lr": 1e-3}},
        "trainer.advantage.critic_lr = 0.001: unknown key; it is one of gae",
    ),
    (
        {"importance": {"kind": "none", "min": 0.5}},
        "trainer.importance.min = 0.5: unknown key; it is one of mask, sequence_mask, geometric_mask",
    ),
    (
        {"loss_aggregation": {"length": 100}},
        "trainer.loss_aggregation.length = 100: unknown key; it is one of constant",
    ),
    ({"kl": {"coef": 0.1}}, "trainer.kl.coef = 0.1: unknown key; it is one of loss, loss_k2, reward"),
    # A key that its kind, or its section, needs.
    ({"loss_aggregation": "constant"}, "trainer.loss_aggregation.length: Field required"),
    ({"kl": "reward"}, "trainer.kl.coef: Field required"),
    ({"lora": {"alpha": 8}}, "trainer.lora.rank: Field required"),
    # A value that another key of its section rules out.
    ({"kl": {"kind": "loss", "coef": 0.0}}, "trainer.kl.coef = 0.0: Input should be greater than 0"),
    # What crosses sections.
    ({"objective": "m2po"}, 'trainer: objective.kind = "m2po" has no proximal policy p'),
    ({"objective": "likelihood"}, 'importance.kind = "truncate" would count for nothing; use importance.kind = "none"'),
    # No kind, and no section.
    (
        {"objective": "pppo"},
        "trainer.objective: Input tag 'pppo' found using 'kind' does not match any of the expected tags: 'ppo'",
    ),
    ({"objective": 3}, "trainer.objective = 3: "),
    ({"lora": 16}, "trainer.lora = 16: "),
]


@pytest.mark.parametrize(("settings", "message"), ILLEGAL, ids=[str(settings) for settings, _ in ILLEGAL])
def test_what_makes_no_sense_is_refused_by_key_value_and_remedy(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(trainer=settings)
    assert message in str(refused.value)


def test_a_kind_alone_is_short_for_its_section_and_keeps_its_own_defaults() -> None:
    trainer = load_config(
        trainer={"objective": "gspo", "kl": {"kind": "loss", "coef": 0.1}, "advantage": "rloo"}
    ).trainer
    assert trainer.objective.model_dump() == {
        "kind": "gspo",
        "clip_low": 3e-4,
        "clip_high": 4e-4,
        "proximal": "recompute",
    }
    assert trainer.kl.model_dump() == {"kind": "loss", "coef": 0.1}
    assert trainer.advantage.kind == "rloo"


def test_a_source_that_names_another_kind_begins_its_section_anew() -> None:
    """Resuming reads a file with every key: those of the kind before must not stand in the way."""
    stored = load_config(trainer={"objective": {"dual_clip": 3.0, "clip_low": 0.1}}).model_dump()
    changed = load_config((), {"trainer.objective": "gspo"}, **stored).trainer.objective
    assert changed == load_config(trainer={"objective": "gspo"}).trainer.objective
    kept = load_config((), {"trainer.objective": "ppo", "trainer.objective.clip_high": "0.4"}, **stored)
    assert kept.trainer.objective.model_dump() == {
        "kind": "ppo",
        "clip_low": 0.1,
        "clip_high": 0.4,
        "dual_clip": 3.0,
        "proximal": "recompute",
    }
    both = {"trainer.objective.clip_low": "0.01", "trainer.objective": "cispo"}
    assert load_config((), both, **stored).trainer.objective.model_dump()["clip_low"] == 0.01


def test_an_engine_of_another_kind_keeps_its_other_keys() -> None:
    config = load_config((), {"engine": "sglang"}, engine={"kind": "embedded", "servers": 3})
    assert (config.engine.kind, config.engine.servers) == ("sglang", 3)
