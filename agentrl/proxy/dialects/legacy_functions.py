"""Chat completions of before there were tools: `functions` and `function_call`, which have no ids.

messages                                  as tools
[2] assistant, function_call {name, ...}  assistant, tool_calls [{id: call_function_2, ...}]
[3] function, name                        tool, tool_call_id: call_function_2

The id of a call is made from the place of its message, so that a client that sends the message back goes on from the recorded turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.proxy.completion import Json


def function_call_id(index: int) -> str:
    """Return the id of the call that the message at `index` makes."""
    return f"call_function_{index}"


def with_tool_calls(messages: Sequence[Json]) -> list[Json]:
    """Return messages with their function calls, and the results of these, as those of tools."""
    written: list[Json] = []
    latest = function_call_id(0)
    for index, message in enumerate(messages):
        if (function := message.get("function_call")) is not None:
            latest = function_call_id(index)
            rest = {name: value for name, value in message.items() if name != "function_call"}
            message = {**rest, "tool_calls": [{"id": latest, "type": "function", "function": function}]}
        elif message["role"] == "function":
            message = {"role": "tool", "tool_call_id": latest, "content": message["content"]}
        written.append(message)
    return written


def with_function_call(message: Json) -> Json:
    """Return a reply with its tool call as a function call."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "function_call": calls[0]["function"]}
