"""Play a tool environment: call the model, carry out its calls, until the episode is over.

A task is {"env": ID} and, as needed, "make" (arguments of `gymnasium.make`), "options" (of `reset`; the whole task
without it), "seed" (the environment's; the group's without it) and "turn_rewards": true, which gives every reply the
reward of its own step, for `trainer.turn_discount`. A reply whose tool call could not be carried out is marked as
failed (`trainer.failed_turns`).
"""

from __future__ import annotations

import math

from agentrl import Episode, Reward
from agentrl.envs import AsyncToolEnv


async def run(episode: Episode) -> Reward:
    """The sum of the environment's rewards."""
    task = episode.task
    env = episode.env(task["env"], **task.get("make", {}))
    await env.reset(seed=task.get("seed", episode.group_seed), options=task.get("options", task))
    return await play(episode, env, turn_rewards=task.get("turn_rewards", False))


async def play(episode: Episode, env: AsyncToolEnv, *, turn_rewards: bool = False) -> Reward:
    """Play an environment that has been reset to its end. Floats in its `info` become metrics."""
    turns = failed = 0
    while not env.done:
        reply = await episode.client.chat.completions.create(
            model=episode.model, messages=env.messages, tools=env.tools
        )
        reward = await env.step(reply.choices[0].message)
        turns += 1
        if env.failed_calls:
            failed += 1
            episode.mark_failed(reply.id)
        if turn_rewards:
            episode.reward(reply.id, reward)
    noted = {name: value for name, value in env.info.items() if isinstance(value, float) and math.isfinite(value)}
    return Reward(env.total_reward, {**noted, "turns": float(turns), "failed_turns": float(failed)})
