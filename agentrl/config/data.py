"""Which tasks a run practises and when: `data.sources` and the kinds of `data.order`, each with its own keys. docs/curriculum.md."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from agentrl.config.section import Positive, Section, Share

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
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


class GivenOrder(Section):
    """Every epoch in the order in which the tasks are written."""

    kind: Literal["in_order"] = "in_order"


class DifficultyOrder(Section):
    """Tasks are drawn by how their last group went: a task is in the pool of its mean reward, or has none yet and is unseen."""

    kind: Literal["difficulty"] = "difficulty"
    bounds: list[Finite] = Field(default_factory=lambda: [0.25, 0.75])
    """Mean rewards that part the pools, ascending: pool 0 is below the first, the last pool begins at the last."""
    floor: Share = 0.1
    """Share of the groups whose task is drawn from all tasks alike: with N tasks, each has at least floor/N."""
    weights: list[Weight] = Field(default_factory=lambda: [1.0, 4.0, 1.0])
    """Weight of a task in each pool, the pool of the lowest rewards first: one more than there are bounds."""
    unseen: Weight = 4.0
    """Weight of a task of which no group has ended yet."""

    @field_validator("bounds")
    @classmethod
    def _check_bounds(cls, bounds: list[float]) -> list[float]:
        if not bounds or any(low >= high for low, high in pairwise(bounds)):
            raise ValueError("write one bound or more, each above the one before it, such as [0.25, 0.75]")
        return bounds

    @model_validator(mode="after")
    def _check_weights(self) -> DifficultyOrder:
        if len(self.weights) != len(self.bounds) + 1:
            raise ValueError(
                f"weights = {_written(self.weights)}: bounds = {_written(self.bounds)} make {len(self.bounds) + 1} pools; give each one "
                "a weight"
            )
        if not any([*self.weights, self.unseen]):
            raise ValueError("every weight is 0, so no task would be drawn for its pool; make one larger")
        return self


TaskOrder = Annotated[ShuffledOrder | GivenOrder | DifficultyOrder, Field(discriminator="kind")]


class DataConfig(Section):
    """Which tasks are practised, and in which order."""

    order: TaskOrder = ShuffledOrder()
    """Which task comes next: `shuffled`, `in_order`, or by what came of the groups before."""
    sources: list[TaskSource] = Field(default_factory=list)
    """Several sources of tasks in place of `tasks`, mixed by their weights: [{tasks = "easy.jsonl", weight = 2}, {tasks = "hard.jsonl"}]."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Fields of a task that have another name in the data set, those of `eval.tasks` too: `--data.columns.prompt question`."""
    fields: dict[str, bool | int | float | str] = Field(default_factory=dict)
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


def _written(numbers: list[Any]) -> str:
    return f"[{', '.join(f'{number:g}' for number in numbers)}]"
