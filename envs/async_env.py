"""The async face of a tool environment: what `episode.env(id)` returns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import anyio
import anyio.to_thread
import gymnasium
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from openai import omit

from agentrl.concurrency.resources import Resources
from agentrl.envs.gym_env import GymEnv
from agentrl.envs.tool_env import THREADS, Message, ToolEnv
from agentrl.errors import EpisodeError

CLOSE_TIMEOUT_S = 10.0
_QUICK_WRAPPERS = (OrderEnforcing, PassiveEnvChecker, TimeLimit)


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

    `env` may be any gymnasium environment, or a function that makes one; it is made by the first `reset`. One that is no
    `ToolEnv` is played through a `GymEnv`. Its blocking code runs in worker threads.

    Attributes:
        messages: the conversation so far.
        done: whether the episode is over; truncated: whether that was for its length.
        total_reward: the sum of the rewards of all steps.
        info: gymnasium's `info` of the last step.
        failed_calls: tool calls of the last step that could not be carried out.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any] | Callable[[], gymnasium.Env[Any, Any]], resources: Resources | None = None
    ) -> None:
        self._make = (lambda: env) if isinstance(env, gymnasium.Env) else env
        self._resources = resources
        self._env: gymnasium.Env[Any, Any] | None = None
        # Any: openai types each role's message on its own.
        self.messages: list[Any] = []
        self.done = False
        self.truncated = False
        self.total_reward = 0.0
        self.info: dict[str, Any] = {}
        self.failed_calls = 0

    @property
    def env(self) -> gymnasium.Env[Any, Any]:
        """The gymnasium environment. Raises EpisodeError before the first reset."""
        if self._env is None:
            raise EpisodeError("the environment is not there yet; `await env.reset(...)` comes first")
        return self._env

    @property
    def tool_env(self) -> ToolEnv:
        """The environment under gymnasium's wrappers."""
        inner = self.env.unwrapped
        assert isinstance(inner, ToolEnv)
        return inner

    @property
    def tools(self) -> Any:
        """What to pass as `tools` to OpenAI's API, which takes no empty list. Raises EpisodeError before the first reset."""
        return self.tool_env.tools or omit

    async def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start an episode; `messages` then holds the opening conversation."""
        if self._env is None:
            made = await _made(self._make)
            self._env = made if isinstance(made.unwrapped, ToolEnv) else GymEnv(made)
            self.tool_env.resources = self._resources
        opened = await self.tool_env.open(seed=seed, options=options)
        with self.tool_env.prepared((seed, options), opened):
            observation, self.info = await self._through_wrappers(partial(self._env.reset, seed=seed, options=options))
        self.messages = list(observation)
        self.done = self.truncated = False
        self.total_reward, self.failed_calls = 0.0, 0

    async def step(self, message: Message | _DumpsToDict) -> float:
        """Play one assistant message (a dict, or the `message` of an openai reply); returns this step's reward."""
        action = message if isinstance(message, dict) else message.model_dump(exclude_none=True)
        self.messages.append(action)
        failed_before = self.info.get("failed_calls", 0)
        played = await self.tool_env.play([action])
        with self.tool_env.prepared([action], played):
            observation, reward, terminated, truncated, self.info = await self._through_wrappers(
                partial(self.env.step, [action])
            )
        self.failed_calls = self.info.get("failed_calls", 0) - failed_before
        self.messages.extend(observation)
        self.truncated = bool(truncated) and not terminated
        self.done = bool(terminated or truncated)
        self.total_reward += float(reward)
        return float(reward)

    async def _through_wrappers(self, call: Callable[[], Any]) -> Any:
        """Hand what the environment made to its wrappers: in a thread, unless they are but those of `gymnasium.make`."""
        env = self.env
        while isinstance(env, _QUICK_WRAPPERS):
            env = env.env
        if isinstance(env, ToolEnv):
            return call()
        return await anyio.to_thread.run_sync(call, limiter=THREADS)

    async def close(self) -> None:
        """Release what the environment holds."""
        if self._env is None:
            return
        env, inner = self._env, self.tool_env
        self._env = None
        with suppress(TimeoutError), anyio.fail_after(CLOSE_TIMEOUT_S):
            await inner.release()
            await anyio.to_thread.run_sync(env.close, abandon_on_cancel=True, limiter=THREADS)


def make_async_env(
    resources: Resources, env: str | Callable[..., gymnasium.Env[Any, Any]], /, **kwargs: Any
) -> AsyncToolEnv:
    """Return the async face of an environment, by its id in gymnasium's registry or its class. `kwargs` are for the making of it."""
    return AsyncToolEnv(
        partial(gymnasium.make, env, **kwargs) if isinstance(env, str) else partial(env, **kwargs), resources
    )


async def _made(make: Callable[[], gymnasium.Env[Any, Any]]) -> gymnasium.Env[Any, Any]:
    """What `make` makes, in a thread. One that is there only after the wait for it was cancelled is closed there and then."""
    lock = threading.Lock()
    made: list[gymnasium.Env[Any, Any]] = []
    abandoned = False

    def run() -> None:
        env = make()
        with lock:
            made.append(env)
            if not abandoned:
                return
        env.close()

    try:
        await anyio.to_thread.run_sync(run, abandon_on_cancel=True, limiter=THREADS)
    except BaseException:
        with lock:
            abandoned = True
            late = list(made)
        for env in late:  # it was there in the moment of the cancellation
            with anyio.CancelScope(shield=True), suppress(TimeoutError), anyio.fail_after(CLOSE_TIMEOUT_S):
                await anyio.to_thread.run_sync(env.close, abandon_on_cancel=True, limiter=THREADS)
        raise
    return made[0]
