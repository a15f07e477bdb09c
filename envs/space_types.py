"""Gymnasium's spaces as Python types, so that an action is described to a model and checked as the arguments of any tool are.

    type_of(Discrete(4), ["left", "down", "right", "up"])   Literal["left", "down", "right", "up"]
    type_of(Box(-1, 1, (2,)))                               list of 2 floats from -1 to 1
    element_of(Box(-1, 1, (2,)), [0.5, -1])                 array([0.5, -1.], dtype=float32)
    shown(observation)                                      text

Discrete, Box, MultiDiscrete, MultiBinary, Text, Tuple and Dict, in each other as deep as one likes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from gymnasium import spaces
from pydantic import Field
from typing_extensions import TypedDict

from agentrl.errors import ToolCallError, ToolDefinitionError

DECIMALS = 4
"""Decimals of the numbers that a model reads."""


def type_of(space: spaces.Space[Any], names: Sequence[str] | None = None) -> Any:
    """Return the type of a space's elements as JSON gives them, with bounds that pydantic checks.

    Args:
        space: The space.
        names: Names of the elements of a Discrete space, from the first on, which stand for them.

    Raises:
        ToolDefinitionError: The space has no form in JSON.
    """
    match space:
        case spaces.Discrete() if names:
            return Literal[tuple(names)]
        case spaces.Discrete():
            return _between(int, space.start, space.start + space.n - 1)
        case spaces.Box():
            number = int if np.issubdtype(space.dtype, np.integer) else float
            bounded = np.isfinite(space.low).all() and np.isfinite(space.high).all()
            return _nested(space.shape, _between(number, space.low.min(), space.high.max()) if bounded else number)
        case spaces.MultiDiscrete():
            return _nested(space.shape, _between(int, space.start.min(), (space.start + space.nvec).max() - 1))
        case spaces.MultiBinary():
            return _nested(space.shape, _between(int, 0, 1))
        case spaces.Text():
            return Annotated[str, Field(min_length=space.min_length, max_length=space.max_length)]
        case spaces.Tuple():
            return tuple[tuple(type_of(part) for part in space.spaces)]  # type: ignore[misc]
        case spaces.Dict():
            return TypedDict("Parts", {name: type_of(part) for name, part in space.spaces.items()})  # type: ignore[operator]
    raise ToolDefinitionError(
        f"{type(space).__name__} has no form in JSON; wrap the environment to give it another space"
    )


def element_of(space: spaces.Space[Any], value: Any) -> Any:
    """Return the element that a value of `type_of(space)` stands for.

    Raises:
        ToolCallError: The space does not contain it, such as a number beyond the bound of its own in an array.
    """
    element = _element(space, value)
    if not space.contains(element):
        raise ToolCallError(f"action: {json.dumps(value)} is not in {space}")
    return element


def shown(observation: Any) -> str:
    """Return an observation as text: what is text stays as it is, all else is JSON with rounded numbers."""
    return observation if isinstance(observation, str) else json.dumps(_plain(observation))


def is_image(space: spaces.Space[Any]) -> bool:
    """Return whether the elements are RGB or grey pictures."""
    return (
        isinstance(space, spaces.Box)
        and space.dtype == np.uint8
        and len(space.shape) in (2, 3)
        and min(space.shape[:2]) > 3
    )


def _between(number: type[int] | type[float], low: Any, high: Any) -> Any:
    """Return the type of a number within bounds; those of float32 are read as the decimals that they were written as."""
    return Annotated[number, Field(ge=number(str(low)), le=number(str(high)))]


def _nested(shape: tuple[int, ...], item: Any) -> Any:
    for size in reversed(shape):
        item = Annotated[list[item], Field(min_length=size, max_length=size)]
    return item


def _element(space: spaces.Space[Any], value: Any) -> Any:
    match space:
        case spaces.Tuple():
            return tuple(_element(part, item) for part, item in zip(space.spaces, value, strict=True))
        case spaces.Dict():
            return {name: _element(part, value[name]) for name, part in space.spaces.items()}
    return space.from_jsonable([value])[0]


def _plain(value: Any) -> Any:
    match value:
        case np.ndarray() | np.generic():
            return _plain(value.tolist())
        case dict():
            return {str(name): _plain(part) for name, part in value.items()}
        case list() | tuple():
            return [_plain(part) for part in value]
        case float():
            return round(value, DECIMALS)
    return value
