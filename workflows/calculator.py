"""Work out a chained sum with a calculator: the workflow of the README."""

from agentrl import Episode


async def run(episode: Episode) -> float:
    """Call the calculator, read its result, answer."""
    env = episode.env("agentrl/Calculator-v0")
    await env.reset(seed=episode.seed, options=episode.task)
    while not env.done:
        reply = await episode.client.chat.completions.create(
            model=episode.model,
            messages=env.messages,
            tools=env.tools,
        )
        await env.step(reply.choices[0].message)
    return env.total_reward
