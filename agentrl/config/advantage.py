"""The sections `trainer.advantage`, `.turns` and `.overlong`: how rewards become advantages, and what a turn that is cut off or failed costs. docs/credit.md."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from agentrl.config.section import Positive, Section


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
    bootstrap: bool = True
    """What follows the end of a trajectory whose last reply was cut off for its length: what the critic expects there, or nothing."""
    critic_lr: Annotated[float, Field(gt=0)] = 2e-5
    """Learning rate of the critic."""
    value_clip: Annotated[float, Field(gt=0)] | None = None
    """c: a value that moved by more than this in a step earns nothing by moving further."""


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
