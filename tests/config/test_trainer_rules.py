"""Combinations of the trainer's settings that are refused: each rule by an example, and by what its error names."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from agentrl.config.trainer import RULES, TrainerConfig

BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"dual_clip": 3, "objective": "gspo"}, "dual_clip = 3 "),
    ({"objective": "m2po"}, 'use importance_weight_mode = "none"'),
    ({"objective": "likelihood"}, 'objective = "likelihood" has no proximal policy'),
    ({"proximal": "interpolate", "dropout": True}, 'use "recompute"'),
    (
        {"proximal": "interpolate", "objective": "m2po", "importance_weight_mode": "none"},
        'objective = "m2po" has no proximal policy to interpolate',
    ),
    ({"advantage": "gae", "turn_discount": 0.5}, "turn_discount = 0.5 "),
    ({"lora_targets": ["q_proj"]}, "lora_targets = ['q_proj'] "),
    ({"kl": "loss"}, 'kl = "loss" and kl_coef = 0 go together'),
    ({"kl": "loss", "kl_coef": 0.1, "kl_estimator": "k1"}, "use k2 or k3"),
    ({"kl": "reward", "kl_coef": 0.1, "kl_estimator": "k3"}, 'kl_estimator = "k3" in the reward'),
    ({"kl_estimator": "k2"}, 'kl_estimator = "k2" says how kl is estimated'),
    ({"overlong_tokens": 100}, "overlong_tokens = 100 and overlong_margin = None go together"),
    ({"overlong_tokens": 100, "overlong_margin": 101}, "overlong_margin = 101 is more than overlong_tokens = 100"),
    ({"importance_weight_min": 0.5}, "importance_weight_min = 0.5 is for the masks"),
    ({"loss_aggregation": "constant"}, 'loss_aggregation = "constant" and loss_length = None'),
]


@pytest.mark.parametrize(("settings", "message"), BROKEN, ids=[str(settings) for settings, _ in BROKEN])
def test_a_broken_rule_names_setting_and_value(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        TrainerConfig(**settings)
    assert message in str(refused.value)


def test_every_rule_has_an_example_that_breaks_it_alone() -> None:
    broken = [
        [number for number, rule in enumerate(RULES) if rule.broken_by(unchecked(settings))] for settings, _ in BROKEN
    ]
    assert broken == [[number] for number in range(len(RULES))]


def unchecked(settings: dict[str, Any]) -> TrainerConfig:
    return TrainerConfig.model_construct(**settings)
