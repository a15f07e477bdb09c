"""The policy as the trainer holds it: score packs, take optimizer steps, publish weights, save and load."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from agentrl.config import TrainerConfig
from agentrl.errors import CheckpointError
from agentrl.rollout.manifest import Manifest
from agentrl.rollout.training_history import TrainedStep
from agentrl.trainer.algorithms.advantages import has_gradient, whitened, with_distillation, with_kl_penalty
from agentrl.trainer.algorithms.critic import Critic, Returns, explained_variance
from agentrl.trainer.algorithms.losses import LossStats, Mismatch, interpolated, mismatch, policy_loss, regularizers
from agentrl.trainer.algorithms.objectives import m2_cutoff, token_shares
from agentrl.trainer.model.checkpoint import (
    read_checkpoint,
    read_published,
    staged_checkpoint,
    trained_parameters,
    trained_state,
    write_weights,
)
from agentrl.trainer.model.digest import digest
from agentrl.trainer.model.dropout import gradient_pass, recompute_activations
from agentrl.trainer.model.lora import adapter_off, add_adapter
from agentrl.trainer.model.ranks import Ranks, whole
from agentrl.trainer.model.scored_model import ScoredModel, Scores, load_model
from agentrl.trainer.packing import Pack, TrainingSequence, in_tree_order, pack

MAX_SKIPPED_IN_A_ROW = 3
"""Optimizer steps with a gradient that is not finite, after which the run ends, with a checkpoint of what was before."""
BLOCKS_A_MINIBATCH = 8
"""Into so many runs of neighbours sequences are cut before they are dealt to minibatches: what they share stays together."""


@dataclass(frozen=True)
class StepResult:
    """What one training step did."""

    loss: float
    """Of the last minibatch."""
    grad_norm: float | None
    """Before clipping, mean over minibatches; 0 where there was nothing to learn from, None where no gradient was finite."""
    lr: float
    stats: LossStats
    """Summed over minibatches."""
    skipped: int
    """Optimizer steps that were not taken, because the gradient was not finite."""
    computed_tokens: int
    """Tokens of the packs, what is shared counted once."""
    log_weights: Tensor
    """[M] log p/b of every token that was computed; of "m2po", which has no p, log θ/b."""
    critic: dict[str, float]
    """`value_loss` and `explained_variance`, where there is a critic and it was taught."""
    optimizer_steps: int
    """Optimizer steps that were taken."""
    minibatches: list[list[int]]
    """Numbers of the sequences that each minibatch held."""


class Policy:
    """A causal LM with its optimizer. `version` counts the training steps it has taken."""

    def __init__(self, model_path: Path, config: TrainerConfig, ranks: Ranks | None = None) -> None:
        self.config = config
        self.ranks = ranks or Ranks()
        self.version = 0
        on_gpu = config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available())
        self.device = torch.device("cuda" if on_gpu else "cpu")
        self.model = load_model(model_path)
        if config.lora_rank is not None:
            add_adapter(self.model, config)
        self.scored = ScoredModel(self.model)
        if self.ranks.size == 1 and not config.offload:  # what is spread never lies on one device whole
            self.model.to(self.device)
        self.scored.check()
        if config.recompute_activations:
            recompute_activations(self.scored.layers)
        self.reference: ScoredModel | None = None
        if config.kl != "none" and config.lora_rank is None:
            self.reference = ScoredModel(load_model(model_path))
            self.reference.requires_grad_(False)
        for scored in (self.scored, self.reference):
            if scored is not None:
                self.ranks.place(scored, scored.layers, self.device, offload=config.offload)
        self.critic = Critic(model_path, config, self.ranks, self.device) if config.advantage == "gae" else None
        self.optimizer = torch.optim.AdamW(
            trained_parameters(self.model).values(), lr=config.lr, betas=config.betas, weight_decay=config.weight_decay
        )
        self._optimizer_steps = 0
        self._skipped_in_a_row = 0

    def logprobs(self, batch: Pack) -> Tensor:
        """[M] logprob of every trained token, at its temperature."""
        return self._scores(batch).logprobs

    def _scores(self, batch: Pack) -> Scores:
        with self._precision():
            scores: Scores = self.scored(batch, entropy_gradient=self.config.entropy_coef > 0)
        return scores

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "mixed")

    def step(self, sequences: Sequence[TrainingSequence]) -> StepResult:
        """One training step: K optimizer steps of decoupled PPO over `sequences`, in an order drawn from the version."""
        minibatches, sizes, dealt = self._minibatches(sequences)
        with torch.no_grad():
            proximal = [[self._proximal(batch) for batch in packs] for packs in minibatches]
            references = [[self._reference(batch) for batch in packs] for packs in minibatches]
        if self.config.kl == "reward":
            minibatches = self._with_kl_penalty(minibatches, proximal, references)
        returns = [[self.critic.returns(batch) for batch in packs] for packs in minibatches] if self.critic else None
        minibatches = self._with_advantages(minibatches, proximal, returns)

        norms: list[float | None] = []
        totals: list[LossStats] = []
        weights: list[Tensor] = []
        loss_sum, value_losses = 0.0, []
        for number, (packs, proximals, fixed) in enumerate(zip(minibatches, proximal, references, strict=True)):
            tokens, count = sizes[number]
            if tokens == 0:
                continue
            loss_sum = 0.0
            if not packs:  # a gradient of 0 is a gradient: the optimizer's averages move
                for parameter in trained_parameters(self.model).values():
                    parameter.grad = torch.zeros_like(parameter)
            for batch, known, reference, kept in zip(packs, proximals, fixed, self._kept(packs), strict=True):
                seed = (self.version, self.ranks.rank, len(totals))
                with gradient_pass(self.model, dropout=self.config.dropout, seed=seed):
                    loss, stats, weight = self._loss(batch, known, reference, kept, tokens, count)
                    (loss * self.ranks.size).backward()  # gradients are averaged over the ranks
                loss_sum += float(loss.detach())
                totals.append(stats)
                weights.append(weight)
            norms.append(self._optimizer_step())
            if self.critic and returns:
                value_losses.append(self.critic.teach(packs, returns[number], seed=(self.version, number)))
        grad_norms = [norm for norm in norms if norm is not None]
        self.version += 1
        computed = float(sum(len(batch) for packs in minibatches for batch in packs if batch.count))
        loss_sum, computed, *stats_summed = self.ranks.all_reduce([loss_sum, computed, *vars(_sum(totals)).values()])
        return StepResult(
            loss=loss_sum,
            grad_norm=sum(grad_norms) / max(1, len(grad_norms)) if grad_norms or not norms else None,
            lr=self.optimizer.param_groups[0]["lr"],
            stats=LossStats(*stats_summed),
            skipped=len(norms) - len(grad_norms),
            computed_tokens=int(computed),
            log_weights=self.ranks.all_gather(torch.cat(weights) if weights else torch.zeros(0)),
            critic={
                "value_loss": sum(value_losses) / len(value_losses),
                "explained_variance": explained_variance([one for packs in returns for one in packs], self.ranks),
            }
            if returns and value_losses
            else {},
            optimizer_steps=len(grad_norms),
            minibatches=dealt,
        )

    def _minibatches(
        self, sequences: Sequence[TrainingSequence]
    ) -> tuple[list[list[Pack]], list[tuple[int, int]], list[list[int]]]:
        """This rank's packs of each minibatch; of each, all ranks', the (tokens, sequences) that its loss is a mean over; and the
        numbers of these sequences.

        Neighbours in tree order are dealt together, so that they share in one pack. Sequences without a gradient are counted and not
        packed.
        """
        config = self.config
        ordered = in_tree_order(sequences)
        size = max(1, len(ordered) // (config.minibatches * BLOCKS_A_MINIBATCH))
        blocks = [ordered[start : start + size] for start in range(0, len(ordered), size)]
        order = torch.randperm(len(blocks), generator=torch.Generator().manual_seed(self.version)).tolist()
        turns = [order[k :: config.minibatches] for k in range(config.minibatches)]
        parts = [[s for i in turn for s in blocks[i]] for turn in turns if turn]
        packed = [pack([s for s in part if has_gradient(s, config)], config.tokens_per_pack) for part in parts]
        lengths = [[int(s.loss_mask[1:].sum()) for s in part] for part in parts]
        sizes = [(sum(own), sum(length > 0 for length in own)) for own in lengths]
        numbers = {id(sequence): number for number, sequence in enumerate(sequences)}
        dealt = [sorted(numbers[id(s)] for s in part) for part in parts]
        return [[batch.to(self.device) for batch in self.ranks.shard(packs)] for packs in packed], sizes, dealt

    def _proximal(self, batch: Pack) -> Tensor | None:
        """[M] log p; None where no forward pass gives it: "m2po" holds θ to b, "likelihood" to nothing, and an interpolated p
        follows from θ."""
        if self.config.objective in ("m2po", "likelihood") or self.config.proximal == "interpolate":
            return None
        return self.logprobs(batch)

    @torch.no_grad()
    def _kept(self, packs: Sequence[Pack]) -> list[Tensor | None]:
        """[M] bool of each pack: the tokens that "m2po" keeps of their minibatch, under the policy as it is now."""
        if self.config.objective != "m2po":
            return [None] * len(packs)
        ratios = [self.logprobs(batch) - batch.behaviour_logprobs for batch in packs]
        cutoff = m2_cutoff(self.ranks.all_gather(torch.cat(ratios)), self.config.m2_threshold)
        return [ratio.square() <= cutoff for ratio in ratios]

    def _reference(self, batch: Pack) -> Tensor | None:
        if self.config.kl == "none":
            return None
        if self.reference is None:  # the model under the adapter is the one that training started from
            with adapter_off(self.model):
                return self.logprobs(batch)
        with self._precision():
            scores: Scores = self.reference(batch)
        return scores.logprobs

    def _with_kl_penalty(
        self,
        minibatches: list[list[Pack]],
        proximal: list[list[Tensor | None]],
        references: list[list[Tensor | None]],
    ) -> list[list[Pack]]:
        """The packs whose tokens pay for their distance from the reference."""
        return [
            [
                with_kl_penalty(batch, self.logprobs(batch).detach() if p is None else p, r, self.config)
                for batch, p, r in zip(packs, proximals, fixed, strict=True)
                if r is not None
            ]
            for packs, proximals, fixed in zip(minibatches, proximal, references, strict=True)
        ]

    def _with_advantages(
        self,
        minibatches: list[list[Pack]],
        proximal: list[list[Tensor | None]],
        returns: list[list[Returns]] | None,
    ) -> list[list[Pack]]:
        """The packs with advantages that hold what only a model can say, and what only the whole batch can."""
        config = self.config
        if returns is not None:
            minibatches = [
                [replace(batch, advantages=one.advantages) for batch, one in zip(packs, known, strict=True)]
                for packs, known in zip(minibatches, returns, strict=True)
            ]
        if config.teacher_url:
            minibatches = [
                [
                    with_distillation(batch, self.logprobs(batch).detach() if p is None else p, config)
                    for batch, p in zip(packs, proximals, strict=True)
                ]
                for packs, proximals in zip(minibatches, proximal, strict=True)
            ]
        if config.advantage in ("gae", "reinforce_pp", "reinforce_pp_baseline"):
            values = whitened([batch.advantages for packs in minibatches for batch in packs], self.ranks.all_reduce)
            minibatches = [[replace(batch, advantages=next(values)) for batch in packs] for packs in minibatches]
        return minibatches

    def _loss(
        self,
        batch: Pack,
        proximal: Tensor | None,
        reference: Tensor | None,
        kept: Tensor | None,
        tokens: int,
        count: int,
    ) -> tuple[Tensor, LossStats, Tensor]:
        """(the pack's share in its minibatch's loss, statistics, [M] log p/b; of "m2po" log θ/b)."""
        config, sequences = self.config, batch.sequences
        scores = self._scores(batch)
        if proximal is None and config.objective == "m2po":
            proximal = batch.behaviour_logprobs
        elif proximal is None and config.objective == "likelihood":
            proximal = scores.logprobs.detach()
        elif proximal is None:
            proximal = interpolated(scores.logprobs.detach(), batch.behaviour_logprobs, batch.versions, self.version)
        losses, stats = policy_loss(
            scores.logprobs, proximal, batch.behaviour_logprobs, batch.advantages, sequences, config, kept
        )
        extra, stats = regularizers(scores.logprobs, scores.entropy, reference, stats, config)
        shares = token_shares(
            sequences, mode=config.loss_aggregation, tokens=tokens, count=count, length=config.loss_length
        )
        numerator = scores.logprobs.detach() if config.objective == "m2po" else proximal
        return ((losses + extra) * shares).sum(), stats, numerator - batch.behaviour_logprobs

    def _optimizer_step(self) -> float | None:
        """The gradient's norm; None when it is not finite, and nothing was changed. Raises FloatingPointError when that
        repeats."""
        norm = whole(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm))
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
        engine, trainer = [torch.zeros(0)], [torch.zeros(0)]
        packs = pack(sequences, self.config.tokens_per_pack)
        for version in sorted(weights.keys() & {v for batch in packs for v in batch.versions.tolist()}):
            of_version = [batch for batch in packs if bool((batch.versions == version).any())]
            with self._published(weights[version]) if version != self.version else nullcontext():
                for batch in (packed.to(self.device) for packed in self.ranks.shard(of_version)):
                    chosen = batch.versions == version
                    engine.append(batch.behaviour_logprobs[chosen].cpu())
                    trainer.append(self.logprobs(batch)[chosen].cpu())
        return mismatch(self.ranks.all_gather(torch.cat(engine)), self.ranks.all_gather(torch.cat(trainer)))

    @contextmanager
    def _published(self, directory: Path) -> Iterator[None]:
        """The policy with weights of before, for the length of the context."""
        parameters = trained_parameters(self.model).values()
        own = [parameter.detach().clone() for parameter in parameters]
        try:
            read_published(self.model, directory)
            yield
        finally:
            for parameter, tensor in zip(parameters, own, strict=True):
                parameter.copy_(tensor)

    def publish(self, directory: Path) -> Path:
        """Write the weights to `directory`/v<version>, whole or not at all, as safetensors with the model's config."""
        target = directory / f"v{self.version}"
        write_weights(self.model, target, self.ranks)
        return target

    def digest(self) -> str:
        """The digest of all that training changes (`agentrl.trainer.model.digest`)."""
        return digest(trained_state(self.model, self.optimizer, self.critic).items(), self.ranks)

    def model_digest(self) -> str:
        """The digest of the model alone, trained or not."""
        return digest(self.model.named_parameters(), self.ranks)

    def save(self, directory: Path, model_path: Path) -> None:
        """Write a checkpoint (`agentrl.trainer.model.checkpoint`), with the tokenizer and whatever else is beside the model."""
        self.staged(directory, model_path)()

    def staged(
        self, directory: Path, model_path: Path, *, since: str = "", history: Sequence[TrainedStep] = ()
    ) -> Callable[[], None]:
        """A checkpoint of the policy as it is now; call what is returned, in any thread, to write it.

        `history`: the steps that led to it from the checkpoint whose chain is `since`.
        """
        beside = [f for f in model_path.iterdir() if f.is_file() and f.suffix not in (".safetensors", ".bin", ".pt")]
        manifest = Manifest(
            step=self.version,
            optimizer_steps=self._optimizer_steps,
            digest=history[-1].digest if history else self.digest(),
            chain=history[-1].chain if history else since,
            since=since,
            history=tuple(history),
        )
        return staged_checkpoint(
            directory,
            model=self.model,
            optimizer=self.optimizer,
            files=beside,
            manifest=manifest,
            critic=self.critic,
            ranks=self.ranks,
        )

    def load(self, directory: Path) -> Manifest:
        """Go on from a checkpoint, made by any number of ranks; its manifest. Raises CheckpointError for a damaged one."""
        manifest = read_checkpoint(
            directory, model=self.model, optimizer=self.optimizer, critic=self.critic, ranks=self.ranks
        )
        self.version, self._optimizer_steps = manifest.step, manifest.optimizer_steps
        if self.digest() != manifest.digest:
            raise CheckpointError(f"{directory} holds other weights, or another optimizer, than its manifest says")
        return manifest


def _sum(stats: Sequence[LossStats]) -> LossStats:
    return LossStats(*(sum(getattr(s, name) for s in stats) for name in LossStats.__dataclass_fields__))
