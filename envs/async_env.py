"""The async face of a `ToolEnv`: what `episode.env(id)` returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

import anyio.to_thread
import gymnasium

from agentrl.envs.tool_env import Message, ToolEnv


async def _in_thread(call: Callable[[], Any]) -> Any:
    # Abandoned when the episode times out: an environment that hangs holds up its own thread and nothing else.
    return await anyio.to_thread.run_sync(call, abandon_on_cancel=True)


class _DumpsToDict(Protocol):
    def model_dump(self, *, exclude_none: bool) -> dict[str, Any]: ...


class AsyncToolEnv:
    """A tool environment as a workflow uses it: reset, then step with each of the model's messages until `done`.

        env = episode.env("agentrl/Calculator-v0")
        await env.reset(seed=episode.seed, options=episode.task)
        while not env.done:
            reply = await episode.client.chat.completions.create(
                model=episode.model, messages=env.messages, tools=env.tools)
            await env.step(reply.choices[0].message)
        return env.total_reward

    The environment's own code runs in a worker thread, so it may block.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.env = env
        # Any: openai types each role's message on its own.
        self.messages: list[Any] = []
        self.tools: list[Any] = list(cast(ToolEnv, env.unwrapped).tools)
        self.done = False
        self.total_reward = 0.0

    async def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start an episode; `messages` then holds the opening conversation."""
        observation, _ = await _in_thread(lambda: self.env.reset(seed=seed, options=options))
        self.messages = list(observation)
        self.done = False
        self.total_reward = 0.0

    async def step(self, message: Message | _DumpsToDict) -> float:
        """Play one assistant message (a dict, or the `message` of an openai reply); returns this step's reward."""
        action = message if isinstance(message, dict) else message.model_dump(exclude_none=True)
        self.messages.append(action)
        observation, reward, terminated, truncated, _ = await _in_thread(lambda: self.env.step([action]))
        self.messages.extend(observation)
        self.done = bool(terminated or truncated)
        self.total_reward += float(reward)
        return float(reward)

    def close(self) -> None:
        """Release what the environment holds."""
        self.env.close()
