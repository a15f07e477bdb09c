"""A real OpenEnv server for the tests: `python open_env_server.py PORT`."""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class Guess(Action):
    """Guess the number."""

    number: int = Field(description="From 1 to 100.")


class Hint(Observation):
    hint: str = ""


class Number(Environment[Guess, Hint, State]):
    """The number is the seed."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._number = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Hint:
        self._number = (seed or 0) % 100 + 1
        return Hint(hint="Guess a number from 1 to 100.", done=False, reward=0.0)

    def step(self, action: Guess, timeout_s: float | None = None, **_: Any) -> Hint:
        if action.number == self._number:
            return Hint(hint="right", done=True, reward=1.0)
        return Hint(hint="higher" if action.number < self._number else "lower", done=False, reward=-0.1)

    @property
    def state(self) -> State:
        return State(episode_id="x", step_count=0)


if __name__ == "__main__":
    app = create_fastapi_app(Number, Guess, Hint, max_concurrent_envs=8)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
