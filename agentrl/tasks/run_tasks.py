"""The tasks of a run: those of one source or several, what is held out of them, and the order that the configuration names."""

from __future__ import annotations

from agentrl.config import RunConfig, TaskSource
from agentrl.episode import Task
from agentrl.errors import ConfigError
from agentrl.tasks.curriculum import TaskList, Tasks
from agentrl.tasks.task_type import TaskType
from agentrl.tasks.tasks import PythonTasks, TaskStream, list_tasks, open_tasks, split_tasks


def open_run_tasks(
    config: RunConfig, given: PythonTasks | None, task_type: TaskType | None = None
) -> tuple[Tasks, list[Task]]:
    """Return where groups get their tasks, and the held-out ones.

    Args:
        config: The configuration, which names both.
        given: Tasks from Python in place of those that it names for groups.
        task_type: What every task must be; None: any dict.

    Raises:
        TaskFileError: They cannot be read, or there are too few to hold some out.
        ConfigError: A share of a stream is to be held out, or a stream is to be drawn from.
    """
    data = config.data
    held_out: list[Task] = []
    if config.eval.tasks:
        held_out = list_tasks(config.eval.tasks, config.eval.limit, task_type, data)
    sources = data.sources or [TaskSource(tasks=config.tasks or "the tasks from Python")]
    lists: list[list[Task]] = []
    for source in sources:
        tasks = open_tasks(source.tasks if given is None else given, task_type, data, source.tasks)
        if isinstance(tasks, TaskStream):
            share = data.eval_share and not held_out
            needs_list = {"data.sources": data.sources, "data.order": data.follows_rewards, "data.eval_share": share}
            if named := [name for name, is_set in needs_list.items() if is_set]:
                raise ConfigError(
                    f"`{named[0]}` needs tasks whose number is known, and {source.tasks} is a stream; give a list"
                )
            tasks.epochs = data.epochs
            return tasks, held_out
        lists.append(tasks)
    if data.eval_share and not held_out:
        parts = [split_tasks(tasks, data.eval_share, config.seed) for tasks in lists]
        lists, held_out = [kept for kept, _ in parts], [task for _, out in parts for task in out]
    held_out = held_out[: config.eval.limit]
    return TaskList(lists, [source.weight for source in sources], data.order, config.seed, data.epochs), held_out
