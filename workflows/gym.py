"""Play any gymnasium environment with one tool, `act`.

A task is {"env": "FrozenLake-v1", "make": {"is_slippery": false}} and, as needed, "seed" (a number; or "attempt", for a
start of its own in every attempt; the group's without it), "options" of `reset`, "turn_rewards", and what
`agentrl.envs.GymEnv` takes: "instructions", "action_names", "max_turns".
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from agentrl import Episode
from agentrl.workflows.tool_loop import EnvTask

SETTINGS = ("env", "make", "instructions", "action_names", "max_turns")


class GymTask(EnvTask):
    """What a line of the task file needs."""

    seed: int | Literal["attempt"] | None = None
    instructions: str | None = None
    action_names: list[str] | None = None
    max_turns: int = 100


async def run(episode: Episode[Annotated[dict[str, Any], GymTask]]) -> float:
    """Return the sum of the environment's rewards."""
    task = episode.task
    env = episode.env("agentrl/Gym-v0", **{name: task[name] for name in SETTINGS if name in task})
    seed = task.get("seed", episode.group_seed)
    await env.reset(seed=episode.seed if seed == "attempt" else seed, options=task.get("options"))
    return await env.play(episode, turn_rewards=task.get("turn_rewards", False))
