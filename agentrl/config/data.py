"""Which tasks a run practises and when: `data.sources` and `data.order`. docs/curriculum.md."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from agentrl.config.section import Positive, Section, Share


class TaskSource(Section):
    """One of several sources of tasks that are mixed."""

    tasks: Annotated[str, Field(min_length=1)]
    """A source of tasks, as the key `tasks` names one; their number must be known."""
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """How often a group takes its task from here, next to the other sources."""


TaskOrder = Literal["shuffled", "in_order", "difficulty"]


class DataConfig(Section):
    """Which tasks are practised, and in which order."""

    order: TaskOrder = "shuffled"
    """Which task comes next. shuffled: every epoch in an order of its own; in_order: as the tasks are written; difficulty: mostly
    those that are solved sometimes, by the mean reward of their last group (docs/curriculum.md). A stream comes in its own order."""
    sources: list[TaskSource] = Field(default_factory=list)
    """Several sources of tasks in place of `tasks`, mixed by their weights: [{tasks = "easy.jsonl", weight = 2}, {tasks = "hard.jsonl"}]."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Fields of a task that have another name in the data set, those of `eval.tasks` too: `--data.columns.prompt question`."""
    fields: dict[str, Any] = Field(default_factory=dict)
    """Fields to add to every task that lacks them, those of `eval.tasks` too: `--data.fields.scorer number`."""
    epochs: Positive | None = None
    """The run ends when every task was visited so often, if not by `steps` before. Default: as often as the steps need."""
    eval_share: Share = 0.0
    """Share of the tasks that is held out for evaluation, where eval.tasks names none."""

    @model_validator(mode="after")
    def _check_keys_together(self) -> DataConfig:
        if self.epochs is not None and (self.sources or self.order == "difficulty"):
            what = "`data.sources` mixes tasks" if self.sources else f'`data.order` = "{self.order}" draws tasks'
            raise ValueError(f"`data.epochs` = {self.epochs}: {what} without epochs; bound the run by `steps` alone")
        return self
