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

from anyio.to_thread import run_sync as in_thread
from pydantic import BaseModel

from agentrl import Episode, RunConfig
from agentrl.envs import maker_of
from agentrl.errors import one_line


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
        """Return the environments that cannot be made, each as its first task has it made."""
        faults: list[str] = []
        for first in {task.env: task for task in reversed(tasks)}.values():
            try:
                await in_thread(lambda: maker_of(first.env)(**first.make).close())  # noqa: B023  # it is called here
            except Exception as error:
                faults.append(f"{one_line(error, 500)} (env = {first.env!r}, make = {first.make})")
        return faults


async def run(episode: Episode[Annotated[dict[str, Any], EnvTask]]) -> float:
    """Return the sum of the environment's rewards."""
    task = EnvTask.model_validate(episode.task)
    env = episode.env(task.env, **task.make)
    seed = episode.group_seed if task.seed is None else task.seed
    seed = episode.seed if seed == "attempt" else seed
    await env.reset(seed=seed, options=episode.task if task.options is None else task.options)
    return await env.play(episode, max_turns=task.max_turns, turn_rewards=task.turn_rewards)
