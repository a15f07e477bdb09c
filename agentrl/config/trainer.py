"""The section `trainer` of the configuration: how the policy learns. docs/objectives.md, docs/credit.md and docs/training.md explain it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from agentrl.config.section import NotNegative, Positive, Seconds, Section

PUBLISHED_VERSIONS_KEPT = 8
"""Versions of the weights that stay published, so that stale tokens can be computed again under the weights that sampled them."""
MAX_ROLE_CHARACTERS = 64
TURN_PENALTY = 1.0
"""What is taken off the advantage, or under a critic the reward, of a turn that is penalised."""
Coefficient = Annotated[float, Field(gt=0)]
ClipLow = Annotated[float, Field(gt=0, lt=1)]


class RatioObjective(Section):
    """An objective of the ratio r = θ/p to a proximal policy p."""

    proximal: Literal["recompute", "interpolate", "behaviour"] = "recompute"
    """Where log p comes from: a forward pass at the start of the step; between log b and log θ by the token's age; or log b itself, which
    is PPO that is not decoupled."""


class ClippedObjective(RatioObjective):
    """An objective that bounds the ratio."""

    clip_low: ClipLow = 0.2
    """ε: the ratio is clipped below 1 − ε."""
    clip_high: Coefficient = 0.28
    """ε': the ratio is clipped above 1 + ε'."""


class PpoObjective(ClippedObjective):
    """Decoupled PPO."""

    kind: Literal["ppo"] = "ppo"
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """c: where the advantage is negative, the objective is never below c times it."""


class GspoObjective(ClippedObjective):
    """PPO's clip on the ratio of the sequence."""

    kind: Literal["gspo"] = "gspo"
    clip_low: ClipLow = 3e-4
    clip_high: Coefficient = 4e-4


class CispoObjective(ClippedObjective):
    """A clipped weight on log θ."""

    kind: Literal["cispo"] = "cispo"


class UnclippedObjective(RatioObjective):
    """SAPO's soft gate in place of the clip, or REINFORCE: no bound."""

    kind: Literal["sapo", "reinforce"] = "sapo"


class DirectObjective(Section):
    """Without a proximal policy: M2PO, which holds θ to b itself, or the likelihood, for supervised learning."""

    kind: Literal["m2po", "likelihood"] = "m2po"


Objective = Annotated[
    PpoObjective | GspoObjective | CispoObjective | UnclippedObjective | DirectObjective, Field(discriminator="kind")
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


class LengthMean(Section):
    """A mean over all tokens of the minibatch, or over the tokens of each sequence, and then over the sequences."""

    kind: Literal["token", "sequence"] = "token"


class ConstantLength(Section):
    """A mean over sequences, as if each had the same length."""

    kind: Literal["constant"] = "constant"
    length: Positive
    """L: the length that every sequence counts as having."""


LossAggregation = Annotated[LengthMean | ConstantLength, Field(discriminator="kind")]


class NoKl(Section):
    """The policy is held to nothing."""

    kind: Literal["none"] = "none"


class KlPenalty(Section):
    """The divergence to the reference is added to the loss (as k3, or k2), or taken off the reward."""

    kind: Literal["loss", "loss_k2", "reward"] = "loss"
    coef: Coefficient
    """β: weight of the KL divergence to the reference."""


Kl = Annotated[NoKl | KlPenalty, Field(discriminator="kind")]


class GroupAdvantage(Section):
    """An episode is compared with the others of its group, or of its batch."""

    kind: Literal["grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline"] = "grpo"
    discount: Annotated[float, Field(ge=0, le=1)] | None = None
    """γ: a turn is worth its own reward plus γ times what the next turn is worth. Default: a turn is worth its own reward, or else its
    role's, or else the episode's; with a critic, 1: what the next step's value counts."""


class GaeAdvantage(Section):
    """A critic says what was to be expected: of each token, or of each turn."""

    kind: Literal["gae", "turn_gae"] = "gae"
    discount: Annotated[float, Field(gt=0, le=1)] = 1.0
    """γ: what the next step's value counts."""
    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 0.95
    """λ: between one step's estimate (0) and the whole return (1)."""
    critic_lr: Annotated[float, Field(gt=0)] = 2e-5
    """Learning rate of the critic."""


Advantage = Annotated[GroupAdvantage | GaeAdvantage, Field(discriminator="kind")]


class TurnsConfig(Section):
    """Turns that did not end as they should, or were not sampled as the policy samples."""

    truncated: Literal["train", "mask", "penalise"] = "train"
    """What happens to replies that were cut off for their length; penalise: they pay for it (docs/credit.md)."""
    failed: Literal["train", "mask", "penalise"] = "train"
    """What happens to replies that the workflow marked as failed."""
    altered_sampling: Literal["mask", "train"] = "mask"
    """What happens to replies whose tokens come from another distribution than softmax(logits / temperature): those sampled with temperature 0,
    top_p below 1, top_k, min_p, a penalty, logit_bias or a JSON format."""


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
    """A URL, such as s3://bucket/folder, where kept checkpoints are copied to, in a folder named as the run directory."""


class TrainerConfig(Section):
    """How the policy learns."""

    minibatches: Positive = 1
    """K: optimizer steps a training step."""
    tokens_per_pack: Positive = 4096
    """Tokens of one forward pass; a longer trajectory makes a pack of its own."""
    entropy_coef: Annotated[float, Field(ge=0)] = 0.0
    """c: weight of the entropy bonus, for each trained token."""
    ranks: Positive = 1
    """Processes that share the model (FSDP2) and every minibatch, on this machine; where torch sees GPUs, one each."""
    precision: Literal["float32", "mixed"] = "float32"
    """Number format of the computation; mixed: bfloat16 where torch's autocast says so, over float32 weights. Not set: mixed on a GPU."""
    offload: bool = False
    """Keep weights, gradients and the optimizer's state in CPU memory; a layer's weights visit the GPU while it computes."""
    recompute_activations: bool = False
    """Keep one activation a layer, and compute the others again in the backward pass: less memory, a third more time."""
    step_timeout_s: Seconds = 3600
    """Bound of one training step."""
    optimizer: OptimizerConfig = OptimizerConfig()
    objective: Objective = PpoObjective()
    """What is maximised: docs/objectives.md."""
    importance: Importance = TruncatedImportance()
    """The weight p/b, which corrects for stale and mismatched sampling."""
    loss_aggregation: LossAggregation = LengthMean()
    """What the loss is a mean over."""
    advantage: Advantage = GroupAdvantage()
    """How rewards become advantages; gae and turn_gae: with a critic."""
    turns: TurnsConfig = TurnsConfig()
    overlong_tokens: Positive | None = None
    """L: DAPO's soft punishment of long replies: an episode loses 1 of its reward where its longest reply has L tokens or more, and less in
    the last fifth before. Default: none."""
    kl: Kl = NoKl()
    """Whether the policy is held to the model that it started from: in the loss, or in the reward."""
    teacher: TeacherConfig | None = None
    lora: LoraConfig | None = None
    checkpoint: CheckpointConfig = CheckpointConfig()

    @property
    def has_critic(self) -> bool:
        """Whether a critic says what was to be expected."""
        return isinstance(self.advantage, GaeAdvantage)

    @property
    def roles(self) -> list[str]:
        """The roles that are policies of their own; [] where there is one policy."""
        return [] if self.lora is None else self.lora.roles

    @model_validator(mode="after")
    def _check_keys_together(self) -> TrainerConfig:
        if isinstance(self.objective, DirectObjective) and self.importance.kind != "none":
            raise ValueError(
                f'objective.kind = "{self.objective.kind}" has no proximal policy p, so there is no weight p/b, and '
                f'importance.kind = "{self.importance.kind}" would count for nothing; use importance.kind = "none"'
            )
        return self
