"""All that training changes of a policy, as tensors by name: what must be the same to the bit."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.trainer.model.checkpoint import PolicyState, States, optimizer_state, trained_parameters


def trained_state(state: PolicyState) -> dict[str, Tensor]:
    """A copy of the trained parameters and of what their optimizer remembers, with those of the critic."""
    named = {**trained_parameters(state.model), **optimizer_state(state.model, state.optimizer)}
    if state.critic is not None:
        own = {**dict(state.critic.named_parameters()), **optimizer_state(state.critic, state.critic.optimizer)}
        named |= {f"critic.{name}": tensor for name, tensor in own.items()}
    return {name: tensor.detach().clone() for name, tensor in named.items()}


def same_bits(one: PolicyState, other: PolicyState) -> bool:
    """Whether two policies, and their optimizers, hold the same numbers."""
    left, right = trained_state(one), trained_state(other)
    return left.keys() == right.keys() and all(torch.equal(tensor, right[name]) for name, tensor in left.items())


def all_same_bits(one: States, other: States) -> bool:
    """Whether the policies of two trainers do, role by role."""
    return one.keys() == other.keys() and all(same_bits(state, other[role]) for role, state in one.items())
