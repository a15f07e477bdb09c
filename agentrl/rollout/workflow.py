"""The workflow and the tasks of a run or an evaluation: those of its configuration, or those that a Python program gives.

A workflow is `async def run(episode)`, in a Python file or as a function.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.config.run import RunConfig, check_set
from agentrl.episode import Episode
from agentrl.errors import ConfigError, WorkflowError
from agentrl.reward import Reward
from agentrl.system.imports import FILE_PREFIX, load_file
from agentrl.tasks.tasks import AnyTasks, PythonTasks

Workflow = Callable[[Episode[Any]], Awaitable[float | Reward]]
GivenWorkflow = Workflow | str | Path
"""`async def run(episode)`, or the file that defines one."""
GivenTasks = AnyTasks | Path
"""A source of tasks, or the file that has them."""


def load_workflow(path: Path) -> Workflow:
    """Return the `run` of a workflow file.

    Raises:
        WorkflowError: There is none, or it is not async.
    """
    if path.is_dir():
        raise WorkflowError(f"the workflow {path} is a directory; name the Python file in it")
    if not path.is_file():
        raise WorkflowError(f"the workflow file {path} does not exist")
    run = getattr(load_file(path), "run", None)
    if run is None:
        raise WorkflowError(f"{path} defines no run; a workflow is `async def run(episode) -> float`")
    check_is_workflow(run, f"run in {path}")
    return run  # type: ignore[no-any-return]


def workflow_name(workflow: Workflow) -> str:
    """Return the name under which a workflow is traced: that of its function, or of its file where that is `run` as in all files."""
    function: Any = getattr(workflow, "func", workflow)
    name = getattr(function, "__name__", type(function).__name__)
    return function.__module__.rpartition(".")[2].removeprefix(FILE_PREFIX) if name == "run" else str(name)


def check_is_workflow(run: object, name: str) -> None:
    """Check that a workflow is an async function that can be called with an episode alone.

    Args:
        run: The workflow.
        name: What messages call it.

    Raises:
        WorkflowError: It is not.
    """
    if not callable(run) or not (inspect.iscoroutinefunction(run) or inspect.iscoroutinefunction(type(run).__call__)):
        raise WorkflowError(f"{name} is not async; write `async def run(episode)`")
    try:
        inspect.signature(run).bind(None)
    except TypeError as error:
        raise WorkflowError(
            f"{name} takes {inspect.signature(run)}, so it cannot be called with an episode alone: {error}; write "
            "`async def run(episode)`"
        ) from error


@dataclass(frozen=True)
class Sources:
    """The sources of the workflow and of the tasks."""

    config: RunConfig
    """The configuration, which names every source that has a name, and no other."""
    workflow: Workflow | None
    """None: it is in the file that the configuration names."""
    tasks: PythonTasks | None
    """None: they are where the configuration says."""

    def load_workflow(self) -> Workflow:
        """Return the workflow, which is imported if it is in a file.

        Raises:
            WorkflowError: It cannot be imported, or is no workflow.
        """
        return self.workflow or load_workflow(Path(self.config.workflow))


def sources_of(config: RunConfig, workflow: GivenWorkflow | None, tasks: GivenTasks | None) -> Sources:
    """Return the sources of a run: what is given goes before what the configuration says.

    Raises:
        WorkflowError: `workflow` is no path, and no function that can be a workflow.
        ConfigError: Neither the configuration nor an argument says what the workflow, or what the tasks are; or `data.sources` and an
            argument both say it.
    """
    if tasks is not None and config.data.sources:
        raise ConfigError("`data.sources` names tasks, and so does the argument `tasks`; leave one of them out")
    given = {"workflow": workflow, "tasks": tasks}
    names = {key: str(one) if isinstance(one, str | Path) else "" for key, one in given.items() if one is not None}
    config = config.model_copy(update=names)
    function = None if isinstance(workflow, str | Path) else workflow
    from_python = None if isinstance(tasks, str | Path) else tasks
    if function is None:
        check_set(config, "workflow")
    else:
        check_is_workflow(function, "the workflow")
    if from_python is None:
        check_set(config, "tasks")
    return Sources(config, function, from_python)
