"""The agent: it plays the environment with the model, and earns what the environment says."""

from __future__ import annotations

from environment import Sums

from agentrl import Episode


async def run(episode: Episode) -> float:
    """One episode."""
    env = episode.env(Sums)
    return await env.play(episode)
