"""Gymnasium's spaces as JSON: what a model is told about a space, the element that its JSON means, and an element for it to read.

    schema_of(Discrete(4), ["left", "down", "right", "up"])   {"type": "string", "enum": ["left", ...]}
    element_of(space, "down")                                 1
    shown(space, observation)                                 text

Discrete, Box, MultiDiscrete, MultiBinary, Text, Tuple and Dict, in each other as deep as one likes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from agentrl.errors import ToolCallError, ToolDefinitionError

DECIMALS = 4
"""Decimals of the numbers that a model reads."""
Names = Sequence[str] | None
"""What the elements of a Discrete space are called, from the first on."""


def schema_of(space: spaces.Space[Any], names: Names = None) -> dict[str, Any]:
    """Return the JSON schema of a space's elements.

    Raises:
        ToolDefinitionError: A space that JSON has no form for.
    """
    match space:
        case spaces.Discrete() if names:
            return {"type": "string", "enum": list(names)}
        case spaces.Discrete():
            return {"type": "integer", "minimum": int(space.start), "maximum": int(space.start + space.n) - 1}
        case spaces.Box():
            kind = "integer" if np.issubdtype(space.dtype, np.integer) else "number"
            item: dict[str, Any] = {"type": kind}
            if np.isfinite(space.low).all() and np.isfinite(space.high).all():
                item |= {"minimum": float(space.low.min()), "maximum": float(space.high.max())}
            return _arrays(space.shape, item)
        case spaces.MultiDiscrete():
            item = {"type": "integer", "minimum": 0, "maximum": int(space.nvec.max()) - 1}
            return _arrays(space.shape, item) | {"description": f"numbers below {json.dumps(space.nvec.tolist())}"}
        case spaces.MultiBinary():
            return _arrays(space.shape, {"type": "integer", "minimum": 0, "maximum": 1})
        case spaces.Text():
            return {"type": "string", "minLength": space.min_length, "maxLength": space.max_length}
        case spaces.Tuple():
            parts = [schema_of(part) for part in space.spaces]
            return {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
        case spaces.Dict():
            properties = {name: schema_of(part) for name, part in space.spaces.items()}
            return {"type": "object", "properties": properties, "required": list(properties)}
    raise ToolDefinitionError(
        f"{type(space).__name__} has no form in JSON; wrap the environment to give it another space"
    )


def element_of(space: spaces.Space[Any], value: Any, names: Names = None) -> Any:
    """Return the element that a JSON value means.

    Raises:
        ToolCallError: There is none; it says so in words for the model.
    """
    try:
        element = _element(space, value, names)
    except (TypeError, ValueError, KeyError, OverflowError):
        element = None
    if element is None or not space.contains(element):
        shown_value = json.dumps(value)[:80]
        raise ToolCallError(f"{shown_value} is not an action; it must fit {json.dumps(schema_of(space, names))}")
    return element


def shown(space: spaces.Space[Any], observation: Any) -> str:
    """Return an element as text: what is text stays as it is, all else is JSON with rounded numbers."""
    if isinstance(observation, str):
        return observation
    return json.dumps(_plain(observation))


def is_image(space: spaces.Space[Any]) -> bool:
    """Return whether the elements are RGB or grey pictures."""
    return (
        isinstance(space, spaces.Box)
        and space.dtype == np.uint8
        and len(space.shape) in (2, 3)
        and min(space.shape[:2]) > 3
    )


def _arrays(shape: tuple[int, ...], item: dict[str, Any]) -> dict[str, Any]:
    for size in reversed(shape):
        item = {"type": "array", "items": item, "minItems": size, "maxItems": size}
    return item


def _element(space: spaces.Space[Any], value: Any, names: Names) -> Any:
    match space:
        case spaces.Discrete() if names:
            return space.start + list(names).index(value)
        case spaces.Discrete():
            return np.int64(value) if _whole(value) else None
        case spaces.Box():
            return np.asarray(value, dtype=space.dtype) if _numbers(value, space.dtype) else None
        case spaces.MultiDiscrete() | spaces.MultiBinary():
            return np.asarray(value, dtype=space.dtype) if _numbers(value, space.dtype) else None
        case spaces.Tuple():
            return tuple(_element(part, item, None) for part, item in zip(space.spaces, value, strict=True))
        case spaces.Dict():
            if set(value) != set(space.spaces):
                return None
            return {name: _element(part, value[name], None) for name, part in space.spaces.items()}
    return value


def _whole(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)


def _numbers(value: Any, dtype: Any) -> bool:
    """Return whether every number survives the way into an array of that type."""
    return bool(np.array_equal(np.asarray(value, dtype=np.float64), np.asarray(value).astype(dtype))) or bool(
        np.issubdtype(dtype, np.floating) and np.asarray(value, dtype=np.float64).size
    )


def _plain(value: Any) -> Any:
    match value:
        case np.ndarray():
            return _plain(value.tolist())
        case np.generic():
            return _plain(value.item())
        case dict():
            return {str(name): _plain(part) for name, part in value.items()}
        case list() | tuple():
            return [_plain(part) for part in value]
        case float():
            return round(value, DECIMALS)
    return value
