"""Play a tool environment: call the model, carry out its calls, until the episode is over.

A task is {"env": ID} and, as needed, "make" (arguments of `gymnasium.make`), "options" (of `reset`; the whole task
without it), "seed" (the environment's; the group's without it) and "turn_rewards": true, which gives every reply the
reward of its own step, for `trainer.advantage.turn_discount`. A reply whose tool call could not be carried out is marked as
failed (`trainer.turns.failed`).
"""

from __future__ import annotations

from agentrl import Episode


async def run(episode: Episode) -> float:
    """Return the sum of the environment's rewards."""
    task = episode.task
    env = episode.env(task["env"], **task.get("make", {}))
    await env.reset(seed=task.get("seed", episode.group_seed), options=task.get("options", task))
    return await env.play(episode, turn_rewards=task.get("turn_rewards", False))
