"""Roles that are policies of their own, as unevenly as they come: turns that differ in number, branches, roles that are silent or not trained.

What an episode does is drawn from its task and its seed. In a task of every third the role `rare` says nothing, in another of every third
it is not trained; `wordy` says up to four things, each a branch or one after the other. Hostile ends are those of `hostile_calculator.py`.
"""

import os
import random

import anyio
from hostile_calculator import HOSTILE, be_hostile

from agentrl import Episode, Reward

LIMIT = 24


async def run(episode: Episode) -> float | Reward:
    """Let both roles speak, and reward each for the length of what it says."""
    number, rng = int(episode.task["n"]), random.Random(episode.seed)
    hostile = "AGENTRL_FAULT_LOG" in os.environ and random.random() < HOSTILE
    turns = {"wordy": rng.randrange(1, 5), "rare": 0 if number % 3 == 0 else 1}
    for name, count in turns.items():
        role = episode.role(name, trained=not (name == "rare" and number % 3 == 1))
        messages = [{"role": "user", "content": f"{number} + 1 ="}]
        for turn in range(count):
            reply = await role.client.chat.completions.create(
                model=role.model,
                messages=messages,  # type: ignore[arg-type]
                max_tokens=LIMIT,
                n=2 if turn == 1 else 1,
            )
            if hostile:
                return await be_hostile()
            await anyio.sleep(rng.uniform(0.0, 0.3))
            if rng.random() < 0.5:
                messages += [
                    {"role": "assistant", "content": reply.choices[-1].message.content or ""},
                    {"role": "user", "content": f"+ {turn} ="},
                ]
        if count:
            role.reward(rng.random())
    return rng.random()
