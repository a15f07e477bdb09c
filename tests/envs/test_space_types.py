"""Spaces as types: every element survives the way to a model and back."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from agentrl.envs.space_types import element_of, is_image, shown, type_of
from agentrl.envs.tools import typed_tool
from agentrl.errors import ToolCallError, ToolDefinitionError

LEAVES = st.one_of(
    st.builds(spaces.Discrete, st.integers(1, 9), start=st.integers(-3, 3)),
    st.builds(lambda n: spaces.Box(-2, 2, (n,), np.float32), st.integers(1, 4)),
    st.builds(lambda n: spaces.Box(-9, 9, (2, n), np.int64), st.integers(1, 3)),
    st.just(spaces.Box(-np.inf, np.inf, (), np.float64)),
    st.builds(
        lambda n: spaces.MultiDiscrete(n, start=[2] * len(n)), st.lists(st.integers(1, 5), min_size=1, max_size=4)
    ),
    st.builds(spaces.MultiBinary, st.integers(1, 5)),
    st.builds(lambda n: spaces.Text(n), st.integers(1, 12)),
)
SPACES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(spaces.Tuple, st.lists(inner, min_size=1, max_size=3)),
        st.builds(spaces.Dict, st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, min_size=1, max_size=3)),
    ),
    max_leaves=5,
)


def plain(element: Any) -> Any:
    """An element as a model with full precision would write it."""
    match element:
        case np.ndarray() | np.generic():
            return element.tolist()
        case dict():
            return {name: plain(part) for name, part in element.items()}
        case tuple():
            return [plain(part) for part in element]
    return element


def read(space: spaces.Space[Any], value: Any) -> Any:
    """The element that a model's JSON stands for, read as the tool `act` reads it."""
    arguments = typed_tool("act", "", {"action": (type_of(space), ...)}, print).arguments(json.dumps({"action": value}))
    return element_of(space, arguments["action"])


@given(SPACES, st.integers(0, 2**31))
def test_an_element_written_as_json_is_that_element(space: spaces.Space[Any], seed: int) -> None:
    space.seed(seed)
    element = space.sample()
    jsonschema.validate(json.loads(json.dumps(plain(element))), TypeAdapter(type_of(space)).json_schema())
    found = read(space, plain(element))
    assert space.contains(found)
    assert data_equivalence(plain(found), plain(element))
    assert isinstance(shown(element), str)


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (spaces.Discrete(4), 4),
        (spaces.Discrete(4), "left"),
        (spaces.Discrete(4), 1.5),
        (spaces.Discrete(4), float("inf")),
        (spaces.Box(-1, 1, (2,)), [0, 2]),
        (spaces.Box(-1, 1, (2,)), [0]),
        (spaces.Box(-1, 1, (2,)), "01"),
        (spaces.Box(np.array([0, -9]), np.array([1, 9])), [2, 2]),
        (spaces.Box(0, 9, (1,), np.int32), [1.5]),
        (spaces.MultiDiscrete([2, 3]), [2, 1]),
        (spaces.Text(3), "long text"),
        (spaces.Text(3), "?"),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"b": 1}),
        (spaces.Tuple([spaces.Discrete(2)]), [1, 1]),
    ],
)
def test_a_value_outside_the_space_is_refused(space: spaces.Space[Any], value: Any) -> None:
    with pytest.raises(ToolCallError, match="action"):
        read(space, value)


def test_a_bound_of_float32_is_the_number_that_it_was_made_from() -> None:
    space = spaces.Box(-0.7, 0.7, (1,), np.float32)
    assert TypeAdapter(type_of(space)).json_schema()["items"]["maximum"] == 0.7
    assert space.contains(read(space, [0.7]))


def test_numbers_are_shown_short_and_text_as_it_is() -> None:
    assert (
        shown({"at": np.array([0.123456, -1], np.float32), "n": (np.int64(3),)}) == '{"at": [0.1235, -1.0], "n": [3]}'
    )
    assert shown("hello") == "hello"
    assert is_image(spaces.Box(0, 255, (8, 8, 3), np.uint8))
    assert not is_image(spaces.Box(0, 255, (8,), np.uint8))


def test_a_space_without_a_form_says_so() -> None:
    with pytest.raises(ToolDefinitionError, match="Graph has no form in JSON"):
        type_of(spaces.Graph(spaces.Discrete(2), None))
