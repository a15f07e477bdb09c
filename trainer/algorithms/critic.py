"""A critic: what the rest of a trajectory will earn, as seen before each trained token; and the advantages that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from agentrl.config import TrainerConfig
from agentrl.trainer.model.dropout import gradient_pass, recompute_activations
from agentrl.trainer.model.ranks import Ranks, whole
from agentrl.trainer.model.scored_model import decoder_layers, load_model
from agentrl.trainer.model.tree_attention import use_tree_attention
from agentrl.trainer.packing import Pack


@dataclass(frozen=True)
class Returns:
    """What a critic is taught by a pack, and what the policy is."""

    advantages: Tensor
    """[M]."""
    targets: Tensor
    """[M] what the values should be."""
    counted: Tensor
    """[M] bool: tokens whose value is taught; under `gae_unit = "turn"` the first of each turn."""
    old_values: Tensor
    """[M] the values that the advantages were made of."""


def gae(batch: Pack, values: Tensor, ends: Tensor, *, discount: float, decay: float, unit: str) -> Returns:
    """Generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438, eq. 11–16).

        δ_k = r_k + γ·V_{k+1} − V_k        A_k = δ_k + γλ·A_{k+1}        target_k = A_k + V_k

    k counts the steps of one trajectory. A step is a token, or, with `unit` = "turn", a whole turn: r_k is what its tokens earned,
    V_k the value before its first token, and each of its tokens has A_k. V after the last step is 0 where the trajectory came to its
    end, and what the critic expects there where it was cut off (Pardo et al. 2018, arXiv 1712.00378).

    Args:
        values: [M] V before each trained token, without a gradient.
        ends: [S] V after the last step of each trajectory.
    """
    changes = batch.index.diff() != 0
    if unit == "turn":
        changes |= batch.turns.diff() != 0
    else:
        changes = torch.ones_like(changes)
    first = torch.cat([torch.ones_like(batch.index[:1], dtype=torch.bool), changes])
    step = first.cumsum(0) - 1  # [M] the step of each token
    earned = torch.zeros(int(first.sum()), dtype=values.dtype).index_add(0, step.cpu(), batch.rewards.to(values).cpu())
    owner, before, after = batch.index[first].tolist(), values[first].tolist(), ends.tolist()
    advantages = [0.0] * len(owner)
    for k in reversed(range(len(owner))):
        goes_on = k + 1 < len(owner) and owner[k + 1] == owner[k]
        following, later = (before[k + 1], advantages[k + 1]) if goes_on else (after[owner[k]], 0.0)
        advantages[k] = float(earned[k]) + discount * following - before[k] + discount * decay * later
    made = torch.tensor(advantages, dtype=values.dtype, device=values.device)[step]
    return Returns(made, made + values, first, values)


class Critic(nn.Module):
    """A copy of the model with one number in place of the logits, and its optimizer. Spread over the ranks as the policy is."""

    def __init__(
        self, model_path: Path, config: TrainerConfig, ranks: Ranks | None = None, device: torch.device | None = None
    ) -> None:
        super().__init__()
        self.config = config
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
        self.ranks.place(self, layers, self.device, offload=config.offload)
        self.optimizer = torch.optim.AdamW(self.parameters(), lr=config.critic_lr, betas=config.betas, weight_decay=0.0)

    def forward(self, batch: Pack, at: Tensor) -> Tensor:
        """[K] what the rest of its trajectory will earn after each of the tokens `at`, [K] indices of the pack."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "mixed"):
            out = self.backbone(
                input_ids=batch.token_ids.unsqueeze(0),
                position_ids=batch.position_ids.unsqueeze(0),
                use_cache=False,
                tree=batch,
            )
            values: Tensor = self.head(out.last_hidden_state[0][at]).squeeze(-1).float()
        return values

    @torch.no_grad()
    def returns(self, batch: Pack) -> Returns:
        """The advantages of a pack under the critic as it is."""
        config = self.config
        cut = batch.ends >= 0 if config.gae_bootstrap else torch.zeros_like(batch.ends, dtype=torch.bool)
        values = self(batch, torch.cat([batch.source, batch.ends[cut]]))
        ends = values.new_zeros(len(batch.ends)).masked_scatter(cut, values[batch.tokens :])
        return gae(
            batch,
            values[: batch.tokens],
            ends,
            discount=config.gae_discount,
            decay=config.gae_lambda,
            unit=config.gae_unit,
        )

    def loss(self, batch: Pack, returns: Returns, count: int) -> Tensor:
        """The pack's share in ½·mean max((V − R)², (V̄ − R)²) over `count` values, V̄ within ±c of the old value (PPO's value
        clip); without c, ½·mean (V − R)²."""
        values = self(batch, batch.source)[returns.counted]
        old, targets = returns.old_values[returns.counted], returns.targets[returns.counted]
        errors = (values - targets).square()
        if self.config.value_clip is not None:
            near = old + (values - old).clamp(-self.config.value_clip, self.config.value_clip)
            errors = torch.maximum(errors, (near - targets).square())
        return 0.5 * errors.sum() / max(1, count)

    def teach(self, packs: Sequence[Pack], returns: Sequence[Returns], seed: tuple[int, ...] = ()) -> float:
        """An optimizer step over this rank's packs of a minibatch, none when the gradient is not finite; the minibatch's loss.
        What dropout drops follows from `seed`."""
        (count,) = self.ranks.all_reduce([float(sum(int(one.counted.sum()) for one in returns))])
        total = 0.0
        for k, (batch, one) in enumerate(zip(packs, returns, strict=True)):
            with gradient_pass(self, dropout=self.config.dropout, seed=(*seed, self.ranks.rank, k)):
                loss = self.loss(batch, one, int(count))
                (loss * self.ranks.size).backward()  # gradients are averaged over the ranks
            total += float(loss.detach())
        norm = whole(torch.nn.utils.clip_grad_norm_(self.parameters(), self.config.max_grad_norm))
        if torch.isfinite(norm):
            self.optimizer.step()
        self.optimizer.zero_grad()
        return self.ranks.all_reduce([total])[0]


def explained_variance(returns: Sequence[Returns], ranks: Ranks) -> float:
    """1 − Var(target − value) / Var(target): 1 for a critic that knows, 0 for one that says nothing."""
    targets = ranks.all_gather(torch.cat([r.targets[r.counted] for r in returns]))
    errors = targets - ranks.all_gather(torch.cat([r.old_values[r.counted] for r in returns]))
    if len(targets) < 2:
        return 0.0
    return 1 - float(errors.var()) / max(1e-12, float(targets.var()))
