"""The calculator workflow as agents are in the wild: thinking of long-tailed length, and a tool that is sometimes slow."""

import random

import anyio

from agentrl import Episode

MEDIAN_TOOL_S = 0.7
TOOL_SIGMA = 0.9
LONGEST_TOOL_S = 12.0
SHORTEST_THOUGHT_TOKENS = 16
LONGEST_THOUGHT_TOKENS = 300


async def run(episode: Episode) -> float:
    """Think aloud (a branch of its own), then work the task out with the tool, which takes log-normal time."""
    rng = random.Random(episode.seed)
    tokens = min(LONGEST_THOUGHT_TOKENS, int(SHORTEST_THOUGHT_TOKENS * rng.paretovariate(1.2)))
    thought = [{"role": "user", "content": f"Think aloud. {episode.task['question']}"}]
    await episode.client.chat.completions.create(
        model=episode.model,
        messages=thought,  # type: ignore[arg-type]
        max_tokens=tokens,
        temperature=1.6,
    )
    env = episode.env("agentrl/Calculator-v0")
    await env.reset(seed=episode.seed, options=episode.task)
    while not env.done:
        reply = await episode.client.chat.completions.create(
            model=episode.model, messages=env.messages, tools=env.tools
        )
        await anyio.sleep(min(LONGEST_TOOL_S, MEDIAN_TOOL_S * rng.lognormvariate(0, TOOL_SIGMA)))
        await env.step(reply.choices[0].message)
    return env.total_reward
