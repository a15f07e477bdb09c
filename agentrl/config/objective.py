"""The sections that say what a training step maximises: the kinds of `trainer.objective`, `.importance`, `.loss_aggregation` and `.kl`, each with its own keys."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from agentrl.config.section import Positive, Section

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
    """How the divergence is estimated from the sampled tokens; in the reward k1 alone has its gradient, in the loss k1 has none."""


class KlReward(Section):
    """The divergence to the reference is taken off the reward."""

    kind: Literal["reward"] = "reward"
    coef: Coefficient
    """β: weight of the KL divergence to the reference."""
    estimator: Literal["k1"] = "k1"
    """How the divergence is estimated from the sampled tokens; in the reward k1 alone has its gradient, in the loss k1 has none."""


Kl = Annotated[NoKl | KlLoss | KlReward, Field(discriminator="kind")]
