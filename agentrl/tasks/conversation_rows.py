"""Tasks that are conversations to learn from, read as the proxy reads requests.

{"messages": [...], "tools": [...]}                    OpenAI's; "tools" may be JSON text, and a reply may have "weight": 0 or 1
{"conversations": [{"from": "gpt", "value": "..."}]}   ShareGPT's; that of a function_call is JSON
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from agentrl.episode import Task
from agentrl.errors import TaskFileError, one_line
from agentrl.proxy.api_error import ApiError
from agentrl.proxy.chat_format import Message, Tool
from agentrl.proxy.dialects.chat_request import parse_request
from agentrl.tasks.task_type import TaskType

_ROLES = {"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool"}
"""ShareGPT's names of roles."""
_WEIGHTS = ("weight", "loss", "train")
"""OpenAI's, ms-swift's and axolotl's name of whether a reply is learned."""


class _ConversationType(TaskType):
    """The type of rows that are conversations. Each is checked where its source is read, which knows its file and line."""

    def value(self, task: Task, where: str = "the task") -> Any:
        """Return the row, which is a conversation."""
        read_conversation(task, where)
        return task


CONVERSATION = _ConversationType("conversation", dict, TypeAdapter(dict), stays_dict=True)


def read_conversation(row: Task, where: str) -> tuple[list[Message], list[Tool], list[float]]:
    """Read a row.

    Args:
        row: The row.
        where: What an error calls it.

    Returns:
        Its messages and tools, as a chat format takes them, and the weight of each message: 1 for what is learned.

    Raises:
        TaskFileError: It is no conversation; the message names the field.
    """
    try:
        form = next((name for name in ("messages", "conversations") if row.get(name)), "messages")
        rows = _list_of_objects(row.get(form) or [], form)
        if form == "conversations":
            rows = [_from_sharegpt(message) for message in rows]
        if not rows:
            raise TaskFileError(f'{where} holds no "messages": a conversation is {{"messages": [...], "tools": [...]}}')
        if row.get("system") and rows[0].get("role") != "system":
            rows.insert(0, {"role": "system", "content": row["system"]})
        named = {name: row[name] for name in ("tools", "functions") if row.get(name)}
        tools = {name: _list_of_objects(value, name) for name, value in named.items()}
        if "tools" in tools and all("name" in tool for tool in tools["tools"]):
            tools = {"functions": tools["tools"]}  # as LLaMA-Factory has them
        request = parse_request(json.dumps({"model": "", "messages": _as_sent(rows), **tools}).encode())
        read = request.to_completion_request()
    except ApiError as error:
        raise TaskFileError(f"{where} is no conversation: {error.message}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TaskFileError(f"{where} is no conversation: {type(error).__name__}: {error}") from error
    if read.ignored:
        raise TaskFileError(f"{where}: {', '.join(read.ignored)} cannot be shown to the model; leave it out")
    if any(isinstance(message["content"], list) for message in read.messages):
        raise TaskFileError(f"{where} has an image, whose pixels are not trained on yet; leave it out")
    weights: list[float] = []
    for index, message in enumerate(rows):
        given = next((message[name] for name in _WEIGHTS if message.get(name) is not None), 1)
        # A message that opens a conversation answers no prompt.
        weights.append(weight := given if index and message["role"] == "assistant" else 0)
        if weight not in (0, 1):
            raise TaskFileError(f"{where}: messages.{index}.weight = {weight!r}: a reply is learned (1) or not (0)")
        if weight and not any(message.get(field) for field in ("content", "tool_calls", "function_call")):
            raise TaskFileError(f"{where}: messages.{index} says nothing; give it 'content' or 'tool_calls'")
    if not any(weights):
        raise TaskFileError(f"{where} has no message of the assistant to learn from")
    return list(read.messages), read.tools or [], weights


def _from_sharegpt(message: dict[str, Any]) -> Message:
    if "role" in message:
        return message
    kind, value = message["from"], message["value"]
    said: Message = {"content": value}
    if kind == "function_call":
        calls = json.loads(value)
        said = {"tool_calls": [{"function": call} for call in (calls if isinstance(calls, list) else [calls])]}
    return {**message, "role": _ROLES.get(kind, kind), **said}


def _list_of_objects(value: Any, field: str) -> list[Any]:
    """Return a list of JSON objects, which may be written as JSON text.

    Raises:
        ValueError: It is anything else; the message names the field.
    """
    try:
        found = (json.loads(value) if value.strip() else None) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"{field} is neither a list nor JSON: {error}") from error
    found = [] if found is None else found
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ValueError(f"{field} must be a list of objects, not {one_line(repr(value), 80)}")
    return list(found)


def _as_sent(rows: Sequence[Message]) -> list[Message]:
    """Return messages as clients send them: with arguments as text, and with the ids of tool calls that rows leave out."""
    messages: list[Message] = []
    ids: list[str] = []
    for index, row in enumerate(rows):
        message = {key: value for key, value in row.items() if value is not None}
        if "thinking" in message:  # ms-swift's name
            message = {"reasoning_content": message.pop("thinking"), **message}
        if message.get("tool_calls"):
            where = f"messages.{index}.tool_calls"
            message["tool_calls"] = [
                {
                    **call,
                    "id": call.get("id") or f"call_{index}_{i}",
                    "function": _with_text(call.get("function"), where),
                }
                for i, call in enumerate(_list_of_objects(message["tool_calls"], where))
            ]
            ids = [call["id"] for call in message["tool_calls"]]
        if message.get("function_call"):
            message["function_call"] = _with_text(message["function_call"], f"messages.{index}.function_call")
        if message.get("role") == "tool" and ids:
            message = {"tool_call_id": ids.pop(0), **message}
        messages.append(message)
    return messages


def _with_text(function: Any, where: str) -> Any:
    """Return a call with its arguments as JSON text.

    Raises:
        ValueError: They are no JSON object.
    """
    if not isinstance(function, dict):
        return function
    arguments = function.get("arguments") or {}
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    try:
        whole = isinstance(json.loads(text), dict)
    except ValueError:
        whole = False
    if not whole:
        raise ValueError(f"{where}: the arguments of {function.get('name')} are no JSON object: {one_line(text, 80)}")
    return {**function, "arguments": text}
