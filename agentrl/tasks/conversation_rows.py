"""Tasks that are conversations to learn from, read as the proxy reads requests.

{"messages": [...], "tools": [...]}                    OpenAI's; "tools" may be JSON text, and a reply may have "weight": 0 or 1,
                                                       the row "empty_thoughts": false
{"conversations": [{"from": "gpt", "value": "..."}]}   ShareGPT's; that of a function_call is JSON

A message has the fields of `_FIELDS`, also by the names of `_ALIASES`. Any other is refused: it might be a trainer's word for
what is not to be learned.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

from pydantic import TypeAdapter

from agentrl.episode import Task
from agentrl.errors import TaskFileError, one_line
from agentrl.proxy.chat_format import Message, Tool
from agentrl.proxy.dialects.chat_completions import ChatRequest
from agentrl.proxy.errors import ApiError, read_body
from agentrl.tasks.task_type import TaskType

_CALLS = ("function_call", "tool_call")
_ROLES = {"human": "user", "observation": "tool", "tool_response": "tool"}
_ROLES |= dict.fromkeys(("gpt", "chatgpt", "bard", *_CALLS), "assistant")
"""ShareGPT's and ms-swift's names of roles."""
_FIELDS = ("role", "content", "name", "reasoning_content", "tool_calls", "tool_call_id", "function_call", "weight")
_ALIASES = {"from": "role", "value": "content", "thinking": "reasoning_content", "reasoning": "reasoning_content"}
_ALIASES |= dict.fromkeys(("loss", "train", "training"), "weight")
"""ShareGPT's, ms-swift's and axolotl's names of the fields of a message."""
_REFUSED = ("images", "videos", "audios", "loss", "mask")
"""Fields of a row that would change what is shown or learned."""
_EMPTY: tuple[Any, ...] = (None, "", [], {})
_FORM = '{"messages": [...]}; an Alpaca row becomes two: instruction and input of the user, output of the assistant'


class _ConversationType(TaskType):
    """The type of rows that are conversations. Each is checked where its source is read, which knows its file and line."""

    def value(self, task: Task, where: str = "the task") -> Any:
        """Return the row, which is a conversation."""
        read_conversation(task, where)
        return task


CONVERSATION = _ConversationType("conversation", dict, TypeAdapter(dict), stays_dict=True)


def read_conversation(row: Task, where: str) -> tuple[list[Message], list[Tool], list[float], bool]:
    """Read a row.

    Args:
        row: The row.
        where: What an error calls it.

    Returns:
        Its messages and tools, as a chat format takes them; the weight of each message: 1 for what is learned; and whether a reply
        without a thought is learned with the empty thought that its template may write.

    Raises:
        TaskFileError: It is no conversation; the message names the field.
    """
    form = next((name for name in ("messages", "conversations") if row.get(name)), "messages")
    system: list[Message] = []
    try:
        if refused := [name for name in _REFUSED if row.get(name) not in _EMPTY]:
            raise TaskFileError(f"{where}: {refused[0]} is not read; leave it out")
        given = _list_of_objects(row.get(form), form)
        rows = _as_sent(given, form)
        if not rows:
            raise TaskFileError(f'{where} holds no "messages": a conversation is {_FORM}')
        if row.get("system") and rows[0].get("role") != "system":
            system = [{"role": "system", "content": row["system"]}]
        tools = [tool for name in ("tools", "functions") for tool in _list_of_objects(row.get(name), name)]
        body = json.dumps({"model": "", "messages": system + rows, "tools": tools})
        read = read_body(ChatRequest, body.encode()).to_completion_request()
    except ApiError as error:
        problem = re.sub(r"messages\.(\d+)", lambda at: f"{form}.{int(at[1]) - len(system)}", error.message)
        names = {_ALIASES.get(key, key): key for message in given for key in message}
        problem = re.sub(r"(?<=\d\.)\w+", lambda at: names.get(at[0], at[0]), problem)
        raise TaskFileError(f"{where} is no conversation: {problem}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TaskFileError(f"{where} is no conversation: {type(error).__name__}: {error}") from error
    if read.ignored:
        raise TaskFileError(f"{where}: {', '.join(read.ignored)} cannot be shown to the model; leave it out")
    if any(isinstance(message["content"], list) for message in read.messages):
        raise TaskFileError(f"{where} has an image, whose pixels are not trained on yet; leave it out")
    weights: list[float] = []
    for index, message in enumerate(rows):
        # A message that opens a conversation answers no prompt.
        weight = message.get("weight", 1) if message["role"] == "assistant" and (index or system) else 0
        weights.append(weight)
        if weight and not (message.get("content") or message.get("tool_calls")):
            raise TaskFileError(f"{where}: {form}.{index} says nothing; give it 'content' or 'tool_calls'")
    if row.get("empty_thoughts") not in (None, True, False):
        raise TaskFileError(f"{where}: empty_thoughts = {row['empty_thoughts']!r}: write true or false")
    if not any(weights) or row.get("label") is False:  # a bad example, in rows for KTO
        raise TaskFileError(f"{where} has no message of the assistant to learn from: by its roles, weights or label")
    return list(read.messages), read.tools or [], [0] * len(system) + weights, row.get("empty_thoughts") in (None, True)


def _list_of_objects(value: Any, field: str) -> list[Any]:
    """Return a list of JSON objects, which may be written as JSON text.

    Raises:
        ValueError: It is anything else; the message names the field.
    """
    try:
        found = (json.loads(value.strip() or "[]") if isinstance(value, str) else value) or []
    except ValueError as error:
        raise ValueError(f"{field} is neither a list nor JSON: {error}") from error
    found = [found] if isinstance(found, dict) else found
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ValueError(f"{field} must be a list of objects, not {one_line(repr(value), 80)}")
    return [dict(one) for one in found]


def _as_sent(rows: list[Any], form: str) -> list[Message]:
    """Return messages as clients send them: with arguments as text, and with the ids of tool calls that rows leave out.

    A result without an id is that of the first call of its name, or of the first one at all, that has none yet. After a reply
    without `tool_calls`, which has its calls in its text, it stays without one.

    Raises:
        ValueError: A field has no value that can be read; the message names it.
    """
    messages: list[Message] = []
    pending: list[dict[str, Any]] | None = []
    for index, row in enumerate(rows):
        field = f"{form}.{index}"
        message = _renamed(row, field)
        if (kind := message.get("role")) in _ROLES:
            message["role"] = _ROLES[kind]
        if kind in _CALLS:
            if messages and messages[-1].get("role") == "assistant":
                raise ValueError(f"{field} is a call that follows a reply: write the calls of one reply as one list")
            content = _list_of_objects(message.pop("content", None), field)
            message["tool_calls"] = [{"function": call} for call in content]
        if call := message.pop("function_call", None):  # OpenAI's, of before there were tools
            message["tool_calls"] = [{"function": call}]
        if calls := _list_of_objects(message.get("tool_calls"), f"{field}.tool_calls"):
            for i, call in enumerate(calls):
                call["id"] = call.get("id") or f"call{index:03}{i:02}"  # Mistral's templates ask for nine characters
                call["function"] = _with_text(call.get("function", call), f"{field}.tool_calls")
            message["tool_calls"], pending = calls, list(calls)
        elif pending and message.get("role") in ("tool", "function"):
            given = message.get("tool_call_id"), message.get("name")
            ranks = [(call["id"] != given[0], call["function"].get("name") != given[1]) for call in pending]
            message = {"tool_call_id": pending.pop(ranks.index(min(ranks)))["id"], **message, "role": "tool"}
        elif message.get("role") == "assistant":
            pending = pending or None
        elif pending is None and message.get("role") == "tool":
            message.setdefault("tool_call_id", "")
        messages.append(message)
    return messages


def _renamed(row: dict[str, Any], field: str) -> Message:
    """Return a message with its fields by their own names.

    Raises:
        ValueError: One is unknown, or is there twice with different values, or is no weight.
    """
    message: Message = {}
    for key, value in row.items():
        name = _ALIASES.get(key, key)
        if value is None:
            continue
        if name not in _FIELDS and value not in _EMPTY:
            raise ValueError(f"{field}.{key} is not read; a message has {', '.join(_FIELDS)}")
        if name == "weight" and value not in (0, 1):
            raise ValueError(f"{field}.{key} = {value!r}: a reply is learned (1) or not (0)")
        if message.setdefault(name, value) != value:
            raise ValueError(f"{field}.{key} is not what it is by its other name")
    return message


def _with_text(function: Any, where: str) -> Any:
    """Return a call with its arguments as JSON text.

    Raises:
        ValueError: They are no JSON object.
    """
    if not isinstance(function, dict):
        return function
    arguments = function.get("arguments") or {}
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    with suppress(ValueError):
        if isinstance(json.loads(text), dict):
            return {**function, "arguments": text}
    raise ValueError(f"{where}: the arguments of {function.get('name')} are no JSON object: {one_line(text, 80)}")
