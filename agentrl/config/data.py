"""Which tasks a run practises and when: `data.sources` and the kinds of `data.order`, each with its own keys. docs/curriculum.md."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from agentrl.config.section import NotNegative, Positive, Section, Share

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


class PoolOrder(Section):
    """What has pools: a task is in the pool of the mean reward of its last group, or has none yet and is unseen."""

    bounds: list[Finite] = Field(default_factory=lambda: [0.25, 0.75])
    """Mean rewards that part the pools, ascending: pool 0 is below the first, the last pool begins at the last."""
    floor: Share = 0.1
    """Share of the groups whose task is drawn from all tasks alike: with N tasks, each has at least floor/N."""

    @field_validator("bounds")
    @classmethod
    def _check_bounds(cls, bounds: list[float]) -> list[float]:
        if not bounds or any(low >= high for low, high in pairwise(bounds)):
            raise ValueError("write one bound or more, each above the one before it, such as [0.25, 0.75]")
        return bounds


class DifficultyOrder(PoolOrder):
    """Tasks are drawn by how their last group went."""

    kind: Literal["difficulty"] = "difficulty"
    weights: list[Weight] = Field(default_factory=lambda: [1.0, 4.0, 1.0])
    """Weight of a task in each pool, the pool of the lowest rewards first: one more than there are bounds."""
    unseen: Weight = 4.0
    """Weight of a task of which no group has ended yet."""

    @model_validator(mode="after")
    def _check_weights(self) -> DifficultyOrder:
        _check_pools("weights", self.weights, self.bounds)
        if not any([*self.weights, self.unseen]):
            raise ValueError("every weight is 0, so no task would be drawn for its pool; make one larger")
        return self


class Stage(Section):
    """What is practised from a step on."""

    from_step: NotNegative = 0
    """The policy version, which is the number of training steps taken, from which groups start in this stage."""
    min_level: Finite | None = None
    """The least level of a task; a task says its own with the field that `level_field` names. Default: no bound."""
    max_level: Finite | None = None
    """The largest level of a task. Default: no bound."""
    sources: list[Weight] | None = None
    """Weight of each of `data.sources`, in their order. Default: their own."""
    weights: list[Weight] | None = None
    """Weight of a task in each pool, as in order = "difficulty". Default: all tasks alike."""
    unseen: Weight = 1.0
    """Weight of a task of which no group has ended yet."""

    @model_validator(mode="after")
    def _check_keys_together(self) -> Stage:
        if self.min_level is not None and self.max_level is not None and self.min_level > self.max_level:
            raise ValueError(f"min_level = {self.min_level:g} is above max_level = {self.max_level:g}; swap them")
        if self.sources is not None and not any(self.sources):
            raise ValueError("the weight of every source is 0; make one larger")
        if not any([*(self.weights or [1.0]), self.unseen]):
            raise ValueError("every weight is 0, so no task would be drawn for its pool; make one larger")
        return self

    @property
    def has_levels(self) -> bool:
        """Whether it asks for the level of a task."""
        return self.min_level is not None or self.max_level is not None


class ScheduleOrder(PoolOrder):
    """Stages, each from a step on."""

    kind: Literal["schedule"] = "schedule"
    stages: Annotated[list[Stage], Field(min_length=1)]
    """What is practised from which step on: [{from_step = 0, max_level = 1}, {from_step = 50}]."""
    level_field: Annotated[str, Field(min_length=1)] = "level"
    """Field of a task that holds its level, a number."""

    @model_validator(mode="after")
    def _check_stages(self) -> ScheduleOrder:
        starts = [stage.from_step for stage in self.stages]
        if starts[0] != 0 or any(before >= after for before, after in pairwise(starts)):
            raise ValueError(
                f"stages begin at the steps {starts}; the first begins at 0, and each after the one before"
            )
        for stage in self.stages:
            if stage.weights is not None:
                _check_pools(f"the stage from_step = {stage.from_step} has weights", stage.weights, self.bounds)
        return self


class UntilLearnedOrder(Section):
    """A few tasks at a time, in turn, each until it is learned; then the next ones."""

    kind: Literal["until_learned"] = "until_learned"
    learned_at: Finite = 0.9
    """Mean reward of a group from which its task counts as learned."""
    in_a_row: Positive = 1
    """Groups in a row that must reach it."""
    active: Positive = 16
    """Tasks that are practised in turn at the same time."""
    max_groups: Positive | None = None
    """After so many groups that did not make it learned, a task waits behind the others. Default: it is repeated for ever."""
    floor: Share = 0.1
    """Share of the groups whose task is drawn from all tasks alike; a learned task that fails then has to be learned again."""


TaskOrder = Annotated[
    ShuffledOrder | GivenOrder | DifficultyOrder | ScheduleOrder | UntilLearnedOrder, Field(discriminator="kind")
]


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
        for stage in self.order.stages if isinstance(self.order, ScheduleOrder) else ():
            if stage.sources is not None and len(stage.sources) != len(self.sources):
                raise ValueError(
                    f"the stage from_step = {stage.from_step} of `data.order` weighs {len(stage.sources)} sources, and "
                    f"`data.sources` names {len(self.sources)}; give each one a weight"
                )
        return self

    @property
    def follows_rewards(self) -> bool:
        """Whether what is drawn may depend on what came of earlier groups, or on the step."""
        return self.order.kind not in ("shuffled", "in_order")


def _check_pools(name: str, weights: list[float], bounds: list[float]) -> None:
    if len(weights) != len(bounds) + 1:
        raise ValueError(
            f"{name} = {_written(weights)}: bounds = {_written(bounds)} make {len(bounds) + 1} pools; give each one a weight"
        )


def _written(numbers: list[Any]) -> str:
    return f"[{', '.join(f'{number:g}' for number in numbers)}]"
