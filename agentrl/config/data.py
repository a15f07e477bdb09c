"""Which tasks a run practises and when: `data.sources` and the kinds of `data.order`, each with its own keys. docs/curriculum.md."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from agentrl.config.section import Positive, Section, Share

Finite = Annotated[float, Field(allow_inf_nan=False)]


class TaskSource(Section):
    """One of several sources of tasks that are mixed."""

    tasks: Annotated[str, Field(min_length=1)]
    """A source of tasks, as the key `tasks` names one; their number must be known."""
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """How often a group takes its task from here, next to the other sources."""


class ShuffledOrder(Section):
    """Every epoch in an order of its own, drawn with the seed. A stream comes in its own order."""

    kind: Literal["shuffled"] = "shuffled"


class InOrder(Section):
    """Every epoch in the order in which the tasks are written."""

    kind: Literal["in_order"] = "in_order"


class DifficultyOrder(Section):
    """Tasks are drawn by the mean reward of their last group: those that are sometimes solved most, as docs/curriculum.md has it."""

    kind: Literal["difficulty"] = "difficulty"
    bounds: Annotated[list[Finite], Field(min_length=2, max_length=2)] = Field(default_factory=lambda: [0.25, 0.75])
    """Mean rewards that part the tasks: below the first one is too hard, from the second on it is solved."""

    @field_validator("bounds")
    @classmethod
    def _check_bounds(cls, bounds: list[float]) -> list[float]:
        if bounds[0] >= bounds[1]:
            raise ValueError("write two mean rewards, the lower one first, such as [0.25, 0.75]")
        return bounds


TaskOrder = Annotated[ShuffledOrder | InOrder | DifficultyOrder, Field(discriminator="kind")]


class DataConfig(Section):
    """Which tasks are practised, and in which order."""

    order: TaskOrder = ShuffledOrder()
    """Which task comes next: `shuffled`, `in_order`, or by what came of the groups before."""
    sources: list[TaskSource] = Field(default_factory=list)
    """Several sources of tasks in place of `tasks`, mixed by their weights: [{tasks = "easy.jsonl", weight = 2}, {tasks = "hard.jsonl"}]."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Fields of a task that have another name in the data set, those of `eval.tasks` too: `--data.columns.prompt question`."""
    fields: dict[str, Any] = Field(default_factory=dict)
    """What every task has that says nothing else itself, those of `eval.tasks` too: `--data.fields.scorer number`."""
    epochs: Positive | None = None
    """The run ends when every task was visited so often, if not by `steps` before. Default: as often as the steps need."""
    eval_share: Share = 0.0
    """Share of the tasks that is held out for evaluation, where eval.tasks names none."""

    @model_validator(mode="after")
    def _check_keys_together(self) -> DataConfig:
        if self.epochs is not None and (self.sources or self.order.kind not in ("shuffled", "in_order")):
            what = "`data.sources` mixes tasks" if self.sources else f'`data.order` = "{self.order.kind}" draws tasks'
            raise ValueError(f"`data.epochs` = {self.epochs}: {what} without epochs; bound the run by `steps` alone")
        return self

    @property
    def follows_rewards(self) -> bool:
        """Whether what is drawn may depend on what came of earlier groups."""
        return self.order.kind not in ("shuffled", "in_order")
