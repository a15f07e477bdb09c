"""From a typed function to the schema that a model reads, and from the model's JSON to a call."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from agentrl.envs import tool, tool_of
from agentrl.envs.tools import tools_of
from agentrl.errors import ToolCallError, ToolDefinitionError


class Place(BaseModel):
    city: str
    zip: int = 0


def search(query: str, limit: int = 5, kind: Literal["new", "old"] = "new", near: Place | None = None) -> str:
    """Find things.

    Only what is in stock.

    Args:
        query: What to look for.
        limit: At most so many.
    """
    return f"{query} {limit} {kind} {near}"


def test_the_schema_says_what_signature_and_docstring_say() -> None:
    schema = tool_of(search).schema
    assert schema["type"] == "function"
    function = schema["function"]
    assert function["name"] == "search"
    assert function["description"] == "Find things.\n\nOnly what is in stock."
    properties = function["parameters"]["properties"]
    assert function["parameters"]["required"] == ["query"]
    assert properties["query"] == {"description": "What to look for.", "type": "string"}
    assert properties["limit"] == {"default": 5, "description": "At most so many.", "type": "integer"}
    assert properties["kind"]["enum"] == ["new", "old"]
    assert function["parameters"]["$defs"]["Place"]["required"] == ["city"]
    json.dumps(schema)


def test_arguments_arrive_as_what_they_are_annotated_as() -> None:
    arguments = tool_of(search).arguments('{"query": "x", "limit": "7", "near": {"city": "Bonn"}}')
    assert arguments == {"query": "x", "limit": 7, "kind": "new", "near": Place(city="Bonn")}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("not json", "invalid JSON"),
        ("[1]", "input should be an object"),
        ("{}", "the field 'query' is missing"),
        (None, "the field 'query' is missing"),
        ('{"query": "x", "limit": "many"}', "the field 'limit': input should be a valid integer"),
        ('{"query": "x", "colour": 1}', "there is no field 'colour'; leave it out"),
        ('{"query": "x", "near": {"zip": 3}}', "the field 'near.city' is missing"),
        ('{"query": 3}', "the field 'query': input should be a valid string, not 3"),
    ],
)
def test_wrong_arguments_are_explained_in_few_words(text: str | None, complaint: str) -> None:
    with pytest.raises(ToolCallError) as refused:
        tool_of(search).arguments(text)
    assert complaint in str(refused.value)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("style", ["google", "numpy", "rest"])
def test_every_docstring_style_describes_the_parameters(style: str) -> None:
    texts = {
        "google": "Do.\n\nArgs:\n    x: How much.\n",
        "numpy": "Do.\n\nParameters\n----------\nx : int\n    How much.\n",
        "rest": "Do.\n\n:param x: How much.\n",
    }

    def do(x: int) -> int:
        return x

    do.__doc__ = texts[style]
    assert tool_of(do).schema["function"]["parameters"]["properties"]["x"]["description"] == "How much."


def test_a_constraint_of_pydantic_is_part_of_the_schema_and_is_checked() -> None:
    def dice(sides: Annotated[int, Field(ge=2, le=100)]) -> int:
        return sides

    made = tool_of(dice)
    assert made.schema["function"]["parameters"]["properties"]["sides"]["maximum"] == 100
    with pytest.raises(ToolCallError, match="greater than or equal to 2"):
        made.arguments('{"sides": 1}')


def test_a_function_that_cannot_be_a_tool_says_why() -> None:
    def untyped(x) -> None:  # type: ignore[no-untyped-def]
        pass

    def open_ended(*words: str) -> None:
        pass

    with pytest.raises(ToolDefinitionError, match="the parameter 'x' has no type; annotate it"):
        tool_of(untyped)
    with pytest.raises(ToolDefinitionError, match="'words' cannot be given by name"):
        tool_of(open_ended)


def test_a_default_that_json_cannot_say_is_refused() -> None:
    def wait(seconds: float = float("inf")) -> None:
        pass

    with pytest.raises(ToolDefinitionError, match="tool wait: JSON has no inf"):
        tool_of(wait)


def test_the_tools_of_a_class_come_in_its_order_and_can_be_overridden() -> None:
    class Base:
        @tool
        def second(self) -> str:
            return "base"

        @tool
        def first(self) -> str:
            return "first"

        def neither(self) -> str:
            return ""

    class Derived(Base):
        @tool
        def second(self) -> str:
            return "derived"

        first: Any = None

    assert [made.name for made in tools_of(Base())] == ["second", "first"]
    (made,) = tools_of(Derived())
    assert made.run() == "derived"
