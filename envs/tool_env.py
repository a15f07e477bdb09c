"""`ToolEnv`: a `gymnasium.Env` whose actions are assistant messages, with tool calls, and whose observations are messages.

reset(seed, options=task) ─► [user message]            the conversation so far
step([assistant message]) ─► [tool message, ...], reward, terminated, truncated, info

`areset`, `astep` and `aclose` are the same on an event loop: nothing waits in a thread there but code that blocks.
"""

from __future__ import annotations

import atexit
import inspect
import json
import logging
import math
import re
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import gymnasium
from gymnasium import spaces

from agentrl.envs.tools import Tool, tools_of
from agentrl.errors import EpisodeError, ToolCallError, ToolDefinitionError, one_line
from agentrl.reward import MAX_REWARD, checked_number
from agentrl.system import traces
from agentrl.system.failure_text import place_of, storable
from agentrl.system.tasks import Resources

_log = logging.getLogger(__name__)

Message = dict[str, Any]
"""One chat message in OpenAI's form: `{"role": ..., "content": ..., "tool_calls": [...]}`."""
ROLES = ("system", "user", "assistant", "tool")
Content = str | list[dict[str, Any]]
"""Text, or the parts of a message, such as `{"type": "image_url", ...}`."""

_THREADS = anyio.CapacityLimiter(math.inf)
"""Blocking code of environments: one thread each, so that none waits for another. Episodes bound their number."""


@dataclass(frozen=True)
class Result:
    """The result of a tool call, or of an answer: what the model reads, what it earned, whether the episode is over.

    The reward may be any number that `agentrl.Reward` takes. Raises BadRewardError for what is none.
    """

    content: Content = ""
    reward: float = 0.0
    done: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "reward", checked_number("the reward of a Result", self.reward, MAX_REWARD))


Step = tuple[list[Message], float, bool, bool, dict[str, Any]]
"""What gymnasium's `step` returns: observation, reward, terminated, truncated, info."""


class MessageSpace(spaces.Space[list[Message]]):
    """Lists of chat messages with text, parts or no content."""

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> list[Message]:
        """Return one message of an assistant, with a few random digits as its content."""
        return [{"role": "assistant", "content": str(self.np_random.integers(1000))}]

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a list of messages."""
        return isinstance(x, list) and all(
            isinstance(m, dict) and m.get("role") in ROLES and isinstance(m.get("content"), str | list | None)
            for m in x
        )


class ToolEnv(gymnasium.Env[list[Message], list[Message]]):
    """Base class of tool environments.

    A subclass marks its tools, and says how a reset opens the conversation and what an answer earns:

        class Lookup(ToolEnv):
            def on_reset(self, task):
                self.expected = task["answer"]
                return task["question"]

            @tool
            def lookup(self, word: str) -> str:
                '''Look a word up.'''
                return DICTIONARY[word]

            def on_answer(self, content):
                return float(content == self.expected)

    All of them may be `async def`. What is not runs in a worker thread and may block. A message without tool calls is the
    agent's answer and ends the episode, unless `on_answer` returns a `Result` that says otherwise; a tool may return one too.
    After `max_turns` messages the episode is truncated. The model is told of what is wrong with its call, and of what a tool
    raises that is one of `refusals`; `info["failed_calls"]` counts both. All else that is raised is the environment's own
    fault, and fails the episode.
    """

    refusals: tuple[type[Exception], ...] = (
        *(ToolCallError, ValueError, LookupError, ArithmeticError, SyntaxError, re.error),
        *(FileNotFoundError, IsADirectoryError, NotADirectoryError),
    )
    """The exceptions of a tool that a model's arguments may cause. Their text is for the model."""

    action_space = observation_space = MessageSpace()
    max_turns: int = 8
    tool_timeout_s: float = 60.0
    """Bound of one call. A tool that takes longer is given up, and the model told."""
    max_result_chars: int = 20_000
    """Longer results lose their middle."""
    info: dict[str, Any]
    """Goes out with every step; a reset empties it, and a subclass may add to it."""
    resources: Resources | None = None
    """Where to keep something open: the run's, in an episode."""
    _turn: int
    _blocked: str | None = None
    """The blocking code that was given up, and still runs."""

    def __init_subclass__(cls) -> None:
        """Refuse a method that an episode, which awaits `areset` and `astep`, would never call.

        Raises:
            ToolDefinitionError: The class has one.
        """
        super().__init_subclass__()
        if own := {"reset", "step"} & vars(cls).keys():
            raise ToolDefinitionError(
                f"{cls.__name__} defines {own.pop()}: define on_reset and tools, or wrap the environment"
            )

    @cached_property
    def toolset(self) -> Sequence[Tool]:
        """The tools; those that the subclass marks, unless it says otherwise."""
        return tools_of(self)

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools in the form that OpenAI's API takes."""
        return [tool.schema for tool in self.toolset]

    def on_reset(self, task: Any) -> Any:
        """Open the conversation of a task. It may be `async def`.

        Args:
            task: What `reset` was given as `options`. None asks for a random task, drawn with `self.np_random`.

        Returns:
            The user's text, or the messages.
        """
        raise NotImplementedError(f"{type(self).__name__} must define on_reset(task), which opens the conversation")

    def on_answer(self, content: str) -> Any:
        """Return the reward of the agent's answer, or a `Result`. It may be `async def`."""
        raise NotImplementedError(f"{type(self).__name__} must define on_answer(content), which returns the reward")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[list[Message], dict[str, Any]]:
        """Start an episode of the task in `options`, for code without an event loop."""
        return self._await(partial(self.areset, seed=seed, options=options))  # type: ignore[no-any-return]

    def step(self, action: list[Message]) -> Step:
        """Carry out the tool calls of one assistant message, or score it as the answer, for code without an event loop."""
        return self._await(partial(self.astep, action))  # type: ignore[no-any-return]

    def close(self) -> None:
        """Give back what `on_reset` took, for code without an event loop. A subclass overrides it for what blocks, and calls it."""
        self._await(self.aclose)

    async def areset(self, *, seed: int | None = None, options: Any = None) -> tuple[list[Message], dict[str, Any]]:
        """Start an episode of the task in `options`, on an event loop.

        Raises:
            EpisodeError: `on_reset` returned neither text nor messages.
        """
        super().reset(seed=seed)
        self._turn, self.info = 0, {"failed_calls": 0}
        opened = await self._do("on_reset", self.on_reset, options)
        if isinstance(opened, Mapping) or not isinstance(opened, Iterable):
            raise EpisodeError(
                f"{type(self).__name__}.on_reset returned {one_line(repr(opened), 200)} of type {type(opened).__name__}; return the "
                'text of the user, or a list of messages such as {"role": "user", "content": "..."}'
            )
        messages = [{"role": "user", "content": opened}] if isinstance(opened, str) else list(opened)
        return messages, dict(self.info)

    async def astep(self, action: Sequence[Message]) -> Step:
        """Carry out the tool calls of one assistant message, or score it as the answer, on an event loop."""
        message = action[0]
        self._turn += 1
        messages: list[Message] = []
        reward, terminated = 0.0, False
        calls = message.get("tool_calls") or []
        if not calls:
            result = self._scored(await self._do("on_answer", self.on_answer, message.get("content") or ""))
            if result.content:
                messages.append({"role": "user", "content": result.content})
            reward, terminated = result.reward, result.done
        for call in calls:
            result = Result("the episode is over") if terminated else await self._call(call["function"])
            content = result.content
            if isinstance(content, str):
                content = storable(content, self.max_result_chars)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
            reward += result.reward
            terminated |= result.done
        truncated = not terminated and self._turn >= self.max_turns
        return messages, reward, terminated, truncated, dict(self.info)

    async def aclose(self) -> None:
        """Give back what `on_reset` took, on an event loop. A subclass overrides it for what is awaited."""

    def _await(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Return what `call` does, for plain code: on the event loop that waits for this thread, or on one for all such code."""
        try:
            anyio.from_thread.check_cancelled()
        except RuntimeError:  # no event loop waits for it
            return _portal().call(call)
        return anyio.from_thread.run(call)

    async def _call(self, function: dict[str, Any]) -> Result:
        """Return the result of one call; what is wrong with it in words for the model. All else is raised with the tool's name."""
        name = str(function.get("name"))
        named = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, "gen_ai.tool.type": "function"}
        try:
            with traces.span(f"execute_tool {name}", named):
                return await self._result_of_call(name, function.get("arguments"))
        except self.refusals as error:
            if not isinstance(error, ToolCallError):
                frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
                _log_refusal(name, type(error).__name__, place_of(frames))
            self.info["failed_calls"] += 1
            return Result(f"error: {str(error) or type(error).__name__}")
        except Exception as error:
            error.add_note(f"This came out of the tool {name!r}; a ToolCallError would be told to the model.")
            raise

    async def _result_of_call(self, name: str, arguments: str | None) -> Result:
        """Return the result of one of the tools.

        Raises:
            ToolCallError: There is no such tool, the arguments are wrong, or it takes too long.
        """
        known = {tool.name: tool for tool in self.toolset}
        if name not in known:
            raise ToolCallError(f"no tool {name!r}; the tools are {', '.join(known)}")
        call = partial(known[name].run, **known[name].arguments(arguments))
        with anyio.move_on_after(self.tool_timeout_s):
            return _result(await self._do(name, call))
        raise ToolCallError(f"{name} took longer than {self.tool_timeout_s:g} s and was given up")

    async def _do(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run code of the subclass: on the event loop if it is async, else in a thread, which is left behind if it hangs.

        Raises:
            EpisodeError: The code called `sys.exit`.
            ToolCallError: Other code of it that hangs was given up, and still runs.
        """
        try:
            if inspect.iscoroutinefunction(function):
                return await function(*arguments)
            if self._blocked is not None:
                raise ToolCallError(f"{self._blocked} is still running")
            self._blocked = name
            done = await in_env_thread(self._call_blocking, function, *arguments)
            return await done if isinstance(done, Awaitable) else done
        except SystemExit as error:
            raise EpisodeError(f"{name} called sys.exit({error.code!r})") from error

    def _call_blocking(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        finally:
            self._blocked = None

    def _scored(self, returned: Any) -> Result:
        """Return what `on_answer` returned, a number or a `Result`, as a Result."""
        if isinstance(returned, Result):
            return returned
        name = f"the reward that {type(self).__name__}.on_answer returned"
        return Result(reward=checked_number(name, returned, MAX_REWARD), done=True)


async def in_env_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what an environment's blocking code does, in a thread of its own, which is left behind where it hangs."""
    return await anyio.to_thread.run_sync(function, *arguments, abandon_on_cancel=True, limiter=_THREADS)


@cache
def _portal() -> anyio.from_thread.BlockingPortal:
    """Return an event loop in a thread, for code that has none and steps an environment."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(anyio.from_thread.start_blocking_portal(name="agentrl environments"))


@cache
def _log_refusal(name: str, kind: str, place: str) -> None:
    """Log once for each place what only the model would read: it may be a fault of the environment's all the same."""
    _log.warning("The tool %s raised %s at %s, which is told to the model as a fault of its call.", name, kind, place)


def _result(returned: Any) -> Result:
    """Return what a tool returned, as a Result."""
    match returned:
        case Result():
            return returned
        case str() | [{"type": "text" | "image_url"}, *_]:
            return Result(returned)
    return Result(json.dumps(returned, default=str))
