"""Run an environment of the `verifiers` library (0.1.x, the Environments Hub's `load_environment`), unmodified.

A task is {"environment": ID, "row": i} and, as needed, "args" of its `load_environment` and "sampling" (its sampling
arguments). The reward and the metrics are the environment's own. Tasks for a whole environment:

    python -m agentrl.workflows.verifiers_env ID DIR [--args JSON]       # writes train.jsonl and eval.jsonl

Needs `pip install -e '/path/to/agentrl[verifiers]'`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from anyio.to_thread import run_sync as in_thread

from agentrl import Episode, Reward
from agentrl.errors import EpisodeError
from agentrl.reporting.exit_code import exit_code_of

_loading = threading.Lock()


async def run(episode: Episode) -> Reward:
    """Return the environment's reward, with its metrics.

    Raises:
        EpisodeError: The rollout failed.
    """
    task = episode.task
    args = json.dumps(task.get("args", {}), sort_keys=True)
    environment = await in_thread(load, task["environment"], args)
    row = await in_thread(row_of, environment, int(task.get("row", 0)), task.get("split", "train"))
    output = await environment.run_rollout(row, episode.client, episode.model, task.get("sampling", {}))
    if output.get("error"):
        raise EpisodeError(f"the rollout of {task['environment']} failed: {output['error']}")
    metrics = {name: float(value) for name, value in (output.get("metrics") or {}).items()}
    return Reward(float(output.get("reward") or 0.0), metrics)


def load(name: str, args: str) -> Any:
    """Return an environment by its id; each is loaded once.

    Args:
        name: The id.
        args: The arguments of its `load_environment`, as JSON.

    Raises:
        EpisodeError: It cannot be loaded.
    """
    with _loading:
        return _load(name, args)


@lru_cache
def _load(name: str, args: str) -> Any:
    try:
        import verifiers
        from verifiers.envs import environment
    except ImportError:
        raise EpisodeError(
            "verifiers environments need the library: pip install -e '/path/to/agentrl[verifiers]'"
        ) from None
    # Every environment puts handlers of its own on SIGINT and SIGTERM. They belong to the run, and this is no main thread.
    theirs = environment.signal
    environment.signal = SimpleNamespace(**{**vars(signal), "signal": lambda *_: None})
    try:
        return verifiers.load_environment(name, **json.loads(args))
    except Exception as error:
        raise EpisodeError(f"the verifiers environment {name!r} cannot be loaded: {error}") from error
    finally:
        environment.signal = theirs


def row_of(environment: Any, index: int, split: str = "train") -> dict[str, Any]:
    """Return one row of an environment's dataset, as its rollouts take it."""
    dataset = environment.get_eval_dataset() if split == "eval" else environment.get_dataset()
    row = dict(dataset[index])
    return {name: row[name] for name in ("prompt", "example_id", "task", "answer", "info") if row.get(name) is not None}


def main() -> int:
    """Write the task files of an environment."""
    parser = argparse.ArgumentParser(prog="python -m agentrl.workflows.verifiers_env", description=__doc__)
    parser.add_argument("environment")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--args", default="{}", help="arguments of load_environment, as JSON")
    options = parser.parse_args()
    environment = load(options.environment, options.args)
    options.directory.mkdir(parents=True, exist_ok=True)
    for split, dataset in (("train", environment.get_dataset()), ("eval", environment.get_eval_dataset())):
        path = options.directory / f"{split}.jsonl"
        task = {"environment": options.environment, "args": json.loads(options.args), "split": split}
        path.write_text("".join(json.dumps({**task, "row": row}) + "\n" for row in range(len(dataset))))
        print(f"{path}: {len(dataset)} tasks")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
