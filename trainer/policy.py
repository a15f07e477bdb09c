"""The policy as the trainer holds it: score packs, take optimizer steps, publish weights, save and load."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from agentrl.config import TrainerConfig
from agentrl.engine.varlen_attention import use_varlen_attention
from agentrl.trainer.losses import LossStats, Mismatch, mismatch, policy_loss, token_logprobs
from agentrl.trainer.objectives import token_shares
from agentrl.trainer.packing import Pack, TrainingSequence, pack

MAX_SKIPPED_IN_A_ROW = 3
"""Optimizer steps with a gradient that is not finite, after which the run ends, with a checkpoint of what was before."""


@dataclass(frozen=True)
class StepResult:
    """What one training step did."""

    loss: float
    """Of the last minibatch."""
    grad_norm: float
    """Before clipping, mean over minibatches."""
    lr: float
    stats: LossStats
    """Summed over minibatches."""
    skipped: int
    """Optimizer steps that were not taken, because the gradient was not finite."""


class Policy:
    """A causal LM with its optimizer. `version` counts the training steps it has taken."""

    def __init__(self, model_path: Path, config: TrainerConfig) -> None:
        self.config = config
        self.version = 0
        self.model: Any = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
        use_varlen_attention(self.model)
        self.model.train()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config.lr, betas=config.betas, weight_decay=config.weight_decay
        )
        self._optimizer_steps = 0
        self._skipped_in_a_row = 0

    def logprobs(self, batch: Pack, parameters: Mapping[str, Tensor] | None = None) -> Tensor:
        """[T] logprob of every token given those before it in its sequence, at its temperature; 0 where a sequence
        starts. With `parameters`, under those weights instead of the policy's."""
        inputs: dict[str, Any] = {
            "input_ids": batch.token_ids.unsqueeze(0),
            "position_ids": batch.position_ids.unsqueeze(0),
            "cu_seq_lens_q": batch.bounds,
            "cu_seq_lens_k": batch.bounds,
            "use_cache": False,
        }
        if parameters is None:
            logits = self.model(**inputs).logits[0]
        else:
            logits = torch.func.functional_call(self.model, dict(parameters), kwargs=inputs).logits[0]
        scored = token_logprobs(logits[:-1], batch.token_ids[1:], batch.temperatures[1:])
        scored = torch.cat([scored.new_zeros(1), scored])
        return torch.where(batch.position_ids == 0, 0.0, scored)

    def step(self, sequences: Sequence[TrainingSequence]) -> StepResult:
        """One training step: K optimizer steps of decoupled PPO over `sequences`, in an order drawn from the version."""
        config = self.config
        order = torch.randperm(len(sequences), generator=torch.Generator().manual_seed(self.version)).tolist()
        parts = [order[k :: config.minibatches] for k in range(config.minibatches)]
        minibatches = [pack([sequences[i] for i in part], config.tokens_per_pack) for part in parts if part]
        if config.objective == "m2po":  # its ratio is to the behaviour policy
            proximal = [[batch.behaviour_logprobs for batch in packs] for packs in minibatches]
        else:
            with torch.no_grad():
                proximal = [[self.logprobs(batch) for batch in packs] for packs in minibatches]

        norms: list[float | None] = []
        totals: list[LossStats] = []
        loss_mean = 0.0
        for packs, references in zip(minibatches, proximal, strict=True):
            tokens, count = sum(batch.tokens for batch in packs), sum(batch.trained_sequences for batch in packs)
            if tokens == 0:
                continue
            loss_mean = 0.0
            for batch, reference in zip(packs, references, strict=True):
                sequences_of = batch.sequences
                losses, stats = policy_loss(
                    self.logprobs(batch), reference, batch.behaviour_logprobs, batch.advantages, sequences_of, config
                )
                shares = token_shares(
                    sequences_of, mode=config.loss_mean, tokens=tokens, count=count, length=config.loss_length
                )
                loss = (losses * shares).sum()
                loss.backward()
                loss_mean += float(loss.detach())
                totals.append(stats)
            norms.append(self._optimizer_step())
        grad_norms = [norm for norm in norms if norm is not None]
        self.version += 1
        return StepResult(
            loss=loss_mean,
            grad_norm=sum(grad_norms) / max(1, len(grad_norms)),
            lr=self.optimizer.param_groups[0]["lr"],
            stats=_sum(totals),
            skipped=len(norms) - len(grad_norms),
        )

    def _optimizer_step(self) -> float | None:
        """The gradient's norm; None when it is not finite, and nothing was changed. Raises FloatingPointError when that
        repeats."""
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
        if not torch.isfinite(norm):
            self.optimizer.zero_grad()
            self._skipped_in_a_row += 1
            if self._skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
                raise FloatingPointError(
                    f"the gradient was not finite in {self._skipped_in_a_row} optimizer steps in a row; lower trainer.lr, or "
                    f"look at the rewards of the last batches"
                )
            return None
        self._skipped_in_a_row = 0
        self._optimizer_steps += 1
        lr = self.config.lr * min(1.0, self._optimizer_steps / max(1, self.config.warmup_steps))
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(norm)

    @torch.no_grad()
    def mismatch(self, sequences: Sequence[TrainingSequence], weights: Mapping[int, Path]) -> Mismatch | None:
        """Compare the engine's logprobs with the trainer's, each token under the very weights that sampled it.

        `weights` holds the published weights by version; tokens of other versions are left out.
        """
        engine, trainer = [], []
        for batch in pack(sequences, self.config.tokens_per_pack):
            for version in batch.versions[batch.loss_mask].unique().tolist():
                if version not in weights:
                    continue
                own = version == self.version
                scored = self.logprobs(batch, None if own else load_file(weights[version] / "model.safetensors"))
                chosen = batch.loss_mask & (batch.versions == version)
                engine.append(batch.behaviour_logprobs[chosen])
                trainer.append(scored[chosen])
        return mismatch(torch.cat(engine), torch.cat(trainer)) if engine else None

    def publish(self, directory: Path) -> Path:
        """Write the weights to `directory`/v<version>, whole or not at all, as safetensors with the model's config."""
        target = directory / f"v{self.version}"
        partial = directory / f"v{self.version}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        save_file(
            {name: parameter.detach().contiguous() for name, parameter in self.model.named_parameters()},
            partial / "model.safetensors",
            metadata={"format": "pt"},
        )
        self.model.config.save_pretrained(partial)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        return target

    def save(self, directory: Path, model_path: Path) -> None:
        """Write a checkpoint: a Hugging Face model directory, usable as `--model`, with the optimizer beside it."""
        partial = directory.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for file in model_path.iterdir() if model_path.is_dir() else []:
            if file.is_file() and file.suffix not in (".safetensors", ".bin", ".pt"):
                shutil.copy(file, partial)
        published = self.publish(partial)
        for file in published.iterdir():
            file.replace(partial / file.name)
        published.rmdir()
        state = {
            "optimizer": self.optimizer.state_dict(),
            "optimizer_steps": self._optimizer_steps,
            "version": self.version,
        }
        torch.save(state, partial / "trainer_state.pt")
        (partial / "checkpoint.json").write_text(json.dumps({"step": self.version}) + "\n")
        shutil.rmtree(directory, ignore_errors=True)
        partial.rename(directory)

    def load(self, directory: Path) -> None:
        """Go on from a checkpoint."""
        weights = load_file(directory / "model.safetensors")
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(weights[name])
        state = torch.load(directory / "trainer_state.pt", weights_only=True)
        self.optimizer.load_state_dict(state["optimizer"])
        self._optimizer_steps = state["optimizer_steps"]
        self.version = state["version"]


def _sum(stats: Sequence[LossStats]) -> LossStats:
    return LossStats(*(sum(getattr(s, name) for s in stats) for name in LossStats.__dataclass_fields__))
