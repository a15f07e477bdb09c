"""LoRA: the adapter learns and nothing else does; what is published and saved is what peft and transformers read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from agentrl.config import RunConfig, TrainerConfig
from agentrl.errors import ConfigError
from agentrl.models import NANO
from agentrl.trainer.packing import TrainingSequence
from agentrl.trainer.policy import Policy
from tests.trainer.test_policy import score, sequences


def trained(**settings: Any) -> tuple[Policy, list[TrainingSequence]]:
    """A policy with an adapter, after a step on the sequences."""
    policy = Policy(NANO, TrainerConfig(optimizer={"lr": 1e-2, "warmup_steps": 0}, lora={"rank": 4}, **settings))
    batch = sequences(policy)
    policy.step(batch)
    return policy, batch


@torch.no_grad()
def plain_score(model: Any, batch: list[TrainingSequence]) -> float:
    """The same sum of logprobs as `score`, by transformers alone."""
    total = 0.0
    for sequence in batch:
        ids = sequence.token_ids
        logprobs = torch.log_softmax(model(ids.unsqueeze(0)).logits[0].float(), -1)
        total += float(sum(logprobs[t - 1, ids[t]] for t in range(len(ids)) if sequence.loss_mask[t]))
    return total


def test_a_step_moves_the_adapter_alone() -> None:
    before = AutoModelForCausalLM.from_pretrained(NANO, dtype=torch.float32).state_dict()
    policy = Policy(NANO, TrainerConfig(optimizer={"lr": 1e-3, "warmup_steps": 0}, lora={"rank": 4}))
    batch = sequences(policy)
    start = score(policy, batch)
    policy.step(batch)
    assert score(policy, batch) > start + 0.1
    kept = {name.replace(".base_layer", ""): p for name, p in policy.model.named_parameters() if "lora_" not in name}
    assert len(kept) == 46
    assert all(torch.equal(parameter, before[name]) for name, parameter in kept.items())


def test_peft_reads_the_published_adapter_and_transformers_the_merged_checkpoint(tmp_path: Path) -> None:
    policy, batch = trained()
    published = policy.publish(tmp_path)
    assert sorted(path.name for path in published.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    policy.save(tmp_path / "step-1", NANO)
    base = AutoModelForCausalLM.from_pretrained(NANO, dtype=torch.float32)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "step-1", dtype=torch.float32)
    own = score(policy, batch)
    assert abs(plain_score(base, batch) - own) > 1
    assert plain_score(merged, batch) == pytest.approx(own, abs=1e-3)
    assert plain_score(PeftModel.from_pretrained(base, published), batch) == pytest.approx(own, abs=1e-3)


def test_a_checkpoint_continues_exactly(tmp_path: Path) -> None:
    straight, batch = trained()
    straight.save(tmp_path / "step-1", NANO)
    straight.step(batch)
    resumed = Policy(NANO, straight.config)
    resumed.load(tmp_path / "step-1")
    resumed.step(batch)
    for one, other in zip(straight.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_mismatch_is_measured_under_the_adapter_that_sampled(tmp_path: Path) -> None:
    policy = Policy(NANO, TrainerConfig(optimizer={"lr": 1e-2, "warmup_steps": 0}, lora={"rank": 4}))
    old = sequences(policy)
    published = {0: policy.publish(tmp_path)}
    policy.step(old)
    published[1] = policy.publish(tmp_path)
    now = score(policy, old)
    exact = policy.mismatch(old, published)
    assert exact is not None
    assert (exact.tokens, exact.max_abs < 1e-5) == (60, True)
    assert score(policy, old) == now


def test_the_reference_is_the_model_under_the_adapter_and_costs_no_memory() -> None:
    policy, batch = trained(kl={"kind": "loss", "coef": 0.01}, minibatches=2)
    assert policy.reference is None
    result = policy.step(batch)
    whole = Policy(NANO, TrainerConfig(optimizer={"lr": 1e-4}, kl={"kind": "loss", "coef": 0.01}))
    assert whole.reference is not None
    assert result.stats.kl_reference > 1
    assert whole.step(batch).stats.kl_reference == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize(
    ("saved", "loaded", "reason"),
    [
        ({"lora": {"rank": 4}}, {}, "was trained with an adapter"),
        ({}, {"lora": {"rank": 4}}, "was trained without an adapter"),
        ({"lora": {"rank": 4}}, {"lora": {"rank": 8}}, "another `trainer.lora.rank`"),
        ({"lora": {"rank": 4, "alpha": 8}}, {"lora": {"rank": 4}}, "with `trainer.lora.alpha` = 8, and it is 32"),
    ],
)
def test_a_checkpoint_of_another_kind_is_refused(
    tmp_path: Path, saved: dict[str, Any], loaded: dict[str, Any], reason: str
) -> None:
    Policy(NANO, TrainerConfig(**saved)).save(tmp_path / "step-0", NANO)
    with pytest.raises(ConfigError, match=reason):
        Policy(NANO, TrainerConfig(**loaded)).load(tmp_path / "step-0")


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match=r"lora\.rank\n  Field required"):
        TrainerConfig(lora={"alpha": 8})
    with pytest.raises(ValueError, match="sends neither the adapter"):
        RunConfig.model_validate(
            {"engine": {"kind": "sglang", "transfer": "broadcast"}, "trainer": {"lora": {"rank": 4}}}
        )
