"""Environments of the `verifiers` library (0.1.x, the Environments Hub's `load_environment`) as a source of tasks.

    verifiers:ENV[@SPLIT][?ARGS] ─► its load_environment(**ARGS) ─► a task of workflows/verifiers_env.py for each row of its own dataset

ENV is the name of an installed environment (`gsm8k`, or with its owner `primeintellect/gsm8k`). SPLIT is `train` or `eval`; ARGS are JSON.
"""

from __future__ import annotations

import json
import signal
import threading
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agentrl.episode import Task
from agentrl.errors import TaskFileError, one_line

SPLITS = ("train", "eval")
_loading = threading.Lock()


def tasks_of_environment(source: str) -> list[Task]:
    """Return a task for each row of an environment's dataset.

    Args:
        source: ENV[@SPLIT][?ARGS], as the top of this file describes it.

    Raises:
        TaskFileError: The source is malformed, or the environment cannot be loaded or has no such dataset.
    """
    named, mark, written = source.partition("?")
    name, _, split = named.partition("@")
    where = f"verifiers:{source}"
    if not name or (split or "train") not in SPLITS:
        raise TaskFileError(
            f"{where}: write verifiers:ENV, verifiers:ENV@train or verifiers:ENV@eval, then, as needed, ? and arguments as JSON"
        )
    try:
        args = json.loads(written) if mark else {}
    except ValueError as error:
        raise TaskFileError(f"{where}: the arguments after ? are not JSON: {error}") from None
    if not isinstance(args, dict):
        raise TaskFileError(f'{where}: the arguments after ? must be a JSON object, such as {{"max_turns": 4}}')
    if Path(name).is_dir() or name.startswith((".", "/")):
        raise TaskFileError(f"{where}: a folder must be installed first: pip install -e {name}, then name its project")
    split = split or "train"
    rows = dataset_of(load_environment(name, json.dumps(args, sort_keys=True)), split)
    task: Task = {"environment": name, **({"args": args} if args else {}), "split": split}
    return [{**task, "row": row} for row in range(len(rows))]


def load_environment(name: str, args: str) -> Any:
    """Return an environment; each is loaded once in a process.

    Args:
        name: Its name.
        args: The arguments of its `load_environment`, as JSON.

    Raises:
        TaskFileError: It cannot be loaded, or has rewards that compare the attempts of a group.
    """
    with _loading:
        return _load(name, args)


def dataset_of(environment: Any, split: str) -> Any:
    """Return a dataset of an environment.

    Raises:
        TaskFileError: It has none.
    """
    other = "eval" if split == "train" else "train"
    try:
        return environment.get_eval_dataset() if split == "eval" else environment.get_dataset()
    except Exception as error:
        raise TaskFileError(
            f"the verifiers environment {environment.env_id!r} has no dataset to {split} on: {one_line(error)}; try @{other}"
        ) from error


@lru_cache
def _load(name: str, args: str) -> Any:
    try:
        import verifiers
        from verifiers.envs import environment
    except ImportError:
        raise TaskFileError("verifiers tasks need the library: pip install -e '/path/to/agentrl[verifiers]'") from None
    # Every environment puts handlers of its own on SIGINT and SIGTERM. They belong to the run, and this is no main thread.
    theirs = environment.signal
    environment.signal = SimpleNamespace(**{**vars(signal), "signal": lambda *_: None})
    try:
        loaded = verifiers.load_environment(name, **json.loads(args))
    except Exception as error:
        raise TaskFileError(f"the verifiers environment {name!r} cannot be loaded: {one_line(error)}") from error
    finally:
        environment.signal = theirs
    compared = _group_rewards(loaded.rubric)
    if compared:
        raise TaskFileError(
            f"the verifiers environment {name!r} compares the attempts of a group ({', '.join(compared)}), and each is scored by itself here; "
            "use an environment whose rewards look at one rollout"
        )
    return loaded


def _group_rewards(rubric: Any) -> list[str]:
    """Return the names of the rewards of a rubric, and of those in it, that look at all attempts of a group."""
    own: list[str] = rubric._get_group_reward_func_names()
    grouped = [environment.rubric for environment in getattr(rubric, "env_map", {}).values()]
    return own + [name for inner in (*getattr(rubric, "rubrics", ()), *grouped) for name in _group_rewards(inner)]
