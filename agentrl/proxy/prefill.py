"""The beginning of a reply that the model is taken to have said: the text that its client wrote (a prefill), and what makes it call a tool.

request    ..., user, assistant "The sum is"
prompt     what `..., user` renders to, up to where the model speaks, and the ids of "The sum is"     not trained on
reply      " 42."                                                                                   trained on
history    ..., user, assistant "The sum is 42."       goes on from that turn; the two texts may also come as two messages
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.proxy.chat_format import ChatFormat, Message, Tool
from agentrl.proxy.errors import ApiError, invalid


def check_prefill(messages: Sequence[Message]) -> Message:
    """Return the message that a reply is to go on with.

    Raises:
        invalid: 400: the last message is not the beginning of a text of the assistant's.
    """
    last = messages[-1]
    if last["role"] != "assistant":
        raise invalid("messages", f"the last one is to be continued, and its role is '{last['role']}', not 'assistant'")
    if len(messages) == 1:
        raise invalid("messages", "nothing comes before the message that is to be continued")
    if last.get("tool_calls") or not isinstance(last.get("content") or "", str):
        raise invalid("messages", "the last one is to be continued, and tool calls and images are not continued")
    return last


def prefill_ids(chat_format: ChatFormat, prompt_ids: list[int], message: Message) -> list[int]:
    """Return the ids of the beginning of a reply.

    Args:
        chat_format: that of the model.
        prompt_ids: the prompt, up to where the model speaks. Where it opens the model's thinking, that is closed first.
        message: the beginning.
    """
    text, thought = message.get("content") or "", message.get("reasoning_content") or ""
    opening = chat_format.special("<think>")
    if chat_format.opens_thought(prompt_ids):
        text = f"{thought}\n</think>\n\n{text}"
    elif thought and opening is not None:
        text = f"<think>\n{thought}\n</think>\n\n{text}"
    return list(chat_format.tokenizer.encode(text, add_special_tokens=False)) if text else []


def forced_ids(chat_format: ChatFormat, tools: Sequence[Tool], name: str | None) -> list[int]:
    """Return the ids that make the model's turn a call of the tool `name`; None: of any.

    Raises:
        ApiError: 400: there is no such tool, or the format has no such ids.
    """
    names = [tool["function"]["name"] for tool in tools]
    if not names or (name is not None and name not in names):
        message = f"'tool_choice' wants a call of {name or 'a tool'}; the tools are {names}."
        raise ApiError(400, message, param="tool_choice", code="invalid_value")
    try:
        return chat_format.forced_call(name)
    except ValueError as error:
        raise ApiError(400, f"'tool_choice' is not supported: {error}.", param="tool_choice") from error


def with_prefill(prefill: str, reply: Message) -> Message:
    """Return a reply as one message with the beginning that it goes on with."""
    return {**reply, "content": prefill + (reply.get("content") or "")} if prefill else reply
