"""The workflow that the user brings: a Python file with `async def run(episode)`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from agentrl.episode import Episode
from agentrl.errors import WorkflowError
from agentrl.reward import Reward
from agentrl.system.imports import load_file

Workflow = Callable[[Episode[Any]], Awaitable[float | Reward]]


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
    check_workflow(run, f"run in {path}")
    return run  # type: ignore[no-any-return]


def check_workflow(run: object, name: str) -> None:
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
