"""A critic: what the rest of a trajectory will earn, as seen before each trained token; and the advantages that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from agentrl.config.trainer import GaeAdvantage, TrainerConfig
from agentrl.trainer.model.packed_model import decoder_layers, load_model, recompute_activations
from agentrl.trainer.model.ranks import Ranks, full_tensor
from agentrl.trainer.model.tree_attention import use_tree_attention
from agentrl.trainer.packing import Pack

BETAS = (0.9, 0.95)
"""Decay rates of the averages of AdamW, the critic's and the policy's."""


@dataclass(frozen=True)
class AdvantagesAndReturns:
    """The advantages that the policy learns from a pack, and the returns that the critic does."""

    advantages: Tensor
    """[M] A."""
    returns: Tensor
    """[M] λ-returns A + V: what the values should be."""
    value_mask: Tensor
    """[M] bool: tokens whose value is trained; where a step is a turn, the first of each turn."""
    old_values: Tensor
    """[M] V, the values that the advantages were made of."""


def gae(
    pack: Pack, values: Tensor, end_values: Tensor, *, discount: float, decay: float, by_turn: bool
) -> AdvantagesAndReturns:
    """Return generalised advantage estimates (Schulman et al. 2016, arXiv 1506.02438, eq. 11–16).

        δ_k = r_k + γ·V_{k+1} − V_k        A_k = δ_k + γλ·A_{k+1}        return_k = A_k + V_k

    k counts the steps of one trajectory. A step is a token, or, `by_turn`, a whole turn: r_k is the sum of its tokens'
    rewards, V_k the value before its first token, and each of its tokens has A_k. V after the last step is 0 where the trajectory came
    to its end, and what the critic expects there where it was cut off (Pardo et al. 2018, arXiv 1712.00378).

    Args:
        pack: The pack, with the tokens' rewards.
        values: [M] V before each trained token, without a gradient.
        end_values: [S] V after the last step of each trajectory.
        discount: γ.
        decay: λ.
        by_turn: Whether a step is a turn.

    Returns:
        Advantages and returns of the M tokens.
    """
    changes = pack.sequence_index.diff() != 0
    if by_turn:
        changes |= pack.turn_index.diff() != 0
    else:
        changes = torch.ones_like(changes)
    first = torch.cat([torch.ones_like(pack.sequence_index[:1], dtype=torch.bool), changes])  # [M] begins a step
    step = first.cumsum(0) - 1  # [M] the step of each token, of K in the pack
    rewards = torch.zeros(int(first.sum()), dtype=values.dtype).index_add(0, step.cpu(), pack.rewards.to(values).cpu())
    sequence, before, after = pack.sequence_index[first].tolist(), values[first].tolist(), end_values.tolist()
    advantages = [0.0] * len(sequence)  # [K]
    for k in reversed(range(len(sequence))):
        goes_on = k + 1 < len(sequence) and sequence[k + 1] == sequence[k]
        next_value, next_advantage = (before[k + 1], advantages[k + 1]) if goes_on else (after[sequence[k]], 0.0)
        advantages[k] = float(rewards[k]) + discount * next_value - before[k] + discount * decay * next_advantage
    of_tokens = torch.tensor(advantages, dtype=values.dtype, device=values.device)[step]
    return AdvantagesAndReturns(of_tokens, of_tokens + values, first, values)


class Critic(nn.Module):
    """A copy of the model with one number in place of the logits, and its optimizer. Spread over the ranks as the policy is."""

    def __init__(
        self, model_path: Path, config: TrainerConfig, ranks: Ranks | None = None, device: torch.device | None = None
    ) -> None:
        """Load the model's backbone under a head that says 0.

        Args:
            model_path: A Hugging Face model directory.
            config: How the policy learns: its advantages are of the kind "gae".
            ranks: The trainer's ranks; one by default.
            device: Where it computes; the CPU by default.

        Raises:
            ConfigError: The directory holds no model that can be trained.
        """
        super().__init__()
        assert isinstance(config.advantage, GaeAdvantage)
        self.config, self.how = config, config.advantage
        self.ranks = ranks or Ranks()
        self.device = device or torch.device("cpu")
        model = load_model(model_path)
        use_tree_attention(model)
        self.backbone = model.base_model
        layers = decoder_layers(self.backbone)
        if config.recompute_activations:
            recompute_activations(layers)
        self.head = nn.Linear(model.get_output_embeddings().weight.shape[1], 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.eval()
        self.ranks.distribute(self, layers, self.device, offload=config.offload)
        self.optimizer = torch.optim.AdamW(self.parameters(), lr=self.how.critic_lr, betas=BETAS, weight_decay=0.0)

    def forward(self, pack: Pack, at: Tensor) -> Tensor:
        """Return what the rest of its trajectory will earn after some tokens of a pack.

        Args:
            pack: The pack.
            at: [K] indices of tokens in it.

        Returns:
            [K] values, float32.
        """
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "mixed"):
            out = self.backbone(
                input_ids=pack.token_ids.unsqueeze(0),
                position_ids=pack.position_ids.unsqueeze(0),
                use_cache=False,
                tree=pack,
            )
            values: Tensor = self.head(out.last_hidden_state[0][at]).squeeze(-1).float()
        return values

    @torch.no_grad()
    def advantages_and_returns(self, pack: Pack) -> AdvantagesAndReturns:
        """Return the advantages of a pack under the critic as it is, and what it should have said."""
        how, ends = self.how, pack.truncated_end
        cut = ends >= 0  # [S] a reply that was cut off for its length: the critic says what would follow
        values = self(pack, torch.cat([pack.source, ends[cut]]))
        end_values = values.new_zeros(len(ends)).masked_scatter(cut, values[pack.trained_tokens :])
        return gae(
            pack,
            values[: pack.trained_tokens],
            end_values,
            discount=how.discount,
            decay=how.gae_lambda,
            by_turn=how.kind == "turn_gae",
        )

    def loss(self, pack: Pack, estimates: AdvantagesAndReturns, value_count: int) -> Tensor:
        """Return the pack's part of ½·mean (V − R)².

        Args:
            pack: The pack.
            estimates: The returns R of its tokens.
            value_count: Values that the mean is over: those of the whole minibatch.

        Returns:
            [] the part, with a gradient.
        """
        mask = estimates.value_mask
        values = self(pack, pack.source)[mask]
        return 0.5 * (values - estimates.returns[mask]).square().sum() / max(1, value_count)

    def update(self, packs: Sequence[Pack], estimates: Sequence[AdvantagesAndReturns]) -> float:
        """Take an optimizer step over a minibatch; none when the gradient is not finite.

        Args:
            packs: [pack] this rank's of the minibatch.
            estimates: [pack][M].

        Returns:
            The loss of the minibatch, over all ranks.
        """
        (value_count,) = self.ranks.all_reduce([float(sum(int(e.value_mask.sum()) for e in estimates))])
        minibatch_loss = 0.0
        for pack, own in zip(packs, estimates, strict=True):
            loss = self.loss(pack, own, int(value_count))
            (loss * self.ranks.size).backward()  # gradients are averaged over the ranks
            minibatch_loss += float(loss.detach())
        norm = full_tensor(torch.nn.utils.clip_grad_norm_(self.parameters(), self.config.optimizer.max_grad_norm))
        if torch.isfinite(norm):
            self.optimizer.step()
        self.optimizer.zero_grad()
        return self.ranks.all_reduce([minibatch_loss])[0]


def explained_variance(estimates: Sequence[AdvantagesAndReturns], ranks: Ranks) -> float:
    """Return 1 − Var(return − value) / Var(return): 1 for a critic that knows, 0 for one that says nothing.

    Args:
        estimates: Those of this rank's packs.
        ranks: The trainer's ranks; all must call it together.

    Returns:
        The explained variance; 0 for fewer than two values.
    """
    returns = ranks.all_gather(torch.cat([e.returns[e.value_mask] for e in estimates]))
    errors = returns - ranks.all_gather(torch.cat([e.old_values[e.value_mask] for e in estimates]))
    if len(returns) < 2:
        return 0.0
    return 1 - float(errors.var()) / max(1e-12, float(returns.var()))
