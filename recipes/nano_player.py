"""Make the nano player: `python -m recipes.nano_player DIR` (`make nano-player`).

The nano model's architecture, warm-started on games of gymnasium instead of sums. The demonstrators mostly act at random, as
a model does that knows how to call a tool and not how to play, so reinforcement learning has all of the playing to teach.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from renderers import Qwen3RendererConfig, create_renderer

from agentrl.envs import GymEnv
from recipes.nano_model import SYSTEM_FRAME, Recipe, build_model, build_tokenizer, encode, fit, write


@dataclass(frozen=True)
class Game:
    """A game, and how well it is played."""

    task: dict[str, Any]
    """The arguments of a `GymEnv`."""
    best: Callable[[str], str]
    """From an observation to a good action."""
    skill: float
    """Share of moves that are good; the others are drawn at random."""


_LAKE_MOVES = {0: "down", 1: "right", 2: "down", 3: "left", 4: "down", 6: "down", 8: "right", 9: "down", 10: "down"}
_LAKE_MOVES |= {13: "right", 14: "right"}

GAMES = (
    Game(
        {
            "env": "FrozenLake-v1",
            "make": {"is_slippery": False},
            "instructions": "Frozen lake, 4 x 4.",
            "max_turns": 12,
        },
        lambda seen: _LAKE_MOVES[int(seen)],
        skill=0.3,
    ),
    Game(
        {"env": "Blackjack-v1", "instructions": "Blackjack.", "max_turns": 8},
        lambda seen: "hit" if json.loads(seen)[0] < 17 else "stick",
        skill=0.0,
    ),
)


def demonstration(game: Game, rng: random.Random) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Play one episode as a demonstrator does.

    Args:
        game: What is played, and how well.
        rng: Where chance comes from.

    Returns:
        (messages, tools).
    """
    settings = {name: value for name, value in game.task.items() if name != "env"}
    env = GymEnv(game.task["env"], **settings)
    messages, _ = env.reset(seed=rng.getrandbits(31))
    messages = list(messages)
    seen = messages[0]["content"].rpartition("\n")[2]
    actions = env.tools[0]["function"]["parameters"]["properties"]["action"]["enum"]
    done = False
    while not done:
        action = game.best(seen) if rng.random() < game.skill else rng.choice(actions)
        function = {"name": "act", "arguments": json.dumps({"action": action})}
        messages.append(
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "call", "type": "function", "function": function}],
            }
        )
        answers, _, terminated, truncated, _ = env.step([messages[-1]])
        messages += answers
        seen, done = answers[0]["content"], terminated or truncated
    env.close()
    return messages[:-1], env.tools


def make(directory: Path, recipe: Recipe, episodes: int) -> None:
    """Train the nano player and write it to `directory` as a Hugging Face checkpoint."""
    rng = random.Random(recipe.seed)  # noqa: S311
    shown = [demonstration(game, rng) for _ in range(episodes // len(GAMES)) for game in GAMES]
    frames = [SYSTEM_FRAME + json.dumps(tools) + json.dumps(messages[:2]) for messages, tools in shown[:200]]
    tokenizer = build_tokenizer(iter(frames))
    renderer = create_renderer(tokenizer, Qwen3RendererConfig(thinking_retention="all"))
    model = build_model(recipe.seed, len(tokenizer))
    fit(model, [encode(renderer, messages, tools) for messages, tools in shown], recipe, rng)
    write(directory, model, tokenizer)


def main() -> None:
    """Run the command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m recipes.nano_player", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--episodes", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    make(args.directory, Recipe(steps=args.steps, seed=args.seed), args.episodes)


if __name__ == "__main__":
    main()
