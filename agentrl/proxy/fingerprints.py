"""Fingerprints of conversations, by which a request that extends a recorded reply is found.

    fingerprint of messages 1 to n = H(fingerprint of messages 1 to n-1, meaning of message n);  of none: H(tools, options of the template)

A client sends all of a conversation with every request. What it sent before is compared with what is known, which costs less
than to digest it again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pydantic_core

from agentrl.proxy.chat_format import Message, Tool
from agentrl.proxy.json_text import read_json
from agentrl.proxy.tool_calls import values_so_far

_REMEMBERED_CHARACTERS = 2**23
"""Characters of all messages that one session remembers; beyond, it begins anew."""


class Fingerprints:
    """The fingerprints of one session's conversations."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Message, bytes]] = {}
        """Fingerprint of a conversation -> the message that came next last, and the fingerprint with it."""
        self.remembered_characters = 0
        self._malformed: dict[str, tuple[str, str]] = {}
        """Id of a call -> its arguments, which are no JSON, and those that clients which get an object were shown."""

    def of(
        self, messages: Sequence[Message], tools: list[Tool] | None, template_options: Mapping[str, Any] | None = None
    ) -> list[bytes]:
        """Return one fingerprint a message, each of the tools, the template's options and all messages up to and including it."""
        options = json.dumps(template_options, sort_keys=True).encode() if template_options else b""
        digest = hashlib.blake2b(pydantic_core.to_json(tools or []) + options, digest_size=16).digest()
        digests = []
        for message in messages:
            known = self._known.get(digest)
            if known is not None and known[0] == message:
                digest = known[1]
            else:
                before, digest = digest, self.after(digest, message)
                self._remember(before, message, digest)
            digests.append(digest)
        return digests

    def _remember(self, before: bytes, message: Message, after: bytes) -> None:
        content = message.get("content") or ""
        if not isinstance(content, str):
            return  # an image
        size = 256 + len(content) + sum(len(call["function"]["arguments"]) for call in message.get("tool_calls") or ())
        self.remembered_characters += size
        if self.remembered_characters > _REMEMBERED_CHARACTERS:
            self._known.clear()
            self.remembered_characters = size
        self._known[before] = message, after

    def remember_malformed(self, reply: Message) -> None:
        """Remember the calls of a reply whose arguments are no JSON, or too deep, which some clients send back as the values that could be read."""
        for call in reply.get("tool_calls") or ():
            arguments = call["function"]["arguments"]
            said, shown = _canonical(arguments), _canonical(json.dumps(values_so_far(arguments)))
            if said != shown:
                self._malformed[call["id"]] = said, shown

    def after(self, before: bytes, message: Message) -> bytes:
        """Return the fingerprint of a conversation with one more message.

        Only what a message means counts, not how a client or a dialect spells it: null fields, an empty text, reasoning that the
        client dropped, one text part instead of a string, spaces in JSON, whether the arguments of a call are those of a custom
        tool or the text that its client has of them, and whether malformed ones are as the model wrote them.
        """
        content = message.get("content") or ""
        if isinstance(content, list) and all(part["type"] == "text" for part in content):
            content = "".join(part["text"] for part in content)
        calls = [
            (call.get("id"), call["function"]["name"], self._arguments(call))
            for call in message.get("tool_calls") or []
        ]
        meaning = (message["role"], content, calls, message.get("tool_call_id"), message.get("name"))
        return hashlib.blake2b(before + pydantic_core.to_json(meaning), digest_size=16).digest()

    def _arguments(self, call: dict[str, Any]) -> str:
        meant = _canonical(call["function"]["arguments"])
        said, shown = self._malformed.get(call.get("id") or "", (meant, meant))
        return said if meant == shown else meant


def _canonical(arguments: str) -> str:
    try:
        value = read_json(arguments)
        if isinstance(value, dict) and isinstance(text := value.get("input"), str) and len(value) == 1:
            # What a custom tool is called with: its client sends the text back, whatever shape the arguments had.
            arguments = text
            value = read_json(text)
        return json.dumps(value, sort_keys=True)
    except ValueError:
        return arguments
