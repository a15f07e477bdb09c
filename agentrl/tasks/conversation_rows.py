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
_REFUSED = ("image", "images", "videos", "audios", "loss", "mask", "rejected_response", "rejected_messages")
"""Fields of a row that would change what is shown or learned."""
_EMPTY: tuple[Any, ...] = (None, "", [], {})
_MODELS_ID = re.compile(r"[A-Za-z0-9]{9}|functions\..+:\d+")
"""The ids of tool calls that models say themselves: Mistral's and Kimi's."""
_WRAPPED = re.compile(r"\s*<tool_response>\n?(.*?)\n?</tool_response>\s*", re.DOTALL)
"""A result as the templates of Hermes and Qwen write it."""


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
    form = "messages" if row.get("messages") else "conversations"
    if not row.get(form):
        had = ", ".join(row)
        raise TaskFileError(
            f'{where} holds no "messages"; it has {had}: write {{"messages": [{{"role": ..., "content": ...}}, ...]}}'
        )
    if refused := [name for name in _REFUSED if row.get(name) not in _EMPTY]:
        raise TaskFileError(f"{where}: {refused[0]} is not read; leave it out")
    try:
        sent = _as_sent(_list_of_objects(row[form], form), form)
        tools = [tool for name in ("tools", "functions") for tool in _list_of_objects(row.get(name), name)]
        body = json.dumps({"model": "", "messages": sent, "tools": tools})
        read = read_body(ChatRequest, body.encode()).to_completion_request()
    except (ApiError, AttributeError, TypeError, ValueError) as error:
        raise TaskFileError(f"{where} is no conversation: {one_line(error)}") from error
    if read.ignored:
        raise TaskFileError(f"{where}: {', '.join(read.ignored)} cannot be shown to the model; leave it out")
    if read.images:
        raise TaskFileError(f"{where} has an image, whose pixels are not trained on yet; leave it out")
    messages, weights = list(read.messages), [message.get("weight", 1) for message in sent]
    if (system := row.get("system") or row.get("system_prompt")) and messages[0]["role"] != "system":
        messages, weights = [{"role": "system", "content": system}, *messages], [0, *weights]
    # A message that opens a conversation answers no prompt.
    weights = [weight if i and messages[i]["role"] == "assistant" else 0 for i, weight in enumerate(weights)]
    learned = [message for message, weight in zip(messages, weights, strict=True) if weight]
    if not all(message["content"] or message.get("tool_calls") for message in learned):
        raise TaskFileError(
            f"{where}: a reply to learn from says nothing; give it 'content', 'tool_calls' or the weight 0"
        )
    if row.get("empty_thoughts") not in (None, True, False):
        raise TaskFileError(f"{where}: empty_thoughts = {row['empty_thoughts']!r}: write true or false")
    if not learned or row.get("label") is False:  # a bad example, in rows for KTO
        raise TaskFileError(f"{where} has no message of the assistant to learn from: by its roles, weights or label")
    return messages, read.tools or [], weights, row.get("empty_thoughts") in (None, True)


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


def _as_sent(rows: list[dict[str, Any]], form: str) -> list[Message]:
    """Return messages as clients send them: tool calls with the ids that rows leave out, and arguments as text.

    A result is that of the call of its id, or else of its name, or else of the first call that has none yet. After a reply that has
    its calls in its text, it has no id.

    Raises:
        ValueError: A field has no value that can be read; the message names it.
    """
    messages: list[Message] = []
    pending: list[tuple[Any, Any, str]] = []
    """The calls without a result: the id in the row, the name, and the id that it is read with."""
    for index, row in enumerate(rows):
        field = f"{form}.{index}"
        message = _renamed(row, field)
        kind = message.get("role", "")
        message["role"] = _ROLES.get(kind, kind)
        if kind in _CALLS:
            if messages and messages[-1]["role"] == "assistant":
                raise ValueError(f"{field} is a call that follows a reply: write the calls of one reply as one list")
            message["tool_calls"] = _list_of_objects(message.pop("content", None), field)
        if call := message.pop("function_call", None):  # OpenAI's, of before there were tools
            message["tool_calls"] = [call]
        if message["role"] == "assistant":
            pending = []
            for i, call in enumerate(_list_of_objects(message.pop("tool_calls", None), f"{field}.tool_calls")):
                function = _with_text(call.get("function", call), f"{field}.tool_calls.{i}")
                given = call.get("id")
                id_ = given if _MODELS_ID.fullmatch(str(given)) else f"call{index:03}{i:02}"
                message.setdefault("tool_calls", []).append({"id": id_, "function": function})
                pending.append((given, function["name"], id_))
        elif message["role"] in ("tool", "function"):
            given, name = message.get("tool_call_id"), message.get("name")
            answered = min(
                pending, key=lambda call: (call[0] != given, call[1] != name), default=(None, None, given or "")
            )
            pending = [call for call in pending if call is not answered]
            message |= {"role": "tool", "tool_call_id": answered[2]}
            if found := _WRAPPED.fullmatch(str(message.get("content"))):
                message["content"] = found[1]
        messages.append(message)
    return messages


def _renamed(row: dict[str, Any], field: str) -> Message:
    """Return a message with its fields by their own names.

    Raises:
        ValueError: One is unknown, or is no weight.
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
        message[name] = value
    return message


def _with_text(function: Any, field: str) -> dict[str, str]:
    """Return a call with its arguments as JSON text.

    Raises:
        ValueError: It has no name, or they are no JSON object.
    """
    name, arguments = function.get("name"), function.get("arguments") or {}
    if not name:
        raise ValueError(f"{field} needs a name")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    with suppress(ValueError):
        if isinstance(json.loads(text), dict):
            return {"name": name, "arguments": text}
    raise ValueError(f"{field}: the arguments of {name} are no JSON object: {one_line(text, 80)}")
