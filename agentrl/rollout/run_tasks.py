"""The tasks of a run: those of one source or several, what is held out of them, and the order that the configuration names."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.config import (
    DataConfig,
    DifficultyOrder,
    PoolOrder,
    RunConfig,
    ScheduleOrder,
    Stage,
    TaskSource,
    UntilLearnedOrder,
)
from agentrl.episode import Task
from agentrl.errors import ConfigError, TaskFileError
from agentrl.rollout.drawn_tasks import DrawnTasks
from agentrl.rollout.sampling_order import MixedOrder, SamplingOrder, first_indices, source_of
from agentrl.rollout.task_columns import with_columns
from agentrl.rollout.task_pools import PooledOrder, PoolStage
from agentrl.rollout.task_type import TaskType
from agentrl.rollout.tasks import (
    PythonTasks,
    TaskList,
    Tasks,
    TaskStream,
    list_tasks,
    open_tasks,
    split_tasks,
    tasks_from_python,
)
from agentrl.rollout.until_learned import LearnedOrder


def open_run_tasks(
    config: RunConfig,
    given: PythonTasks | None,
    task_type: TaskType | None = None,
) -> tuple[Tasks, list[Task]]:
    """Return where groups get their tasks, and the held-out ones.

    Args:
        config: The configuration, which names both.
        given: Tasks from Python in place of those that it names for groups.
        task_type: What every task must be; None: any dict.

    Raises:
        TaskFileError: They cannot be read, there are too few to hold some out, or one lacks the level that a stage asks for.
        ConfigError: A share of a stream is to be held out, a stream is to be drawn from, or a stage takes no task.
    """
    data = config.data
    held_out: list[Task] = []
    if config.eval.tasks:
        held_out = list_tasks(with_columns(config.eval.tasks, data), config.eval.limit, task_type)
    sources = data.sources or [TaskSource(tasks=config.tasks or "the tasks from Python")]
    lists: list[list[Task]] = []
    for source in sources:
        named = with_columns(source.tasks if given is None else given, data)
        if isinstance(named, str):
            tasks = open_tasks(named, task_type)
        else:
            tasks = tasks_from_python(named, source.tasks if given is None else "tasks", task_type)
        if isinstance(tasks, TaskStream):
            return _stream(tasks, config, source, held_out), held_out
        lists.append(tasks)
    if data.eval_share and not held_out:
        parts = [split_tasks(tasks, data.eval_share, config.seed) for tasks in lists]
        lists, held_out = [kept for kept, _ in parts], [task for _, out in parts for task in out]
    held_out = held_out[: config.eval.limit]
    if not data.sources and not data.follows_rewards:
        return TaskList(lists[0], config.seed, data.order.kind == "shuffled", data.epochs), held_out
    together = [task for tasks in lists for task in tasks]
    sizes, weights = [len(tasks) for tasks in lists], [source.weight for source in sources]
    order = _order(data, together, sizes, weights, config.seed)
    described = f"order {data.order.model_dump_json()}, sources {sizes} by {weights}"
    return DrawnTasks(together, sizes, order, described, config.seed), held_out


def _stream(tasks: TaskStream, config: RunConfig, source: TaskSource, held_out: Sequence[Task]) -> TaskStream:
    data = config.data
    if data.sources:
        raise ConfigError(
            f"`data.sources` mixes tasks whose number is known, and {source.tasks} is a stream; give a list"
        )
    if data.follows_rewards:
        raise ConfigError(
            f'`data.order` = "{data.order.kind}" draws from tasks whose number is known, and {source.tasks} is a stream; give a list, '
            'or use `data.order` = "shuffled"'
        )
    if data.eval_share and not held_out:
        raise ConfigError("`data.eval_share` needs tasks whose number is known; name other tasks with `eval.tasks`")
    tasks.epochs = data.epochs
    return tasks


def _order(
    data: DataConfig, tasks: Sequence[Task], sizes: Sequence[int], weights: Sequence[float], seed: int
) -> SamplingOrder:
    order = data.order
    if isinstance(order, UntilLearnedOrder):
        return LearnedOrder(sizes, weights, order, seed=seed)
    if isinstance(order, PoolOrder):
        return PooledOrder(sizes, _stages(order, tasks, sizes, weights), bounds=order.bounds, floor=order.floor)
    return MixedOrder(sizes, weights, seed=seed, shuffle=order.kind == "shuffled")


def _stages(order: PoolOrder, tasks: Sequence[Task], sizes: Sequence[int], weights: Sequence[float]) -> list[PoolStage]:
    if isinstance(order, DifficultyOrder):
        return [PoolStage(0, weights, [*order.weights, order.unseen])]
    assert isinstance(order, ScheduleOrder)
    alike = [1.0] * (len(order.bounds) + 1)
    levels = _levels(tasks, order) if any(stage.has_levels for stage in order.stages) else []
    first, stages = first_indices(sizes), []
    for stage in order.stages:
        taken = frozenset(i for i, level in enumerate(levels) if _within(level, stage)) if stage.has_levels else None
        shares = stage.sources or weights
        if taken is not None and not any(shares[source_of(first, index)] for index in taken):
            raise ConfigError(
                f"the stage from_step = {stage.from_step} of `data.order` takes no task: none in a source with a weight has a "
                f"`{order.level_field}` within its min_level and max_level; levels go from {min(levels):g} to {max(levels):g}"
            )
        stages.append(PoolStage(stage.from_step, shares, [*(stage.weights or alike), stage.unseen], taken))
    return stages


def _levels(tasks: Sequence[Task], order: ScheduleOrder) -> list[float]:
    levels: list[float] = []
    for index, task in enumerate(tasks):
        level = task.get(order.level_field)
        if isinstance(level, bool) or not isinstance(level, int | float):
            raise TaskFileError(
                f"task {index} has {level!r} as its `{order.level_field}`, and the stages of `data.order` ask for a number; write one "
                "in every task, or name another field with `data.order.level_field`"
            )
        levels.append(level)
    return levels


def _within(level: float, stage: Stage) -> bool:
    return (stage.min_level is None or level >= stage.min_level) and (
        stage.max_level is None or level <= stage.max_level
    )
