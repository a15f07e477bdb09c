"""The async face of a tool environment: what `episode.env(id)` returns."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import anyio
import gymnasium

from agentrl.envs.gym_env import GymEnv, maker_of
from agentrl.envs.tool_env import Message, ToolEnv, in_env_thread
from agentrl.errors import EpisodeError
from agentrl.reward import MAX_REWARD, checked_number
from agentrl.system.tasks import Resources

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion, ChatCompletionMessage

    from agentrl.episode import Episode

CLOSE_TIMEOUT_S = 10.0
AnyEnv = gymnasium.Env[Any, Any]
_PLAYED: WeakSet[AnyEnv] = WeakSet()
"""The environments of episodes, none of which may be another's too."""


class AsyncToolEnv:
    """A tool environment as a workflow uses it: reset, then step with each of the model's messages until `done`.

        env = episode.env("agentrl/Calculator-v0")
        await env.reset(seed=episode.group_seed, options=episode.task)
        while not env.done:
            reply = await episode.client.chat.completions.create(
                model=episode.model, messages=env.messages, tools=env.tools)
            await env.step(reply.choices[0].message)
        return env.total_reward

    `await env.play(episode)` is all of it but the first line.

    The first `reset` makes it. One that is no `ToolEnv` is played through a `GymEnv`. Its blocking code runs in worker
    threads, as do gymnasium's wrappers around a `ToolEnv`.

    Args:
        env: Its name, as `maker_of` takes it, its class, a function that makes it, or the environment.
        resources: The things that the run keeps open.
        kwargs: Arguments for the making of it.

    Raises:
        EpisodeError: There are arguments for an environment that is made.

    Attributes:
        messages: the conversation so far.
        done: whether the episode is over; truncated: whether that was for its length.
        total_reward: the sum of the rewards of all steps.
        info: gymnasium's `info` of the last step.
        failed_calls: tool calls of the last step that could not be carried out.
    """

    def __init__(
        self, env: str | AnyEnv | Callable[..., AnyEnv], /, *, resources: Resources | None = None, **kwargs: Any
    ) -> None:
        if isinstance(env, gymnasium.Env) and kwargs:
            raise EpisodeError(
                f"{', '.join(kwargs)} would make an environment, and {env} is made; bound turns by env.play(episode, max_turns=...)"
            )
        self._make = partial(_make, env, kwargs)
        self._resources = resources
        self._env: AnyEnv | None = None
        # Any: openai types each role's message on its own.
        self.messages: list[Any] = []
        self.done = False
        self.truncated = False
        self.total_reward = 0.0
        self.info: dict[str, Any] = {}
        self.failed_calls = 0

    @property
    def env(self) -> AnyEnv:
        """The gymnasium environment.

        Raises:
            EpisodeError: Before the first reset.
        """
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
        """The value to pass as `tools` to OpenAI's API, which takes no empty list.

        Raises:
            EpisodeError: Before the first reset.
        """
        from openai import omit  # whose import takes a second, and which who writes task files does not need

        return self.tool_env.tools or omit

    async def reset(self, seed: int | None = None, options: Any = None) -> None:
        """Start an episode; `messages` then holds the opening conversation.

        Args:
            seed: Seeds the environment's random numbers.
            options: The task, as `ToolEnv.on_reset` takes it.

        Raises:
            EpisodeError: The environment was made before, and another episode plays it.
        """
        if self._env is None:
            made = await _made(self._make)
            if made.unwrapped in _PLAYED:
                raise EpisodeError(
                    "this environment is played in another episode; give episode.env(...) what makes one"
                )
            _PLAYED.add(made.unwrapped)
            self._played = made.unwrapped
            self._env = made if isinstance(made.unwrapped, ToolEnv) else GymEnv(made)
            self.tool_env.resources = self._resources
        if isinstance(self._env, ToolEnv):
            observation, self.info = await self._env.areset(seed=seed, options=options)
        else:
            observation, self.info = await in_env_thread(partial(self._env.reset, seed=seed, options=options))
        self.messages = list(observation)
        self.done = self.truncated = False
        self.total_reward, self.failed_calls = 0.0, 0

    async def step(self, message: Message | ChatCompletionMessage) -> float:
        """Play one assistant message, and return this step's reward.

        Args:
            message: A dict, or the `message` of an openai reply.

        Raises:
            EpisodeError: The environment has not been reset, or the episode is over.
        """
        env = self.env
        if self.done:
            raise EpisodeError("the episode of this environment is over; `await env.reset(...)` starts the next")
        action = message if isinstance(message, dict) else message.model_dump(exclude_none=True)
        self.messages.append(action)
        failed_before = self.info.get("failed_calls", 0)
        stepped = env.astep([action]) if isinstance(env, ToolEnv) else in_env_thread(partial(env.step, [action]))
        observation, reward, terminated, truncated, self.info = await stepped
        self.failed_calls = self.info.get("failed_calls", 0) - failed_before
        self.messages.extend(observation)
        self.truncated = bool(truncated) and not terminated
        self.done = bool(terminated or truncated)
        earned = checked_number("the reward of step", reward, MAX_REWARD)
        self.total_reward += earned
        return earned

    async def play(self, episode: Episode[Any], *, max_turns: int | None = None, turn_rewards: bool = False) -> float:
        """Play the episode's model in this environment until it is done, and return the total reward.

        An environment that was not reset yet is reset with `episode.group_seed` and `episode.task`. A reply whose tool call
        could not be carried out is marked as failed (`trainer.turns.failed`). A conversation that outgrows the model's context is
        truncated, and its last reply marked as such (`trainer.turns.truncated`). The episode's metrics become `turns`,
        `failed_turns`, `truncated`, and what is a finite float in the environment's `info`.

        Args:
            episode: Whose model plays.
            max_turns: Replies after which the episode is truncated; the environment may have bounds of its own.
            turn_rewards: Give every reply the reward of its own step, for `trainer.advantage.discount`.

        Raises:
            openai.BadRequestError: The opening alone is longer than the context.
        """
        if self._env is None:
            await self.reset(seed=episode.group_seed, options=episode.task)
        from openai import BadRequestError  # loaded long ago, by who made the client

        turns = failed = 0
        reply: ChatCompletion | None = None
        while not self.done:
            if max_turns is not None and turns >= max_turns:
                self.done = self.truncated = True
                break
            try:
                # `create` copies messages by their types, half of the CPU of a call; an extra body is sent as it is.
                body = {"messages": self.messages, **({"tools": tools} if (tools := self.tool_env.tools) else {})}
                reply = await episode.client.chat.completions.create(model=episode.model, messages=[], extra_body=body)
            except BadRequestError as error:
                # Open servers elsewhere, whom an evaluation may ask, have OpenAI's words for it, and not the code.
                if reply is None or (error.code != "context_length_exceeded" and "context length" not in str(error)):
                    raise
                episode.mark_truncated(reply.id)
                self.done = self.truncated = True
                break
            reward = await self.step(reply.choices[0].message)
            turns += 1
            if self.failed_calls:
                failed += 1
                episode.mark_failed(reply.id)
            if turn_rewards:
                episode.reward(reply.id, reward)
        noted = {name: value for name, value in self.info.items() if isinstance(value, float) and math.isfinite(value)}
        episode.log(**{**noted, "turns": turns, "failed_turns": failed, "truncated": self.truncated})
        return self.total_reward

    async def close(self) -> None:
        """Give back what the environment holds. The next `reset` makes another."""
        if self._env is None:
            return
        env, self._env = self._env, None
        _PLAYED.discard(self._played)
        with suppress(TimeoutError), anyio.fail_after(CLOSE_TIMEOUT_S):
            await in_env_thread(env.close)


def _make(env: str | AnyEnv | Callable[..., AnyEnv], arguments: Mapping[str, Any]) -> AnyEnv:
    if isinstance(env, gymnasium.Env):
        return env
    return (maker_of(env) if isinstance(env, str) else env)(**arguments)


async def _made(make: Callable[[], AnyEnv]) -> AnyEnv:
    """Return what `make` makes, in a thread. One that comes after the wait for it was cancelled is closed.

    Raises:
        EpisodeError: It takes other arguments.
        TypeError: Its own code raises one.
    """
    abandoned = False

    def run() -> AnyEnv:
        known = len(sys.modules)
        env = make()
        if abandoned:
            env.close()
        if len(sys.modules) > known:
            gc.freeze()  # a search for garbage in what it imported, 0.3 s for reasoning-gym, would hold the event loop up
        return env

    try:
        return await in_env_thread(run)  # type: ignore[no-any-return]
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise EpisodeError(
            f'{error}; what follows the environment in episode.env(...), and "make" of a task, are arguments of its class, which agentrl/Gym-v0 takes as make={{...}}; '
            "max_turns is one of env.play(episode, max_turns=...), or an attribute of a ToolEnv's class"
        ) from error
    finally:
        abandoned = True
