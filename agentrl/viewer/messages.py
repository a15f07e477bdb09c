"""The messages in the tokens of a prompt, and what a reply says: text, thought and tool calls.

    a conversation of known words ─► rendered ─► what stands between two of them: a boundary, and the role that it begins
    ids of a prompt ─► text, control tokens marked ─► split at the boundaries ─► messages

A text that only spells a control token has no mark, so that nobody can forge the beginning of a message where the chat format has
control tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

from renderers.base import ToolCallParseStatus

from agentrl.proxy.chat_format import ChatFormat, Message, Tool
from agentrl.proxy.model_renderer import CALLED, TOOLS
from agentrl.proxy.tokenizer import MARK

_TAIL = 16
"""Ids of the reply before a prompt that are looked at with it: a boundary may begin in them."""
_WORD = re.compile("Q([a-z]+)[0-9]Q")


def _conversation(roles: str, first: int = 0) -> list[Message]:
    return [{"role": role, "content": f"Q{role}{index}Q"} for index, role in enumerate(roles.split(), first)]


_PLAIN = [_conversation("system user assistant user assistant user"), _conversation("user assistant user")]
_CALL: Message = CALLED | {"content": "Qassistant2Q"}
_RESULT: Message = {"role": "tool", "tool_call_id": "call00001", "content": "Qtool3Q"}
_WITH_TOOLS = [
    [*_conversation("system user"), _CALL, _RESULT, *_conversation(roles, 4)]
    for roles in ("assistant user", "user", "tool assistant")
]


@dataclass
class ReadMessage:
    """A message as people read it."""

    role: str
    """"?" where it could not be told."""
    text: str
    thought: str | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    """{"name", "arguments"} of each; one that is malformed is left in the text."""


@dataclass(frozen=True)
class MessageReader:
    """Reads the tokens of one chat format."""

    chat_format: ChatFormat

    def prompt(self, ids: Sequence[int], reply_before: Sequence[int] = ()) -> list[ReadMessage]:
        """Return the messages that a prompt adds to what was said.

        Args:
            ids: What it adds.
            reply_before: The reply that it goes on from.
        """
        tail = list(reply_before[-_TAIL:])
        before, *parts = self._split.split(self._marked([*tail, *ids])) if self._boundaries else [""]
        messages = [ReadMessage("system", before)] if parts and not tail else []
        messages += [] if parts else [ReadMessage("?", self._marked(ids))]
        messages += [
            ReadMessage(self._boundaries[boundary], text)
            for boundary, text in zip(parts[::2], parts[1::2], strict=True)
        ]
        if messages and messages[-1].role == "assistant" and not messages[-1].text.strip():
            messages.pop()  # it is the model's turn
        for message in messages:
            message.text = message.text.replace(MARK, "")
        encode = self.chat_format.tokenizer.encode
        return [
            self.reply(encode(message.text, add_special_tokens=False)) if message.role == "assistant" else message
            for message in messages
            if message.text.strip() or message.role in ("user", "tool")
        ]

    def reply(self, ids: Sequence[int], prompt_ids: Sequence[int] = ()) -> ReadMessage:
        """Return what the model says in a reply to a prompt."""
        parsed = self.chat_format.parsed(list(ids), None, list(prompt_ids))
        if parsed is None:
            return ReadMessage("assistant", self.chat_format.plain(list(ids)).content)
        message = ReadMessage("assistant", parsed.content, parsed.reasoning_content)
        for call in parsed.tool_calls:
            if call.status == ToolCallParseStatus.OK and isinstance(call.name, str):
                message.tool_calls.append({"name": call.name, "arguments": call.arguments})
            else:
                start, end = call.token_span or (0, 0)
                message.text += self.chat_format.decode(list(ids[start:end])) if end else call.raw
        return message

    def _marked(self, ids: Sequence[int]) -> str:
        """Return the text of ids, with a mark before each control token."""
        return "".join(
            "".join(MARK + self._control[token] for token in some) if control else self.chat_format.decode(list(some))
            for control, some in groupby(ids, self._control.__contains__)
        )

    @cached_property
    def _control(self) -> dict[int, str]:
        return {token: str(text) for token, text in self.chat_format.tokenizer.added_tokens_decoder.items()}

    @cached_property
    def _split(self) -> re.Pattern[str]:
        longest_first = sorted(self._boundaries, key=len, reverse=True)
        return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    @cached_property
    def _boundaries(self) -> dict[str, str]:
        """The texts that begin a message, each with its role."""
        roles: dict[str, str] = {}
        for messages, tools in (*((plain, None) for plain in _PLAIN), *((calling, TOOLS) for calling in _WITH_TOOLS)):
            for boundary, role in self._boundaries_in(messages, tools):
                if boundary.strip():
                    roles.setdefault(boundary, role)
        return roles

    def _boundaries_in(self, messages: list[Message], tools: list[Tool] | None) -> Iterator[tuple[str, str]]:
        with suppress(Exception):  # a template raises what it likes where it takes no such conversation
            text = self._marked(self.chat_format.render(messages, tools, answered=False).ids)
            words = list(_WORD.finditer(text))
            if [word[0] for word in words] != [message["content"] for message in messages]:
                return
            if tools is None:
                yield self._opening(text[: words[0].start()]), words[0][1]
            for word, after in zip(words, [*words[1:], None], strict=True):
                between = text[word.end() : after.start() if after else None]
                role = after[1] if after else "assistant"
                if word[1] == "assistant" and role == "tool":
                    between = self._after_call(between)
                if tools is None or word[1] in ("assistant", "tool"):
                    yield between, role

    def _opening(self, text: str) -> str:
        """Return what opens the first message, without the token that opens all texts."""
        first = MARK + str(self.chat_format.tokenizer.bos_token)
        return text.removeprefix(first) if text.count(MARK) > 1 else text

    def _after_call(self, text: str) -> str:
        """Return what is between the end of a reply that calls a tool, and the result."""
        ends = (text.find(MARK + self.chat_format.decode([end])) for end in self.chat_format.stop_token_ids)
        return text[min((end for end in ends if end >= 0), default=0) :]
