"""`ToolEnv`: a `gymnasium.Env` whose actions are assistant messages, with tool calls, and whose observations are messages.

reset(seed, options=task) ─► [user message]            the conversation so far
step(assistant message)   ─► [tool message, ...], reward, terminated, truncated, info
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

Message = dict[str, Any]
"""One chat message in OpenAI's form: `{"role": ..., "content": ..., "tool_calls": [...]}`."""


class MessageSpace(spaces.Space[list[Message]]):
    """Lists of chat messages whose role is one of `roles`."""

    def __init__(self, *roles: str, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(seed=seed)
        self.roles = roles

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> list[Message]:
        """One message of a random role with a few random digits as its content."""
        role = self.roles[int(self.np_random.integers(len(self.roles)))]
        return [{"role": role, "content": str(self.np_random.integers(1000))}]

    def contains(self, x: Any) -> bool:
        """Whether `x` is a list of messages with the roles of this space and text (or no) content."""
        return isinstance(x, list) and all(
            isinstance(m, dict) and m.get("role") in self.roles and isinstance(m.get("content", ""), str | None)
            for m in x
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MessageSpace) and other.roles == self.roles

    def __hash__(self) -> int:
        return hash(self.roles)


class ToolEnv(gymnasium.Env[list[Message], list[Message]]):
    """Base class of tool environments. A subclass sets `tools` and defines `reset`, `call` and `answer`.

    An action is a list with one assistant message. Each of its tool calls is answered by `call`; a message without tool
    calls is the agent's answer, is scored by `answer`, and ends the episode. After `max_turns` messages the episode
    is truncated with reward 0.
    """

    tools: Sequence[dict[str, Any]]
    max_turns: int = 8

    def __init__(self) -> None:
        self.action_space = MessageSpace("assistant")
        self.observation_space = MessageSpace("user", "tool", "system")
        self._turn = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Start an episode of the task in `options`; `start` gives its first messages."""
        super().reset(seed=seed)
        self._turn = 0
        return self.start(options), {}

    def start(self, task: dict[str, Any] | None) -> list[Message]:
        """The messages that open the conversation of `task` (None: a random task, drawn with `self.np_random`)."""
        raise NotImplementedError

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """The result of tool `name` as text. An exception becomes a message that the model can act on."""
        raise NotImplementedError

    def answer(self, content: str) -> float:
        """The reward of the agent's final answer."""
        raise NotImplementedError

    def step(self, action: list[Message]) -> tuple[list[Message], float, bool, bool, dict[str, Any]]:
        """Answer the tool calls of one assistant message, or score it as the final answer."""
        message = action[0]
        self._turn += 1
        calls = message.get("tool_calls") or []
        if not calls:
            return [], self.answer(message.get("content") or ""), True, False, {}
        results: list[Message] = [
            {"role": "tool", "tool_call_id": call["id"], "content": self._call_safely(call["function"])}
            for call in calls
        ]
        return results, 0.0, False, self._turn >= self.max_turns, {}

    def _call_safely(self, function: dict[str, Any]) -> str:
        name = str(function.get("name"))
        known = [tool["function"]["name"] for tool in self.tools]
        if name not in known:
            return f"error: no tool {name!r}; the tools are {', '.join(known)}"
        try:
            arguments = json.loads(function.get("arguments") or "{}")
            if not isinstance(arguments, dict):
                return "error: the arguments must be a JSON object"
            return self.call(name, arguments)
        except Exception as error:
            return f"error: {error}"
