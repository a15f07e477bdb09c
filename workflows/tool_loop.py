"""Play a tool environment: call the model, carry out its calls, until the episode is over.

A task is {"env": ID}, gymnasium's or `FILE.py:CLASS`, and, as needed,

- "make": arguments of the environment. One that is no tool environment gets the tool `act`: {"env": "FrozenLake-v1"} is enough, and
  {"env": "agentrl/Gym-v0", "make": {"env": "FrozenLake-v1", "make": {...}, "instructions": ..., "action_names": ..., "max_turns": 40}} has a say
  in how it is played;
- "options" of `reset`: the whole task without it;
- "seed": the group's without it; "attempt", for a start of its own in every attempt;
- "turn_rewards": true, which gives every reply the reward of its own step, for `trainer.advantage.turn_discount`.

A reply whose tool call could not be carried out is marked as failed (`trainer.turns.failed`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from anyio.to_thread import run_sync as in_thread
from pydantic import BaseModel

from agentrl import Episode
from agentrl.errors import WorkflowError
from agentrl.system.imports import load_object


class EnvTask(BaseModel):
    """What a line of the task file needs. An environment may take more from it."""

    env: str
    make: dict[str, Any] = {}
    options: dict[str, Any] | None = None
    seed: int | Literal["attempt"] | None = None
    turn_rewards: bool = False


async def run(episode: Episode[Annotated[dict[str, Any], EnvTask]]) -> float:
    """Return the sum of the environment's rewards."""
    task = episode.task
    env = episode.env(await environment_of(task["env"]), **task.get("make", {}))
    seed = task.get("seed", episode.group_seed)
    await env.reset(seed=episode.seed if seed == "attempt" else seed, options=task.get("options", task))
    return await env.play(episode, turn_rewards=task.get("turn_rewards", False))


async def environment_of(name: str) -> Any:
    """Return what `episode.env` takes for the "env" of a task: gymnasium's id as it is, and the class that `FILE.py:CLASS` names.

    Raises:
        WorkflowError: The file cannot be imported, or has no such class.
    """
    if not name.partition(":")[0].endswith(".py"):
        return name
    try:
        return await in_thread(load_object, name)
    except (OSError, AttributeError) as error:
        raise WorkflowError(f"env = {name!r} cannot be loaded: {error}") from error
