"""Work out a chained sum with a calculator: the workflow of `make quickstart`."""

from agentrl import Episode


async def run(episode: Episode) -> float:
    """Call the calculator, read its result, answer."""
    env = episode.env("agentrl/Calculator-v0")
    return await env.play(episode)
