"""The texts of a session's turns, from which it follows what each of its conversations is: `agentrl.record.roots`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pydantic_core

from agentrl.proxy.chat_format import Message, Tool
from agentrl.proxy.json_text import read_json
from agentrl.record.roots import MessageText, TurnText

MAX_CHARACTERS = 2**24
"""Characters of all texts that one session keeps; of the turns beyond, nothing is known."""
UNKNOWN = TurnText(complete=False)
_LABEL = re.compile(r"x-anthropic-billing-header:(?:\s*[\w-]+=[^;\s]*;)*\s*")
"""What Claude Code writes before its system prompt. It differs from conversation to conversation."""


class TurnTexts:
    """The texts of the turns of one session, within bounds. Messages that are sent again and again are kept once."""

    def __init__(self) -> None:
        self.characters = 0
        self._by_text: dict[tuple[str, bool], MessageText] = {}
        self._systems: dict[str, str] = {}

    def of(
        self, messages: Sequence[Message], known: int, tools: Sequence[Tool] | None, raw: str | list[int] | None
    ) -> TurnText:
        """Return the texts of a request, without those of its reply.

        Args:
            messages: Its conversation.
            known: How many of them, from the first on, are in the path of the turn that it goes on from.
            tools: The tools that it offers.
            raw: The text or the ids that it sends in place of messages.

        Returns:
            The texts; `UNKNOWN` for ids, and where there is no room for more.
        """
        if isinstance(raw, list):
            return UNKNOWN
        new = [(raw, False)] if raw is not None else [text for message in messages[known:] for text in _texts(message)]
        asked = [self._shared(*text) for text in new]
        if self.characters > MAX_CHARACTERS:
            return UNKNOWN
        if known:
            return TurnText(asked=tuple(asked))
        system = system_prompt(messages)
        return TurnText(
            system=self._systems.setdefault(system, system),
            tools=tuple(tool["function"]["name"] for tool in tools or ()),
            tool_set=hashlib.blake2b(pydantic_core.to_json(tools), digest_size=16).hexdigest() if tools else "",
            asked=tuple(asked),
        )

    def _shared(self, text: str, by_assistant: bool) -> MessageText:
        """Return the one object that stands for a text, wherever it is sent."""
        found = self._by_text.get((text, by_assistant))
        if found is None:
            self.characters += len(text)
            found = MessageText(text, by_assistant)
            if self.characters <= MAX_CHARACTERS:
                self._by_text[text, by_assistant] = found
        return found


def system_prompt(messages: Sequence[Message]) -> str:
    """Return the texts that a conversation begins with before its first message."""
    parts: list[str] = []
    for message in messages:
        if message["role"] not in ("system", "developer"):
            break
        parts += [text for text, _ in _texts(message)]
    return _LABEL.sub("", "\n".join(parts))


def replied_texts(reply: Message) -> tuple[str, ...]:
    """Return the texts of a reply: what it says, and then the texts in the arguments of its tool calls."""
    return (reply.get("content") or "", *_arguments(reply))


def _texts(message: Message) -> Iterator[tuple[str, bool]]:
    content, assistant = message.get("content") or "", message["role"] == "assistant"
    if isinstance(content, str):
        yield content, assistant
    else:
        yield "".join(part["text"] for part in content if part["type"] == "text"), assistant
    for text in _arguments(message):
        yield text, assistant


def _arguments(message: Message) -> Iterator[str]:
    for call in message.get("tool_calls") or ():
        try:
            yield from _leaves(read_json(call["function"]["arguments"]))
        except ValueError:
            yield call["function"]["arguments"]


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
