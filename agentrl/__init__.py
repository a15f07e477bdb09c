"""agentrl: reinforcement learning of language-model agents written as plain async Python.

    import agentrl

    run = await agentrl.train(config, workflow=workflow, tasks=tasks)
    result = await agentrl.evaluate(config, workflow=workflow, tasks=held_out)
    run = agentrl.open_run("runs/2026-11-21-101500")

What is listed here is the public interface; docs/python.md shows it at work. A name is imported when it is first used, so that
`import agentrl` is cheap and needs nothing of what trains, serves or plays.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentrl.system.this_process import exempt_loopback

if TYPE_CHECKING:
    __version__: str
    from agentrl.config import RunConfig as RunConfig
    from agentrl.envs import ToolEnv as ToolEnv
    from agentrl.envs import tool as tool
    from agentrl.episode import Episode as Episode
    from agentrl.episode import Role as Role
    from agentrl.errors import AgentRLError as AgentRLError
    from agentrl.errors import BadRewardError as BadRewardError
    from agentrl.errors import CheckFailedError as CheckFailedError
    from agentrl.errors import CheckpointError as CheckpointError
    from agentrl.errors import ConfigError as ConfigError
    from agentrl.errors import DiskError as DiskError
    from agentrl.errors import EngineError as EngineError
    from agentrl.errors import EpisodeError as EpisodeError
    from agentrl.errors import EpisodeTimeoutError as EpisodeTimeoutError
    from agentrl.errors import NoModelCallError as NoModelCallError
    from agentrl.errors import RewardFunctionError as RewardFunctionError
    from agentrl.errors import SandboxError as SandboxError
    from agentrl.errors import SandboxLostError as SandboxLostError
    from agentrl.errors import StoreError as StoreError
    from agentrl.errors import TaskFileError as TaskFileError
    from agentrl.errors import ToolCallError as ToolCallError
    from agentrl.errors import ToolDefinitionError as ToolDefinitionError
    from agentrl.errors import TooManyFailuresError as TooManyFailuresError
    from agentrl.errors import TrainerError as TrainerError
    from agentrl.errors import UsageError as UsageError
    from agentrl.errors import WorkerError as WorkerError
    from agentrl.errors import WorkflowError as WorkflowError
    from agentrl.evaluation.evaluate import evaluate as evaluate
    from agentrl.evaluation.figures import Evaluation as Evaluation
    from agentrl.record.trajectory import Trajectory as Trajectory
    from agentrl.reward import Reward as Reward
    from agentrl.rubric import Rubric as Rubric
    from agentrl.run.open_run import Run as Run
    from agentrl.run.open_run import open_run as open_run
    from agentrl.run.serve import serve as serve
    from agentrl.run.train import train as train

_ERRORS = (
    "AgentRLError",
    "BadRewardError",
    "CheckFailedError",
    "CheckpointError",
    "ConfigError",
    "DiskError",
    "EngineError",
    "EpisodeError",
    "EpisodeTimeoutError",
    "NoModelCallError",
    "RewardFunctionError",
    "SandboxError",
    "SandboxLostError",
    "StoreError",
    "TaskFileError",
    "ToolCallError",
    "ToolDefinitionError",
    "TooManyFailuresError",
    "TrainerError",
    "UsageError",
    "WorkerError",
    "WorkflowError",
)
_PLACES = {
    "Episode": "agentrl.episode",
    "Evaluation": "agentrl.evaluation.figures",
    "Reward": "agentrl.reward",
    "Role": "agentrl.episode",
    "Rubric": "agentrl.rubric",
    "Run": "agentrl.run.open_run",
    "RunConfig": "agentrl.config",
    "ToolEnv": "agentrl.envs",
    "Trajectory": "agentrl.record.trajectory",
    "evaluate": "agentrl.evaluation.evaluate",
    "open_run": "agentrl.run.open_run",
    "serve": "agentrl.run.serve",
    "tool": "agentrl.envs",
    "train": "agentrl.run.train",
    **dict.fromkeys(_ERRORS, "agentrl.errors"),
}
"""Where each public name is defined."""

__all__ = [*_PLACES]


exempt_loopback()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("agentrl-sdk")
        except PackageNotFoundError:  # imported from its folder, without having been installed
            return "unknown"
    if name not in _PLACES:
        raise AttributeError(f"module 'agentrl' has no attribute {name!r}; its public names are {', '.join(_PLACES)}")
    globals()[name] = value = getattr(import_module(_PLACES[name]), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
