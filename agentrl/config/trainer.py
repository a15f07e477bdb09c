"""The section `trainer` of the configuration: how the policy learns. docs/objectives.md, docs/credit.md and docs/training.md explain it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from agentrl.config.section import NotNegative, Positive, Seconds, Section, Share

PUBLISHED_VERSIONS_KEPT = 8
"""Versions of the weights that stay published, so that stale tokens can be computed again under the weights that sampled them."""
MAX_ROLE_CHARACTERS = 64
Coefficient = Annotated[float, Field(gt=0)]
ClipLow = Annotated[float, Field(gt=0, lt=1)]
ClipHigh = Annotated[float, Field(gt=0)]


class RatioObjective(Section):
    """An objective of the ratio r = θ/p to a proximal policy p."""

    proximal: Literal["recompute", "interpolate"] = "recompute"
    """Where log p comes from: a forward pass at the start of the step, or between log b and log θ by the token's age."""


class PpoObjective(RatioObjective):
    """Decoupled PPO."""

    kind: Literal["ppo"] = "ppo"
    clip_low: ClipLow = 0.2
    """ε: the ratio is clipped below 1 − ε."""
    clip_high: ClipHigh = 0.28
    """ε': the ratio is clipped above 1 + ε'."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """c: where the advantage is negative, the objective is never below c times it."""


class GspoObjective(RatioObjective):
    """PPO's clip on the ratio of the sequence."""

    kind: Literal["gspo"] = "gspo"
    clip_low: ClipLow = 3e-4
    """ε: the ratio is clipped below 1 − ε."""
    clip_high: ClipHigh = 4e-4
    """ε': the ratio is clipped above 1 + ε'."""


class CispoObjective(RatioObjective):
    """A clipped weight on log θ."""

    kind: Literal["cispo"] = "cispo"
    clip_low: ClipLow = 0.2
    """ε: the ratio is clipped below 1 − ε."""
    clip_high: ClipHigh = 0.28
    """ε': the ratio is clipped above 1 + ε'."""


class SapoObjective(RatioObjective):
    """A soft gate in place of the clip."""

    kind: Literal["sapo"] = "sapo"
    tau_positive: Coefficient = 1.0
    """τ where the advantage is positive."""
    tau_negative: Coefficient = 1.05
    """τ where it is not."""


class ReinforceObjective(RatioObjective):
    """REINFORCE: no bound."""

    kind: Literal["reinforce"] = "reinforce"


class M2poObjective(Section):
    """θ is held to b itself."""

    kind: Literal["m2po"] = "m2po"
    threshold: Coefficient = 0.04
    """τ: bound of the mean of (log θ/b)²."""


class LikelihoodObjective(Section):
    """Supervised learning: no ratio."""

    kind: Literal["likelihood"] = "likelihood"


Objective = Annotated[
    PpoObjective
    | GspoObjective
    | CispoObjective
    | SapoObjective
    | M2poObjective
    | ReinforceObjective
    | LikelihoodObjective,
    Field(discriminator="kind"),
]


class TruncatedImportance(Section):
    """A weight above the bound becomes the bound."""

    kind: Literal["truncate"] = "truncate"
    max: Annotated[float, Field(gt=1)] = 5.0
    """Upper bound of the weight."""


class MaskedImportance(Section):
    """Tokens whose weight is outside the bounds are left out, or their whole sequences."""

    kind: Literal["mask", "sequence_mask", "geometric_mask"] = "mask"
    max: Annotated[float, Field(gt=1)] = 5.0
    """Upper bound of the weight."""
    min: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Lower bound of the weight."""


class NoImportance(Section):
    """No weights."""

    kind: Literal["none"] = "none"


Importance = Annotated[TruncatedImportance | MaskedImportance | NoImportance, Field(discriminator="kind")]


class TokenMean(Section):
    """A mean over all tokens of the minibatch."""

    kind: Literal["token"] = "token"


class SequenceMean(Section):
    """A mean over the tokens of each sequence, and then over the sequences."""

    kind: Literal["sequence"] = "sequence"


class ConstantLength(Section):
    """A mean over sequences, as if each had the same length."""

    kind: Literal["constant"] = "constant"
    length: Positive
    """L: the length that every sequence counts as having."""


LossAggregation = Annotated[TokenMean | SequenceMean | ConstantLength, Field(discriminator="kind")]


class NoKl(Section):
    """The policy is held to nothing."""

    kind: Literal["none"] = "none"


class KlLoss(Section):
    """The divergence to the reference is added to the loss."""

    kind: Literal["loss"] = "loss"
    coef: Coefficient
    """β: weight of the KL divergence to the reference."""
    estimator: Literal["k2", "k3"] = "k3"
    """How the divergence is estimated from the sampled tokens: k2 or k3 in the loss, k1 in the reward."""


class KlReward(Section):
    """The divergence to the reference is taken off the reward."""

    kind: Literal["reward"] = "reward"
    coef: Coefficient
    """β: weight of the KL divergence to the reference."""
    estimator: Literal["k1"] = "k1"
    """How the divergence is estimated from the sampled tokens: k2 or k3 in the loss, k1 in the reward."""


Kl = Annotated[NoKl | KlLoss | KlReward, Field(discriminator="kind")]


class GroupAdvantage(Section):
    """An episode is compared with the others of its group, or of its batch."""

    kind: Literal["grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline"] = "grpo"
    turn_discount: Annotated[float, Field(ge=0, le=1)] | None = None
    """γ: a turn is worth what it and the turns after it earned, each turn later counting γ times as much. Default: a turn is
    worth its own reward, or else its role's, or else the episode's."""


class GaeAdvantage(Section):
    """A critic says what was to be expected."""

    kind: Literal["gae"] = "gae"
    discount: Annotated[float, Field(gt=0, le=1)] = 1.0
    """γ: what the next step's value counts."""
    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 0.95
    """λ: between one step's estimate (0) and the whole return (1)."""
    unit: Literal["token", "turn"] = "token"
    """What a step of the critic is."""
    critic_lr: Annotated[float, Field(gt=0)] = 2e-5
    """Learning rate of the critic."""


Advantage = Annotated[GroupAdvantage | GaeAdvantage, Field(discriminator="kind")]


class TurnsConfig(Section):
    """Turns that did not end as they should, or were not sampled as the policy samples."""

    truncated: Literal["train", "mask", "penalise"] = "train"
    """What happens to replies that were cut off for their length."""
    failed: Literal["train", "mask", "penalise"] = "train"
    """What happens to replies that the workflow marked as failed."""
    altered_sampling: Literal["mask", "train"] = "mask"
    """What happens to replies whose tokens come from another distribution than softmax(logits / temperature): those sampled with temperature 0,
    top_p below 1, top_k, min_p, a penalty, logit_bias or a JSON format."""
    penalty: Annotated[float, Field(ge=0)] = 1.0
    """What is taken off the advantage of a reply that is penalised; under advantage "gae", off its reward. docs/credit.md says when
    a group with equal rewards is dropped all the same."""


class Overlong(Section):
    """DAPO's soft punishment of long replies. Left out: none."""

    tokens: Positive
    """L: an episode whose longest reply has L tokens or more loses 1 of its reward."""
    margin: Positive
    """The punishment rises from 0 over the last so many tokens before L."""

    @model_validator(mode="after")
    def _check_keys_together(self) -> Overlong:
        if self.margin > self.tokens:
            raise ValueError(f"margin = {self.margin} is more than tokens = {self.tokens}; lower it")
        return self


def is_role(name: str) -> bool:
    """Return whether a role may have this name. A key is a header, which holds ASCII alone."""
    return name.isascii() and len(name) <= MAX_ROLE_CHARACTERS and name.replace("-", "_").isidentifier()


class OptimizerConfig(Section):
    """AdamW."""

    lr: Annotated[float, Field(gt=0)] = 1e-5
    """Peak learning rate."""
    warmup_steps: NotNegative = 5
    """Optimizer steps over which the learning rate rises from 0."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradients are clipped to this norm."""


class TeacherConfig(Section):
    """On-policy distillation: another model that the policy is pulled to. Left out: none."""

    url: Annotated[str, Field(min_length=1)]
    """A server of a model with the same vocabulary. SGLang's or the embedded one by its address, others, by their address and /v1,
    through OpenAI's completions with `echo`."""
    coef: Annotated[float, Field(gt=0)] = 1.0
    """Weight of the teacher's advantage, log teacher − log p of each token."""


class LoraConfig(Section):
    """Train a LoRA adapter, and publish it alone, in place of the model's own weights. Left out: none."""

    rank: Positive
    """r: the adapter's rank."""
    alpha: Positive = 32
    """α: what the adapter adds counts α/r times."""
    roles: list[str] = Field(default_factory=list)
    """Roles that are policies of their own, each with an adapter over the same model; others are refused. Default: one adapter for all."""

    @model_validator(mode="after")
    def _check_roles(self) -> LoraConfig:
        for name in self.roles:
            if not is_role(name):
                raise ValueError(
                    f"roles holds {name!r}, which is no word of at most {MAX_ROLE_CHARACTERS} letters, digits, - and _"
                )
        # A role is a folder of a checkpoint, and some file systems do not tell Writer from writer.
        if len({name.lower() for name in self.roles}) < len(self.roles):
            raise ValueError(f"roles = {self.roles} names a role twice, or two that differ in their capitals alone")
        return self


class CheckpointConfig(Section):
    """Checkpoints: whole models with the optimizer, to go on from and to use."""

    every: Positive = 10
    """Training steps between checkpoints; the last step always makes one."""
    keep: Positive = 2
    """How many checkpoints stay on disk."""
    url: str | None = None
    """A URL where those that are kept are too, in a folder named as the run's directory: s3://bucket/folder, for one."""


class TrainerConfig(Section):
    """How the policy learns."""

    minibatches: Positive = 1
    """K: optimizer steps a training step."""
    tokens_per_pack: Positive = 4096
    """Tokens of one forward pass; a longer trajectory makes a pack of its own."""
    entropy_coef: Annotated[float, Field(ge=0)] = 0.0
    """c: the entropy of every trained token's distribution is rewarded so much."""
    token_figures_share: Share = 0.05
    """Share of the episodes of whose tokens log p, entropy and advantage are kept in the store: 12 bytes a token. 0: of none."""
    ranks: Positive = 1
    """Processes that share the model (FSDP2) and every minibatch, on this machine; with GPUs, one each."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the trainer computes. auto: a GPU, where torch sees one."""
    precision: Literal["float32", "mixed"] = "float32"
    """Number format of the computation; mixed: bfloat16 where torch's autocast says so, over float32 weights. Not set: mixed on a GPU."""
    offload: bool = False
    """Keep weights, gradients and the optimizer's state in CPU memory; a layer's weights visit the GPU while it computes."""
    recompute_activations: bool = False
    """Keep one activation a layer, and compute the others again in the backward pass: less memory, a third more time."""
    threads: Positive = 1
    """CPU threads of the trainer. Not set: its share of the cores."""
    step_timeout_s: Seconds = 3600
    """Bound of one training step."""
    optimizer: OptimizerConfig = OptimizerConfig()
    objective: Objective = PpoObjective()
    """What is maximised: docs/objectives.md."""
    importance: Importance = TruncatedImportance()
    """The weight p/b, which corrects for stale and mismatched sampling."""
    loss_aggregation: LossAggregation = TokenMean()
    """What the loss is a mean over."""
    advantage: Advantage = GroupAdvantage()
    """How rewards become advantages; gae: with a critic."""
    turns: TurnsConfig = TurnsConfig()
    overlong: Overlong | None = None
    kl: Kl = NoKl()
    """Whether the policy is held to the model that it started from: in the loss, or in the reward."""
    teacher: TeacherConfig | None = None
    lora: LoraConfig | None = None
    checkpoint: CheckpointConfig = CheckpointConfig()

    @property
    def roles(self) -> list[str]:
        """The roles that are policies of their own; [] where there is one policy."""
        return [] if self.lora is None else self.lora.roles

    @model_validator(mode="after")
    def _check_keys_together(self) -> TrainerConfig:
        if self.objective.kind in ("m2po", "likelihood") and self.importance.kind != "none":
            raise ValueError(
                f'objective.kind = "{self.objective.kind}" has no proximal policy p, so there is no weight p/b, and '
                f'importance.kind = "{self.importance.kind}" would count for nothing; use importance.kind = "none"'
            )
        return self
