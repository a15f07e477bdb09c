"""The section `trainer` of the configuration: how the policy learns. docs/objectives.md and docs/training.md explain it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from agentrl.config.advantage import Advantage, GroupAdvantage, Overlong, TurnsConfig
from agentrl.config.objective import (
    Importance,
    Kl,
    LossAggregation,
    NoKl,
    Objective,
    PpoObjective,
    RatioObjective,
    TokenMean,
    TruncatedImportance,
)
from agentrl.config.role_names import MAX_ROLE_CHARACTERS, is_role
from agentrl.config.section import NotNegative, Positive, Seconds, Section


class OptimizerConfig(Section):
    """AdamW."""

    lr: Annotated[float, Field(gt=0)] = 1e-5
    """Peak learning rate."""
    warmup_steps: NotNegative = 5
    """Optimizer steps over which the learning rate rises from 0."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay rates of the averages."""
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
    targets: list[str] = Field(default_factory=list)
    """Names of the layers that are adapted, such as q_proj. Default: every linear layer but the output."""
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
    alarm_mismatch: Annotated[float, Field(gt=0)] = 0.02
    """A line warns when the mean |Δlogprob| between engine and trainer is above this: they do not compute the same."""
    mismatch_sequences: NotNegative = 8
    """Trajectories a step on which engine and trainer are compared, under the very weights that sampled them."""
    token_figures_share: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Share of the episodes of whose tokens log p, entropy and advantage are kept in the store: 12 bytes a token. 0: of none."""
    ranks: Positive = 1
    """Processes that share the model (FSDP2) and every minibatch, on this machine; with GPUs, one each."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the trainer computes. auto: a GPU, where torch sees one."""
    precision: Literal["float32", "mixed"] = "float32"
    """Number format of the computation; mixed: bfloat16 where torch's autocast says so, over float32 weights."""
    offload: bool = False
    """Keep weights, gradients and the optimizer's state in CPU memory; a layer's weights visit the GPU while it computes."""
    recompute_activations: bool = False
    """Keep one activation a layer, and compute the others again in the backward pass: less memory, a third more time."""
    dropout: bool = False
    """Let the model's dropout act in the gradient pass. What is scored (log p, references, values) never sees it."""
    threads: Positive = 1
    """CPU threads of the trainer."""
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
        if self.dropout and isinstance(self.objective, RatioObjective) and self.objective.proximal == "interpolate":
            raise ValueError(
                'objective.proximal = "interpolate" takes log p from the gradient pass, which dropout = true changes; use '
                '"recompute", or dropout = false'
            )
        return self
