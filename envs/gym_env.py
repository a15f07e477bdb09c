"""Any gymnasium environment, played by a model: observations become text or pictures, actions are calls of one tool.

env = episode.env("FrozenLake-v1", is_slippery=False)                     # is enough
env = episode.env("agentrl/Gym-v0", env="Taxi-v4", max_turns=40)          # with a say in how it is played
"""

from __future__ import annotations

import base64
import inspect
import io
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id

from agentrl.envs.space_types import element_of, is_image, shown, type_of
from agentrl.envs.tool_env import Content, Message, Result, Step, ToolEnv
from agentrl.envs.tools import Tool, typed_tool
from agentrl.errors import ToolCallError, ToolDefinitionError, WorkflowError
from agentrl.system.imports import load_object

ACTION_NAMES: Mapping[str, Sequence[str]] = {
    "Blackjack": ("stick", "hit"),
    "CartPole": ("left", "right"),
    "CliffWalking": ("up", "right", "down", "left"),
    "FrozenLake": ("left", "down", "right", "up"),
    "FrozenLake8x8": ("left", "down", "right", "up"),
    "MountainCar": ("left", "none", "right"),
    "Taxi": ("south", "north", "east", "west", "pick up", "drop off"),
}
"""What gymnasium's documentation calls the actions that its environments number."""
_LAST_SECTIONS = re.compile(
    r"^ *#+ (Starting State|Episode End|Arguments|References|Version History|Information)", re.M
)
MAX_INSTRUCTIONS_CHARS = 4_000
_HIGHLIGHTED = re.compile(r"\x1b\[4\d[^m]*m(.)\x1b\[0m")
_ESCAPE = re.compile(r"\x1b\[[\d;]*m")


class GymEnv(ToolEnv):
    """A gymnasium environment as a tool environment with the tool `act`.

    Args:
        env: the environment, or its name, as `maker_of` takes it.
        make: arguments for the making of one that is named.
        instructions: what the model is told first. Default: what the environment's documentation says of it.
        action_names: names of a Discrete space's actions. Default: those of the documentation, for gymnasium's own.
        max_turns: bound of the model's messages, beside the environment's own time limit.

    The observation is what the space says: numbers as JSON, text as text, a picture as a picture. With
    `render_mode="ansi"` or `"rgb_array"` it is the rendering instead. A reply without a call gets a reminder, and
    counts as a failed call.
    """

    refusals = (ToolCallError,)

    def __init__(
        self,
        env: gymnasium.Env[Any, Any] | str,
        *,
        make: Mapping[str, Any] | None = None,
        instructions: str | None = None,
        action_names: Sequence[str] | None = None,
        max_turns: int = 100,
    ) -> None:
        self.inner: gymnasium.Env[Any, Any] = maker_of(env)(**(make or {})) if isinstance(env, str) else env
        self.max_turns = max_turns
        name = self.inner.spec.name if self.inner.spec else ""
        self._names = action_names
        if action_names is not None and len(set(action_names)) != getattr(self.inner.action_space, "n", 0):
            raise ToolDefinitionError(
                f"action_names = {list(action_names)}: name each action of {self.inner.action_space} once"
            )
        if action_names is None and isinstance(self.inner.action_space, spaces.Discrete):
            self._names = ACTION_NAMES.get(name)
        self._instructions = _documentation(self.inner.unwrapped) if instructions is None else instructions

    @cached_property
    def toolset(self) -> Sequence[Tool]:
        """The one tool."""
        action = type_of(self.inner.action_space, self._names)
        return [typed_tool("act", "Take an action.", {"action": (action, ...)}, self._act)]

    def on_reset(self, task: dict[str, Any] | None) -> Any:
        """Return the instructions, and the first observation.

        Raises:
            ToolDefinitionError: The environment's `reset` takes no seed or no options.
        """
        try:
            inspect.signature(self.inner.unwrapped.reset).bind(seed=0, options=None)
        except TypeError as error:
            raise ToolDefinitionError(
                f"{type(self.inner.unwrapped).__name__}.reset: {error}; write `def reset(self, *, seed=None, options=None)`"
            ) from None
        self._cut_off = False
        observation, info = self.inner.reset(seed=int(self.np_random.integers(2**31)), options=task)
        self._note(info)
        seen = self._seen(observation)
        lead = self._instructions + "\n\n" if self._instructions else ""
        if isinstance(seen, str):
            return [{"role": "user", "content": lead + seen}]
        return [{"role": "user", "content": [{"type": "text", "text": lead}, *seen] if lead else seen}]

    def on_answer(self, content: str) -> Result:
        """Return a reply without an action."""
        self.info["failed_calls"] += 1
        return Result("Call the tool act to take an action.")

    def _act(self, action: Any) -> Result:
        space = self.inner.action_space
        if self._names and isinstance(space, spaces.Discrete):
            action = int(space.start) + list(self._names).index(action)
        observation, reward, terminated, truncated, info = self.inner.step(element_of(space, action))
        self._note(info)
        self._cut_off = bool(truncated) and not terminated
        return Result(self._seen(observation), reward, bool(terminated or truncated))  # type: ignore[arg-type] # it takes every number

    async def astep(self, action: Sequence[Message]) -> Step:
        """Take a step, which is truncated where that of the environment within is."""
        messages, reward, terminated, truncated, info = await super().astep(action)
        return messages, reward, terminated and not self._cut_off, truncated or self._cut_off, info

    def close(self) -> None:
        """Close the environment within."""
        super().close()
        self.inner.close()

    def _note(self, info: Mapping[str, Any]) -> None:
        numbers = {name: value for name, value in info.items() if isinstance(value, int | float | np.number)}
        self.info |= {name: float(value) for name, value in numbers.items()}

    def _seen(self, observation: Any) -> Content:
        if self.inner.render_mode == "ansi":
            return plain_text(str(self.inner.render()))
        if self.inner.render_mode == "rgb_array":
            return [picture(np.asarray(self.inner.render()))]
        if is_image(self.inner.observation_space):
            return [picture(np.asarray(observation))]
        return shown(observation)


def maker_of(name: str) -> Callable[..., gymnasium.Env[Any, Any]]:
    """Return what makes the environment of a name: an id of gymnasium's registry, `ID` or `MODULE:ID`, or `FILE.py:CLASS`.

    Raises:
        WorkflowError: There is no such id, the file cannot be imported, or has no such class.
    """
    source, _, env_id = name.rpartition(":")
    try:
        if source.endswith(".py"):
            return load_object(name)  # type: ignore[no-any-return]
        if source:
            import_module(source)
        namespace, kind, version = parse_env_id(env_id)
        newest = find_highest_version(namespace, kind) if version is None else version
        gymnasium.spec(get_env_id(namespace, kind, newest))
    except (gymnasium.error.Error, AttributeError, ImportError, WorkflowError) as error:
        raise WorkflowError(f"env = {name!r} cannot be loaded: {error}") from error
    return partial(gymnasium.make, name)


def picture(pixels: np.ndarray[Any, Any]) -> dict[str, Any]:
    """[H, W] or [H, W, 3] uint8 as a part of a message. Needs pillow."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def plain_text(rendered: str) -> str:
    """Return a rendering for terminals as plain text: what is highlighted stands in [brackets]."""
    return _ESCAPE.sub("", _HIGHLIGHTED.sub(r"[\1]", rendered)).strip("\n")


def _documentation(env: gymnasium.Env[Any, Any]) -> str:
    """Return what the environment's docstring says before it comes to its constructor."""
    text = inspect.cleandoc(type(env).__doc__ or "")
    end = _LAST_SECTIONS.search(text)
    return (text[: end.start()] if end else text)[:MAX_INSTRUCTIONS_CHARS].strip()
