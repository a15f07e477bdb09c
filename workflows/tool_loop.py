"""Play a tool environment: call the model, carry out its calls, until the episode is over.

A task is {"env": ID}, gymnasium's or `FILE.py:CLASS`, and, as needed,

- "make": arguments of the environment. One that is no tool environment gets the tool `act`: {"env": "FrozenLake-v1"} is enough, and
  {"env": "agentrl/Gym-v0", "make": {"env": "FrozenLake-v1", "make": {...}, "instructions": ..., "action_names": ..., "max_turns": 40}} has a say
  in how it is played;
- "options" of `reset`: the whole task without it;
- "seed": the group's without it; "attempt", for a start of its own in every attempt;
- "max_turns", replies after which it is truncated;
- "turn_rewards": true, which gives every reply the reward of its own step, for `trainer.advantage.discount`.

A reply whose tool call could not be carried out is marked as failed (`trainer.turns.failed`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import gymnasium
from anyio.to_thread import run_sync as in_thread
from pydantic import BaseModel

from agentrl import Episode, RunConfig
from agentrl.envs import registered
from agentrl.errors import WorkflowError
from agentrl.system.imports import load_object


class EnvTask(BaseModel):
    """A line of the task file. An environment may read more keys of it."""

    env: str
    make: dict[str, Any] = {}
    options: dict[str, Any] | None = None
    seed: int | Literal["attempt"] | None = None
    turn_rewards: bool = False
    max_turns: int | None = None

    @classmethod
    async def missing(cls, tasks: Sequence[Self], config: RunConfig) -> list[str]:
        """Return the environments that cannot be loaded."""
        faults: list[str] = []
        for name in dict.fromkeys(task.env for task in tasks):
            try:
                await environment_of(name)
            except WorkflowError as error:
                faults.append(str(error))
        return faults


async def run(episode: Episode[Annotated[dict[str, Any], EnvTask]]) -> float:
    """Return the sum of the environment's rewards."""
    task = episode.task
    env = episode.env(await environment_of(task["env"]), **task.get("make", {}))
    seed = task.get("seed", episode.group_seed)
    await env.reset(seed=episode.seed if seed == "attempt" else seed, options=task.get("options", task))
    return await env.play(episode, max_turns=task.get("max_turns"), turn_rewards=task.get("turn_rewards", False))


async def environment_of(name: str) -> Any:
    """Return what `episode.env` takes for the "env" of a task: gymnasium's id as it is, and the class that `FILE.py:CLASS` names.

    Raises:
        WorkflowError: There is no such id, the file cannot be imported, or has no such class.
    """
    try:
        return await in_thread(load_object if name.partition(":")[0].endswith(".py") else registered, name)
    except (gymnasium.error.Error, AttributeError, ImportError, WorkflowError) as error:
        raise WorkflowError(f"env = {name!r} cannot be loaded: {error}") from error
