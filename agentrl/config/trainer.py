"""How the policy learns: the section `trainer` of the configuration. docs/objectives.md and docs/training.md explain it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from agentrl.config.section import NotNegative, Positive, Seconds, Section


class TrainerConfig(Section):
    """How the policy learns."""

    lr: Annotated[float, Field(gt=0)] = 1e-5
    """Peak learning rate of AdamW."""
    warmup_steps: NotNegative = 5
    """Optimizer steps over which the learning rate rises from 0."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW's weight decay."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradients are clipped to this norm."""
    minibatches: Positive = 1
    """K: optimizer steps a training step."""
    tokens_per_pack: Positive = 4096
    """Tokens of one forward pass; a longer trajectory makes a pack of its own."""
    advantage: Literal["grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "gae"] = "grpo"
    """How rewards become advantages; gae: with a critic."""
    gae_discount: Annotated[float, Field(gt=0, le=1)] = 1.0
    """γ of advantage = "gae"."""
    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 0.95
    """λ of advantage = "gae"."""
    gae_unit: Literal["token", "turn"] = "token"
    """What a step of the critic is."""
    gae_bootstrap: bool = True
    """What follows the end of a trajectory whose last reply was cut off for its length: what the critic expects there, or nothing."""
    critic_lr: Annotated[float, Field(gt=0)] = 2e-5
    """Learning rate of the critic."""
    value_clip: Annotated[float, Field(gt=0)] | None = None
    """c: a value that moved by more than this in a step earns nothing by moving further."""
    objective: Literal["ppo", "gspo", "cispo", "sapo", "m2po", "reinforce", "likelihood"] = "ppo"
    """What is maximised: docs/objectives.md."""
    turn_discount: Annotated[float, Field(ge=0, le=1)] | None = None
    """γ: a turn is worth what it and the turns after it earned, each turn later counting γ times as much. Default: a turn is
    worth its own reward, or else its role's, or else the episode's."""
    truncated_turns: Literal["train", "mask", "penalise"] = "train"
    """What happens to replies that were cut off for their length."""
    failed_turns: Literal["train", "mask", "penalise"] = "train"
    """What happens to replies that the workflow marked as failed."""
    turn_penalty: Annotated[float, Field(ge=0)] = 1.0
    """What is taken off the advantage of a reply that is penalised; under advantage = "gae", off its reward. docs/credit.md says when
    a group with equal rewards is dropped all the same."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """ε: the ratio is clipped below 1 − ε."""
    clip_high: Annotated[float, Field(gt=0)] = 0.28
    """ε': the ratio is clipped above 1 + ε'."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """c: where the advantage is negative, the objective of "ppo" is never below c times it."""
    tau_positive: Annotated[float, Field(gt=0)] = 1.0
    """τ of "sapo" where the advantage is positive."""
    tau_negative: Annotated[float, Field(gt=0)] = 1.05
    """τ of "sapo" where it is not."""
    proximal: Literal["recompute", "interpolate"] = "recompute"
    """Where log p comes from: a forward pass at the start of the step, or between log b and log θ by the token's age."""
    kl: Literal["none", "loss", "reward"] = "none"
    """Whether the policy is held to the model that it started from: in the loss, or in the reward."""
    kl_coef: Annotated[float, Field(ge=0)] = 0.0
    """β: weight of the KL divergence to the reference."""
    kl_estimator: Literal["k1", "k2", "k3"] | None = None
    """How the divergence is estimated from the sampled tokens: docs/objectives.md. Default: k1 in the reward, k3 in the loss."""
    teacher_url: str = ""
    """A server of another model with the same vocabulary, that the policy is pulled to: on-policy distillation. SGLang's or the
    embedded one by its address, others, by their address and /v1, through OpenAI's completions with `echo`."""
    teacher_coef: Annotated[float, Field(gt=0)] = 1.0
    """Weight of the teacher's advantage, log teacher − log p of each token."""
    entropy_coef: Annotated[float, Field(ge=0)] = 0.0
    """c: the entropy of every trained token's distribution is rewarded so much."""
    overlong_tokens: Positive | None = None
    """L: an episode whose longest reply has L tokens or more loses 1 of its reward (DAPO's soft punishment)."""
    overlong_margin: Positive | None = None
    """The punishment rises from 0 over the last so many tokens before L."""
    m2_threshold: Annotated[float, Field(gt=0)] = 0.04
    """τ of "m2po": bound of the mean of (log θ/b)²."""
    loss_aggregation: Literal["token", "sequence", "constant"] = "token"
    """What the loss is a mean over: all tokens, the tokens of each sequence and then sequences, or sequences of a fixed
    length."""
    loss_length: Positive | None = None
    """L: the fixed length of loss_aggregation = "constant"."""
    importance_weight_max: Annotated[float, Field(gt=1)] = 5.0
    """Bound of the weight p/b that corrects for stale and mismatched sampling."""
    importance_weight_min: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Lower bound of the weight, for the masks."""
    importance_weight_mode: Literal["truncate", "mask", "sequence_mask", "geometric_mask", "none"] = "truncate"
    """What happens to a weight outside the bounds: it becomes the bound, its token is left out, or its sequence is; or
    there are no weights."""
    alarm_mismatch: Annotated[float, Field(gt=0)] = 0.02
    """A line warns when the mean |Δlogprob| between engine and trainer is above this: they do not compute the same."""
    alarm_weight: Annotated[float, Field(gt=1)] = 2.0
    """A line warns when p/b of one token in a hundred is above this, or below its inverse: the data is too stale to learn from."""
    mismatch_sequences: NotNegative = 8
    """Trajectories a step on which engine and trainer are compared, under the very weights that sampled them."""
    checkpoint_every: Positive = 10
    """Training steps between checkpoints; the last step always makes one."""
    keep_checkpoints: Positive = 2
    """How many checkpoints stay on disk."""
    lora_rank: Positive | None = None
    """r: train a LoRA adapter of this rank, and publish it alone, in place of the model's own weights."""
    lora_alpha: Positive = 32
    """α: what the adapter adds counts α/r times."""
    lora_targets: list[str] = Field(default_factory=list)
    """Names of the layers that are adapted, such as q_proj. Default: every linear layer but the output."""
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

    @property
    def kl_form(self) -> Literal["k1", "k2", "k3"]:
        """The estimator of the divergence, the default resolved."""
        return self.kl_estimator or ("k1" if self.kl == "reward" else "k3")

    @model_validator(mode="after")
    def _obeys_rules(self) -> TrainerConfig:
        for rule in RULES:
            if rule.broken_by(self):
                raise ValueError(rule.message.format(c=self))
        return self


class Rule(NamedTuple):
    """A combination of settings that is refused."""

    broken_by: Callable[[TrainerConfig], bool]
    message: str
    """Which settings, why, and what to do; `{c.lr}` stands for the value of lr."""


RULES = (
    # The objective.
    Rule(
        lambda c: c.dual_clip is not None and c.objective != "ppo",
        'dual_clip = {c.dual_clip:g} bounds the objective "ppo"; "{c.objective}" has another form: leave dual_clip out',
    ),
    Rule(
        lambda c: c.objective == "m2po" and c.importance_weight_mode != "none",
        'objective = "m2po" holds θ against b itself, so a weight p/b would count twice; use importance_weight_mode = "none"',
    ),
    Rule(
        lambda c: c.objective == "likelihood" and (c.importance_weight_mode != "none" or c.proximal == "interpolate"),
        'objective = "likelihood" has no proximal policy, so importance_weight_mode must be "none" and proximal "recompute"',
    ),
    Rule(
        lambda c: c.proximal == "interpolate" and c.dropout,
        'proximal = "interpolate" takes log p from the gradient pass, which dropout changes; use "recompute"',
    ),
    Rule(
        lambda c: c.proximal == "interpolate" and c.objective == "m2po",
        'objective = "m2po" has no proximal policy to interpolate; use proximal = "recompute"',
    ),
    # Advantages.
    Rule(
        lambda c: c.advantage == "gae" and c.turn_discount is not None,
        'turn_discount = {c.turn_discount:g} is for advantages from a group; advantage = "gae" has gae_discount',
    ),
    # The adapter.
    Rule(
        lambda c: bool(c.lora_targets) and c.lora_rank is None,
        "lora_targets = {c.lora_targets} are the layers of an adapter: they need lora_rank",
    ),
    # The divergence to the reference.
    Rule(
        lambda c: (c.kl == "none") != (c.kl_coef == 0),
        'kl = "{c.kl}" and kl_coef = {c.kl_coef:g} go together: kl = "loss" or "reward" with kl_coef > 0, or neither',
    ),
    Rule(
        lambda c: c.kl == "loss" and c.kl_estimator == "k1",
        'kl_estimator = "k1" has a gradient of mean 0 in the loss, so it would only add noise; use k2 or k3, or kl = "reward"',
    ),
    Rule(
        lambda c: c.kl == "reward" and c.kl_estimator not in (None, "k1"),
        'kl_estimator = "{c.kl_estimator}" in the reward does not give the gradient of the divergence; use k1, or kl = "loss"',
    ),
    Rule(
        lambda c: c.kl == "none" and c.kl_estimator is not None,
        'kl_estimator = "{c.kl_estimator}" says how kl is estimated: it needs kl = "loss" or "reward"',
    ),
    # The punishment of overlong replies.
    Rule(
        lambda c: (c.overlong_tokens is None) != (c.overlong_margin is None),
        "overlong_tokens = {c.overlong_tokens} and overlong_margin = {c.overlong_margin} go together: give both or neither",
    ),
    Rule(
        lambda c: (c.overlong_margin or 0) > (c.overlong_tokens or 0) > 0,
        "overlong_margin = {c.overlong_margin} is more than overlong_tokens = {c.overlong_tokens}; lower it",
    ),
    # Importance weights, and what the loss is a mean over.
    Rule(
        lambda c: c.importance_weight_min > 0 and c.importance_weight_mode in ("truncate", "none"),
        "importance_weight_min = {c.importance_weight_min:g} is for the masks; "
        'importance_weight_mode = "{c.importance_weight_mode}" has no lower bound: leave importance_weight_min out',
    ),
    Rule(
        lambda c: (c.loss_aggregation == "constant") != (c.loss_length is not None),
        'loss_aggregation = "{c.loss_aggregation}" and loss_length = {c.loss_length}: "constant" needs a loss_length, and nothing '
        "else has one",
    ),
)
"""Every rule of the section that is about more than one setting. The first that is broken is reported."""
