"""Policies of roles: each adapter learns what it would learn alone from its role's turns, and nothing else of it moves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from agentrl.config import TrainerConfig
from agentrl.engine.adapters import adapter_folders
from agentrl.errors import ConfigError
from agentrl.models import NANO
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.record.trajectory import TokenRecord
from agentrl.store.episodes import FinishedEpisode
from agentrl.store.manifest import read_manifest
from agentrl.trainer.packing import TrainingSequence
from agentrl.trainer.policies import Policies, together
from agentrl.trainer.policy import Policy
from agentrl.trainer.sequences import training_sequences
from agentrl.trainer.step_metrics import metrics_by_role
from tests.trainer.test_policy import sequences
from tests.trainer.trained_state import all_same_bits, same_bits, trained_state

LR = 1e-2
ROLES = ["writer", "critic"]


def config(*roles: str, **settings: Any) -> TrainerConfig:
    return TrainerConfig(
        **{"optimizer": {"lr": LR, "warmup_steps": 0}, "lora": {"rank": 4, "roles": list(roles)}, **settings}
    )


def batch_of(policies: Policies, *roles: str) -> list[TrainingSequence]:
    """Sequences that each role's policy sampled, those of the roles in turn, a little off what the trainer gives them."""
    generator = torch.Generator().manual_seed(5)
    of_role = []
    for number, role in enumerate(roles):
        own = sequences(policies.by_role[role], count=3, advantage=1.0 - 1.7 * number)
        of_role.append(
            [
                replace(
                    s,
                    token_ids=torch.where(s.loss_mask, s.token_ids, (s.token_ids + 37 * number) % 400 + 9),
                    behaviour_logprobs=s.behaviour_logprobs + 0.05 * torch.randn(20, generator=generator) * s.loss_mask,
                    adapter=role,
                )
                for s in own
            ]
        )
    return [s for together_ in zip(*of_role, strict=True) for s in together_]


def adapter_of(policies: Policies, role: str) -> dict[str, torch.Tensor]:
    named = policies.by_role[role].model.named_parameters()
    return {name: p.detach().clone() for name, p in named if p.requires_grad}


def plain_steps(batch: list[TrainingSequence], steps: int, lr: float) -> tuple[dict[str, torch.Tensor], list[float]]:
    """The adapter after some steps on a batch, and the norms of the gradients, by peft and torch alone: truncated p/b times the clipped
    ratio, then AdamW.
    """
    base = AutoModelForCausalLM.from_pretrained(NANO, dtype=torch.float32).eval()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: Any = get_peft_model(base, LoraConfig(r=4, lora_alpha=32, target_modules="all-linear"))
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(parameters.values(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    tokens = sum(int(s.loss_mask.sum()) for s in batch)
    norms = []
    for _ in range(steps):
        optimizer.zero_grad()
        for s in batch:
            logits = model(s.token_ids.unsqueeze(0)).logits[0, :-1]
            logprobs = torch.log_softmax(logits, -1).gather(1, s.token_ids[1:, None])[:, 0]
            start = logprobs.detach()
            ratio = (logprobs - start).exp()
            weight = (start - s.behaviour_logprobs[1:]).exp().clamp(max=TrainerConfig().importance.max)  # type: ignore[union-attr]
            loss = -weight * torch.min(ratio * s.advantages[1:], ratio.clamp(0.8, 1.2) * s.advantages[1:])
            (loss[s.loss_mask[1:]].sum() / tokens).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)))
        optimizer.step()
    return {name.removeprefix("base_model.model."): p.detach() for name, p in parameters.items()}, norms


def test_each_adapter_takes_the_steps_that_peft_and_torch_take_alone_on_its_roles_turns() -> None:
    lr = 2e-4  # AdamW divides a gradient by its own size: what rounding leaves of a tiny one is a part of the rate
    policies = Policies(NANO, config(*ROLES, optimizer={"lr": lr, "warmup_steps": 0}))
    batch = batch_of(policies, *ROLES)
    results = [policies.step(batch) for _ in range(3)]
    for role in ROLES:
        expected, norms = plain_steps([s for s in batch if s.adapter == role], 3, lr)
        assert [step[role].grad_norm for step in results] == pytest.approx(norms, rel=1e-5)
        found = adapter_of(policies, role)
        assert found.keys() == expected.keys()
        assert max(float((found[name] - expected[name]).abs().max()) for name in found) < 1e-6
        moved = [float(tensor.abs().max()) for name, tensor in found.items() if "lora_B" in name]
        assert min(moved) > 2 * lr


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, marks=pytest.mark.soak),
        {"minibatches": 2, "kl": {"kind": "loss", "coef": 0.05}},
        {"kl": {"kind": "reward", "coef": 0.05}, "advantage": "reinforce_pp"},
        {"advantage": {"kind": "gae", "critic_lr": 1e-3}},
        pytest.param({"objective": "m2po", "importance": "none"}, marks=pytest.mark.soak),
    ],
    ids=["default", "kl", "whitened", "critic", "m2po"],
)
def test_each_policy_is_to_the_bit_what_it_would_be_without_the_other(settings: dict[str, Any]) -> None:
    policies = Policies(NANO, config(*ROLES, **settings))
    batch = batch_of(policies, *ROLES)
    for _ in range(2):
        results = policies.step(batch)
    for role in ROLES:
        alone = Policy(NANO, config(**settings))
        own = [s for s in batch if s.adapter == role]
        for _ in range(2):
            result = alone.step(own)
        assert same_bits(alone.state, policies.states[role])
        assert (result.loss, result.grad_norm) == (results[role].loss, results[role].grad_norm)
    assert together(results).loss == pytest.approx(sum(result.loss for result in results.values()))
    assert sorted(n for part in together(results).minibatches for n in part) == list(range(len(batch)))


def test_a_role_without_a_turn_in_the_batch_stays_as_it_is_to_the_bit_and_so_does_the_base() -> None:
    before = AutoModelForCausalLM.from_pretrained(NANO, dtype=torch.float32).state_dict()
    policies = Policies(NANO, config(*ROLES, optimizer={"lr": LR, "warmup_steps": 0, "weight_decay": 0.1}))
    policies.step(batch_of(policies, *ROLES))
    kept = trained_state(policies.states["critic"])
    results = policies.step(batch_of(policies, "writer"))
    assert results.keys() == {"writer"}
    after = trained_state(policies.states["critic"])
    assert kept.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in kept.items())
    assert policies.version == policies.by_role["critic"].version == 2
    models = [policy.model for policy in policies.by_role.values()]
    base = [
        {name.replace(".base_layer", ""): p for name, p in model.named_parameters() if "lora_" not in name}
        for model in models
    ]
    assert all(base[0][name] is base[1][name] for name in base[0]), "one base, held once"
    assert all(torch.equal(parameter, before[name]) for name, parameter in base[0].items())


def test_a_checkpoint_and_published_weights_hold_each_role_and_go_on_exactly(tmp_path: Path) -> None:
    settings = {"advantage": {"kind": "gae", "critic_lr": 1e-3}}
    straight = Policies(NANO, config(*ROLES, **settings))
    straight.step(batch_of(straight, "writer"))
    straight.step(batch_of(straight, *ROLES))
    straight.snapshot(tmp_path / "step-2", NANO)()
    assert read_manifest(tmp_path / "step-2").optimizer_steps == 3
    assert list(adapter_folders(tmp_path / "step-2")) == sorted(ROLES)
    base = load_file(NANO / "model.safetensors")
    saved = load_file(tmp_path / "step-2" / "model.safetensors")
    assert all(torch.equal(saved[name], tensor.float()) for name, tensor in base.items())

    published = straight.publish(tmp_path)
    assert published == tmp_path / "v2"
    for role, folder in adapter_folders(published).items():
        whole = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(NANO, dtype=torch.float32), folder)
        read = {name.removeprefix("base_model.model."): p for name, p in whole.named_parameters() if "lora_" in name}
        own = adapter_of(straight, role)
        assert read.keys() == own.keys()
        assert all(torch.equal(read[name], tensor) for name, tensor in own.items())

    batch = batch_of(straight, *ROLES)
    resumed = Policies(NANO, config(*ROLES, **settings))
    assert resumed.load(tmp_path / "step-2").step == resumed.version == 2
    assert all_same_bits(resumed.states, straight.states)
    for policies in (straight, resumed):
        policies.step(batch)
    assert all_same_bits(resumed.states, straight.states)
    for other in (config("writer", **settings), config("writer", "judge", **settings), config(**settings)):
        with pytest.raises(ConfigError, match=r"has adapters of the roles critic, writer, and `trainer\.lora\.roles`"):
            Policies(NANO, other).load(tmp_path / "step-2")


def test_the_mismatch_is_measured_under_the_adapter_that_answered(tmp_path: Path) -> None:
    policies = Policies(NANO, config(*ROLES))
    published = {0: policies.publish(tmp_path)}
    policies.step(batch_of(policies, *ROLES))
    published[1] = policies.publish(tmp_path)
    exact = [
        replace(s, adapter=role)
        for role in ROLES
        for s in sequences(policies.by_role[role], count=3)  # sampled under version 1
    ]
    policies.step(batch_of(policies, *ROLES))
    found = policies.mismatch(exact, published, at_most=2)
    assert {role: one.tokens for role, one in found.items()} == {"": 40, "writer": 20, "critic": 20}
    assert max(one.max_abs for one in found.values()) < 1e-5
    swapped = [replace(s, adapter=ROLES[1 - ROLES.index(s.adapter)]) for s in exact]
    assert policies.mismatch(swapped, published, at_most=2)["writer"].mean_abs > 0.1


def reply(ids: list[int]) -> Generation:
    spans = [VersionSpan(0, 0, len(ids))]
    return Generation(output_ids=ids, logprobs=[-0.5] * len(ids), versions=spans, finish="stop")


def test_a_conversation_of_two_roles_teaches_each_the_tokens_that_it_said() -> None:
    record = TokenRecord()
    first = record.add("a", None, [1, 2], reply([10, 11]), 1.0)
    second = record.add("b", first, [1, 2, 10, 11, 3], reply([12]), 1.0)
    third = record.add("c", second, [1, 2, 10, 11, 3, 12, 4], reply([13, 14]), 1.0)
    for turn, role in ((first, "writer"), (second, "critic"), (third, "writer")):
        turn.adapter = turn.role = role
    other = TokenRecord()
    other.add("d", None, [1, 2], reply([20, 21]), 1.0).adapter = "critic"
    episodes = [
        FinishedEpisode(id=n, group_id=1, reward=float(n), record=r, restart=1, replayed_tokens=0)
        for n, r in enumerate((record, other))
    ]
    (writer, critic), (lone,) = training_sequences(episodes, config(*ROLES))
    assert [s.adapter for s in (writer, critic, lone)] == ["writer", "critic", "critic"]
    assert writer.token_ids[writer.loss_mask].tolist() == [10, 11, 13, 14]
    assert critic.token_ids[critic.loss_mask].tolist() == [12]
    assert torch.equal(writer.token_ids, critic.token_ids)
    policies = Policies(NANO, config(*ROLES))
    results = policies.step([writer, critic, lone])
    metrics = metrics_by_role(results, [writer, critic, lone], episodes, config(*ROLES))
    assert metrics["role_writer_trained_tokens"] == 4
    assert metrics["role_critic_reward_mean"] == 0.5
    assert metrics["role_critic_reply_tokens_mean"] == 1.5


def test_tokens_of_a_role_that_is_not_trained_are_refused_and_nothing_has_moved() -> None:
    policies = Policies(NANO, config(*ROLES))
    before = {role: trained_state(state) for role, state in policies.states.items()}
    batch = batch_of(policies, *ROLES)
    for stranger in ("judge", ""):
        with pytest.raises(ConfigError, match=f"the role '{stranger}'.*`trainer.lora.roles` names writer, critic"):
            policies.step([*batch, replace(batch[0], adapter=stranger)])
    for role, state in policies.states.items():
        assert all(torch.equal(tensor, before[role][name]) for name, tensor in trained_state(state).items())
    assert policies.version == 0
