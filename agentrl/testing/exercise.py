"""A script for any agent: it calls each tool that it is offered, rightly and wrongly, and then answers.

The reply follows from the request alone, so that an episode that is run twice sees the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from agentrl.testing.scripted_model import Reply, Request, ToolCall

ANSWER = "42"
MAX_DEPTH = 4
WRONG_CALLS = 2
"""Calls that cannot be carried out, after one of each tool and before the answer."""


def exercise(request: Request) -> Reply:
    """Return the next reply of a conversation: a call of each tool with arguments of its schema, one with arguments that are no JSON, one of a tool that does not exist, and from then on the answer "42"."""
    turn = sum(message.get("role") == "assistant" for message in request["messages"])
    return exercising_reply(request.get("tools") or [], turn)


def exercising_reply(tools: Sequence[Mapping[str, Any]], turn: int) -> Reply:
    """Return the reply of the turn 0, 1, ... of an agent that is offered `tools` in OpenAI's form."""
    functions = [tool["function"] for tool in tools if "function" in tool]
    if not functions:
        return ANSWER
    if turn < len(functions):
        function = functions[turn]
        arguments = sample(function.get("parameters") or {})
        return ToolCall(function["name"], arguments if isinstance(arguments, dict) else {})
    if turn == len(functions):
        return ToolCall(functions[0]["name"], '{"this is no JSON')
    if turn == len(functions) + 1:
        return ToolCall("a_tool_that_does_not_exist", {})
    return ANSWER


def sample(schema: Mapping[str, Any], definitions: Mapping[str, Any] | None = None, depth: int = 0) -> Any:
    """Return a small value that a JSON schema allows; patterns and formats of strings are not looked at.

    Args:
        schema: The schema.
        definitions: What `$ref` names; None: the schema's own `$defs`.
        depth: How deep the value is in another.
    """
    definitions = schema.get("$defs", {}) if definitions is None else definitions
    inner = partial(sample, definitions=definitions, depth=depth + 1)
    if "$ref" in schema:
        return inner(definitions.get(schema["$ref"].rpartition("/")[2], {}))
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return inner(choices[0])
    if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return values[0]
    kind = schema.get("type", "object" if "properties" in schema else "string")
    match kind if isinstance(kind, str) else kind[0]:
        case "object":
            properties = schema.get("properties", {})
            wanted = schema.get("required", []) if depth >= MAX_DEPTH else properties
            return {name: inner(properties.get(name, {})) for name in wanted}
        case "array":
            count = schema.get("minItems", 0 if depth >= MAX_DEPTH else 1)
            return [inner(item) for item in schema.get("prefixItems") or [schema.get("items") or {}] * count]
        case "integer":
            return int(schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1))
        case "number":
            low = schema.get("minimum", schema.get("exclusiveMinimum", 0.0))
            return (low + schema.get("maximum", schema.get("exclusiveMaximum", low + 1.0))) / 2
        case "boolean":
            return True
        case "null":
            return None
    return ANSWER.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength")]
