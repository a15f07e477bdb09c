"""The agent: it plays the environment with the model, and earns what the environment says."""

from __future__ import annotations

from environment import Sums

from agentrl import Episode, Reward
from agentrl.workflows.tool_loop import play


async def run(episode: Episode) -> Reward:
    """One episode."""
    env = episode.env(Sums)
    await env.reset(seed=episode.seed, options=episode.task)
    return await play(episode, env)
