"""One model plays a game against itself: a role for each seat, rewards +1 and -1.

A task names the game, `FILE_OR_MODULE:CLASS` ("agentrl.workflows.self_play:Nim" without one), with "options" for its
constructor; it has the methods of `Game`. Every seat is compared with the same seat in the other episodes of the group
(docs/credit.md).
"""

from __future__ import annotations

import inspect
import re
from typing import Annotated, Any, Protocol, Self

from anyio.to_thread import run_sync as in_thread
from pydantic import BaseModel, Field, model_validator

from agentrl import Episode, Reward
from agentrl.errors import WorkflowError, one_line
from agentrl.rollout.workflow import load_object

NIM = "agentrl.workflows.self_play:Nim"
SEATS = ("first", "second")
MAX_MOVES = 64


class Game(Protocol):
    """A game for two, in turns, whose loser loses what the winner wins."""

    def prompt(self) -> str:
        """Return what the player to move is told."""
        ...

    def play(self, text: str) -> float | None:
        """Carry out a reply. What the player who moved earns if the game is over, from -1 to 1; else None."""
        ...


class Nim:
    """Take 1 to 3 stones; who takes the last one wins. A reply without a legal number loses."""

    def __init__(self, stones: int = 10) -> None:
        self.stones = stones

    def prompt(self) -> str:
        """Return the number of stones."""
        return f"There are {self.stones} stones. Take 1, 2 or 3; who takes the last one wins. Say how many you take."

    def play(self, text: str) -> float | None:
        """Take the first number in the reply."""
        number = re.search(r"\d+", text)
        taken = int(number.group()[:3]) if number else 0
        if not 1 <= taken <= min(3, self.stones):
            return -1.0
        self.stones -= taken
        return None if self.stones else 1.0


class GameTask(BaseModel):
    """What a line of the task file needs. It may have more."""

    game: str = NIM
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _can_be_made(self) -> Self:
        game = _class_of(self.game)
        try:
            inspect.signature(game).bind(**self.options)
        except TypeError as error:
            raise ValueError(
                f"options = {one_line(repr(self.options), 80)} are not what {self.game} takes, {inspect.signature(game)}: {error}"
            ) from error
        return self


async def run(episode: Episode[Annotated[dict[str, Any], GameTask]]) -> Reward:
    """Return what the first player earned."""
    task = episode.task
    game = await in_thread(_game, task.get("game", NIM), task.get("options", {}))
    seats = [episode.role(name) for name in SEATS]
    talks: list[list[Any]] = [[], []]
    result, moves = None, 0
    while result is None and moves < MAX_MOVES:
        mover = moves % 2
        seat, talk = seats[mover], talks[mover]
        talk.append({"role": "user", "content": game.prompt()})
        reply = await seat.client.chat.completions.create(model=seat.model, messages=talk)
        talk.append(reply.choices[0].message.model_dump(exclude_none=True))
        result, moves = game.play(reply.choices[0].message.content or ""), moves + 1
    won_by_first = (result or 0.0) * (1 if moves % 2 else -1)
    for seat, sign in zip(seats, (1, -1), strict=True):
        seat.reward(sign * won_by_first)
    return Reward(won_by_first, {"moves": float(moves)})


def _game(name: str, options: dict[str, Any]) -> Game:
    game: Game = _class_of(name)(**options)
    return game


def _class_of(name: str) -> Any:
    """Return the class of a game.

    Raises:
        ValueError: There is none of that name, or it is no game.
    """
    if ":" not in name:
        raise ValueError(f"game = {name!r} names no class; write FILE_OR_MODULE:CLASS")
    try:
        found = load_object(name)
    except (ImportError, AttributeError, WorkflowError) as error:
        raise ValueError(f"game = {name!r} cannot be loaded: {one_line(error)}; name a class that is there") from error
    lacking = [method for method in ("prompt", "play") if not callable(getattr(found, method, None))]
    if lacking or not callable(found):
        raise ValueError(
            f"game = {name!r} is no class of a game: it needs the methods prompt and play, as `Game` has them"
        )
    return found
