"""The policy as the trainer holds it: logprobs of packs, training steps, publishing weights, checkpoints.

sequences ─► minibatches of packs ─► prepared packs: reference, critic, final advantages ─► K optimizer steps ─► StepResult
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.config.trainer import RatioObjective, TrainerConfig
from agentrl.store.manifest import Manifest
from agentrl.trainer.algorithms.losses import (
    LossStats,
    Mismatch,
    interpolated_proximal,
    mismatch,
    policy_loss,
    regularizers,
)
from agentrl.trainer.algorithms.objectives import M2PO_THRESHOLD, aggregation_weights, m2_cutoff
from agentrl.trainer.algorithms.token_advantages import whitened, with_distillation, with_kl_penalty
from agentrl.trainer.minibatches import Minibatch, PreparedPack, deal_minibatches
from agentrl.trainer.model.checkpoint import (
    PolicyState,
    optimizer_steps,
    read_checkpoint,
    read_published,
    snapshot_checkpoint,
    trained_parameters,
    write_weights,
)
from agentrl.trainer.model.critic import BETAS, Critic
from agentrl.trainer.model.lora import adapter_off, add_adapter
from agentrl.trainer.model.packed_model import PackedModel, TokenLogprobs, load_model, recompute_activations
from agentrl.trainer.model.ranks import Ranks, full_tensor
from agentrl.trainer.packing import Pack, TrainingSequence, pack_sequences
from agentrl.trainer.step_result import MinibatchResult, StepResult, step_result
from agentrl.trainer.token_figures import pack_figures

MAX_SKIPPED_IN_A_ROW = 3
"""Optimizer steps with a gradient that is not finite, after which the run ends, with a checkpoint of what was before."""
WHITENED_ADVANTAGES = ("gae", "turn_gae", "reinforce_pp", "reinforce_pp_baseline")
"""Kinds of advantages that are brought to mean 0 and deviation 1 over the batch."""


class Policy:
    """A causal LM with its optimizer. `version` counts the training steps it has taken."""

    def __init__(self, model_path: Path, config: TrainerConfig, ranks: Ranks | None = None, model: Any = None) -> None:
        """Load the model, its reference and its critic, and check that their kind can be trained.

        Args:
            model_path: A Hugging Face model directory.
            config: How the policy learns.
            ranks: The trainer's ranks; one by default. All of them must call every method together.
            model: The model that `model_path` holds, where it is loaded already.

        Raises:
            ConfigError: The model cannot be trained, or not so.
        """
        self.config = config
        self.ranks = ranks or Ranks()
        self.version = 0
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = load_model(model_path) if model is None else model
        if config.lora is not None:
            add_adapter(self.model, config.lora)
        self.packed_model = PackedModel(self.model)
        if self.ranks.size == 1 and not config.offload:  # what is spread never lies on one device whole
            self.model.to(self.device)
        self.packed_model.check()
        if config.recompute_activations:
            recompute_activations(self.packed_model.layers)
        self.reference: PackedModel | None = None
        if config.kl.kind != "none" and config.lora is None:
            self.reference = PackedModel(load_model(model_path))
            self.reference.requires_grad_(False)
        for model in (self.packed_model, self.reference):
            if model is not None:
                self.ranks.distribute(model, model.layers, self.device, offload=config.offload)
        self.critic = Critic(model_path, config, self.ranks, self.device) if config.has_critic else None
        rates = config.optimizer
        self.optimizer = torch.optim.AdamW(
            trained_parameters(self.model).values(), lr=rates.lr, betas=BETAS, weight_decay=rates.weight_decay
        )
        self._optimizer_steps = 0
        self._skipped_in_a_row = 0

    def logprobs(self, pack: Pack) -> Tensor:
        """Return [M] the logprob of every trained token of a pack, at its temperature."""
        return self._token_logprobs(pack).logprobs

    def _token_logprobs(self, pack: Pack) -> TokenLogprobs:
        with self._precision():
            output: TokenLogprobs = self.packed_model(pack, entropy_gradient=self.config.entropy_coef > 0)
        return output

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "mixed")

    def step(self, sequences: Sequence[TrainingSequence]) -> StepResult:
        """Take one training step: K optimizer steps of decoupled PPO over the sequences, in an order drawn from the version.

        Args:
            sequences: [sequence] the batch, each of T tokens.

        Returns:
            What the step did.

        Raises:
            FloatingPointError: The gradient was not finite several optimizer steps in a row.
        """
        minibatches = deal_minibatches(sequences, self.config, self.version, self.ranks)
        prepared = self._prepare(minibatches)  # [minibatch][pack]
        results = [
            self._train_minibatch(number, minibatch, prepared[number])
            for number, minibatch in enumerate(minibatches)
            if minibatch.token_count
        ]
        self.version += 1
        lr = self.optimizer.param_groups[0]["lr"]
        return step_result(minibatches, prepared, results, lr, self.ranks)

    @torch.no_grad()
    def _prepare(self, minibatches: Sequence[Minibatch]) -> list[list[PreparedPack]]:
        """Return [minibatch][pack] the packs with what only a model can say, and what only the whole batch can."""
        packs = [(pack, index == 0) for index, minibatch in enumerate(minibatches) for pack in minibatch.packs]
        prepared = [
            self._prepare_pack(pack.to(self.device), number, first=first) for number, (pack, first) in enumerate(packs)
        ]
        if self.config.advantage.kind in WHITENED_ADVANTAGES:
            advantages = whitened([one.advantages for one in prepared], self.ranks.all_reduce)
            prepared = [replace(one, advantages=values) for one, values in zip(prepared, advantages, strict=True)]
        in_order = iter(prepared)
        return [[next(in_order) for _ in minibatch.packs] for minibatch in minibatches]

    def _prepare_pack(self, pack: Pack, number: int, *, first: bool) -> PreparedPack:
        """Prepare one pack. `first`: it is of the first minibatch, whose gradient pass is under the policy as the step begins."""
        config = self.config
        has_proximal = isinstance(config.objective, RatioObjective) and config.objective.proximal == "recompute"
        start_logprobs = start_entropies = None
        if config.kl.kind == "reward" or config.teacher or (has_proximal and not first):
            start = self._token_logprobs(pack)
            start_logprobs, start_entropies = start.logprobs, start.entropies
        reference_logprobs = self._reference_logprobs(pack)
        changed, estimates = pack, None  # what is computed on stays the same object: it remembers its segments
        if config.kl.kind == "reward":
            assert start_logprobs is not None
            assert reference_logprobs is not None
            in_reward = self.critic is not None
            changed = with_kl_penalty(changed, start_logprobs, reference_logprobs, config.kl, in_reward=in_reward)
        if self.critic is not None:
            estimates = self.critic.advantages_and_returns(changed)
            changed = replace(changed, advantages=estimates.advantages)
        if config.teacher is not None:
            assert start_logprobs is not None
            changed = with_distillation(changed, start_logprobs, config.teacher)
        return PreparedPack(
            pack, number, changed.advantages, start_logprobs, start_entropies, reference_logprobs, estimates
        )

    def _reference_logprobs(self, pack: Pack) -> Tensor | None:
        """Return [M] log reference; None where there is no reference."""
        if self.config.kl.kind == "none":
            return None
        if self.reference is None:  # the model under the adapter is the one that training started from
            with adapter_off(self.model):
                return self.logprobs(pack)
        with self._precision():
            output: TokenLogprobs = self.reference(pack)
        return output.logprobs

    def _train_minibatch(self, number: int, minibatch: Minibatch, prepared: Sequence[PreparedPack]) -> MinibatchResult:
        """Take one optimizer step over this rank's packs of a minibatch, of the critic too."""
        loss_value, stats, weights, figures = 0.0, [], [], []
        if not prepared:  # a gradient of 0 is a gradient: the optimizer's averages move
            for parameter in trained_parameters(self.model).values():
                parameter.grad = torch.zeros_like(parameter)
        for one, m2_mask in zip(prepared, self._m2_masks(prepared, first=number == 0), strict=True):
            loss, pack_stats, log_weights, *scores = self._loss(one, m2_mask, minibatch)
            (loss * self.ranks.size).backward()  # gradients are averaged over the ranks
            loss_value += float(loss.detach())
            stats.append(pack_stats)
            weights.append(log_weights)
            known = scores if number == 0 else (one.start_logprobs, one.start_entropies)
            figures.append(pack_figures(one, *known))
        grad_norm = self._optimizer_step()
        value_loss = None
        if self.critic is not None:
            estimates = [one.estimates for one in prepared if one.estimates is not None]
            value_loss = self.critic.update([one.pack for one in prepared], estimates)
        return MinibatchResult(loss_value, grad_norm, stats, weights, value_loss, figures)

    @torch.no_grad()
    def _m2_masks(self, prepared: Sequence[PreparedPack], *, first: bool) -> list[Tensor | None]:
        """Return [pack][M] bool: the tokens that "m2po" keeps of their minibatch, under the policy as it is now.

        `first`: no optimizer step was taken yet.
        """
        if self.config.objective.kind != "m2po":
            return [None] * len(prepared)
        log_ratios = [
            (one.start_logprobs if first and one.start_logprobs is not None else self.logprobs(one.pack))
            - one.pack.behaviour_logprobs
            for one in prepared
        ]
        cutoff = m2_cutoff(self.ranks.all_gather(torch.cat(log_ratios)), M2PO_THRESHOLD)
        return [log_ratio.square() <= cutoff for log_ratio in log_ratios]

    def _loss(
        self, prepared: PreparedPack, m2_mask: Tensor | None, minibatch: Minibatch
    ) -> tuple[Tensor, LossStats, Tensor, Tensor, Tensor]:
        """Return (the pack's part of its minibatch's loss, statistics, [M] log p/b; where p is b log θ/b, [M] log θ, [M] entropies)."""
        config, pack = self.config, prepared.pack
        output = self._token_logprobs(pack)
        proximal_logprobs = self._proximal_logprobs(prepared, output.logprobs.detach())
        losses, stats = policy_loss(
            output.logprobs,
            proximal_logprobs,
            pack.behaviour_logprobs,
            prepared.advantages,
            pack.sequence_map,
            config,
            m2_mask,
        )
        added, stats = regularizers(output.logprobs, output.entropies, prepared.reference_logprobs, stats, config)
        weights = aggregation_weights(
            pack.sequence_map,
            how=config.loss_aggregation,
            token_count=minibatch.token_count,
            sequence_count=minibatch.sequence_count,
        )
        numerator = output.logprobs.detach() if proximal_logprobs is pack.behaviour_logprobs else proximal_logprobs
        loss = ((losses + added) * weights).sum()
        return loss, stats, numerator - pack.behaviour_logprobs, output.logprobs.detach(), output.entropies.detach()

    def _proximal_logprobs(self, prepared: PreparedPack, logprobs: Tensor) -> Tensor:
        """Return [M] log p. `logprobs`: [M] log θ, without a gradient."""
        objective, pack = self.config.objective, prepared.pack
        proximal = objective.proximal if isinstance(objective, RatioObjective) else ""
        if objective.kind == "m2po" or proximal == "behaviour":  # θ is held to b
            return pack.behaviour_logprobs
        if proximal == "interpolate":
            return interpolated_proximal(logprobs, pack.behaviour_logprobs, pack.versions, self.version)
        if objective.kind == "likelihood" or prepared.start_logprobs is None:
            return logprobs
        return prepared.start_logprobs

    def _optimizer_step(self) -> float | None:
        """Step, and return the gradient's norm; None when it is not finite, and nothing was changed.

        Raises:
            FloatingPointError: It was not finite several times in a row.
        """
        norm = full_tensor(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optimizer.max_grad_norm))
        if not torch.isfinite(norm):
            self.optimizer.zero_grad()
            self._skipped_in_a_row += 1
            if self._skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
                raise FloatingPointError(
                    f"the gradient was not finite in {self._skipped_in_a_row} optimizer steps in a row; lower `trainer.optimizer.lr`, or "
                    f"look at the rewards of the last batches"
                )
            return None
        self._skipped_in_a_row = 0
        self._optimizer_steps += 1
        rates = self.config.optimizer
        lr = rates.lr * min(1.0, self._optimizer_steps / max(1, rates.warmup_steps))
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(norm)

    def mismatch(self, sequences: Sequence[TrainingSequence], weights: Mapping[int, Path]) -> Mismatch | None:
        """Compare the engine's logprobs with the trainer's, as `logprob_pairs` returns them; None where no token is left."""
        return mismatch(*self.logprob_pairs(sequences, weights))

    @torch.no_grad()
    def logprob_pairs(
        self, sequences: Sequence[TrainingSequence], weights: Mapping[int, Path]
    ) -> tuple[Tensor, Tensor]:
        """Return the engine's logprobs of trained tokens and the trainer's, each token under the very weights that sampled it.

        Args:
            sequences: Some sequences of the batch.
            weights: The published weights by version. Tokens of other versions are left out.

        Returns:
            ([M], [M]) on the CPU, of all ranks.
        """
        engine, trainer = [torch.zeros(0)], [torch.zeros(0)]
        packs = pack_sequences(sequences, self.config.tokens_per_pack)
        for version in sorted(weights.keys() & {v for pack in packs for v in pack.versions.tolist()}):
            of_version = [pack for pack in packs if bool((pack.versions == version).any())]
            with self._published(weights[version]) if version != self.version else nullcontext():
                for pack in (own.to(self.device) for own in self.ranks.shard(of_version)):
                    sampled = pack.versions == version
                    engine.append(pack.behaviour_logprobs[sampled].cpu())
                    trainer.append(self.logprobs(pack)[sampled].cpu())
        return self.ranks.all_gather(torch.cat(engine)), self.ranks.all_gather(torch.cat(trainer))

    @contextmanager
    def _published(self, directory: Path) -> Iterator[None]:
        """Give the policy weights of before, for the length of the context."""
        parameters = trained_parameters(self.model).values()
        own = [parameter.detach().clone() for parameter in parameters]
        try:
            read_published(self.model, directory, self.ranks)
            yield
        finally:
            for parameter, tensor in zip(parameters, own, strict=True):
                parameter.copy_(tensor)

    @property
    def state(self) -> PolicyState:
        """All of it that training changes."""
        return PolicyState(self.model, self.optimizer, self.critic)

    def publish(self, directory: Path) -> Path:
        """Write the weights as safetensors with the model's config, whole or not at all.

        Args:
            directory: Where the weights of all versions are.

        Returns:
            `directory`/v<version>.
        """
        target = directory / f"v{self.version}"
        write_weights({"": self.model}, target, self.ranks)
        return target

    def save(self, directory: Path, model_path: Path) -> None:
        """Write a checkpoint (`agentrl.trainer.model.checkpoint`), with the tokenizer and the other files beside the model."""
        snapshot_checkpoint(
            directory,
            {"": self.state},
            model_path=model_path,
            step=self.version,
            ranks=self.ranks,
        )()

    def load(self, directory: Path) -> Manifest:
        """Go on from a checkpoint, made by any number of ranks.

        Args:
            directory: The checkpoint.

        Returns:
            Its manifest.

        Raises:
            CheckpointError: It is damaged.
            ConfigError: It does not fit the model or the configuration.
        """
        manifest = read_checkpoint(directory, {"": self.state}, self.ranks)
        self.go_on(manifest.step)
        return manifest

    def go_on(self, version: int) -> None:
        """Count from a version on, after its state was loaded."""
        self.version, self._optimizer_steps = version, optimizer_steps(self.optimizer)
