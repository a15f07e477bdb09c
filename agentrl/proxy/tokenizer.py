"""A lean face of a Hugging Face tokenizer for `renderers`, which also encodes control tokens that a message spells as the text that they are.

message     hi <|im_end|>                            a user has written ten characters, and ended no turn
marked      hi <~|im_end|>                           ~ is MARK, which goes through any renderer and template
rendered    <|im_start|>user hi <~|im_end|>...       the format's own have no mark
encoded     ^<|im_start|>^user hi <|im_end|>...      by a copy of the tokenizer that spells them with ^, which is _OWN

A renderer encodes a dozen short, mostly fixed pieces of text a call. The Hugging Face class spends 30 µs around each; this goes to the
Rust tokenizer behind it, and remembers. It has no `__call__`: renderers then skip the character offsets, which nothing here reads.
"""

from __future__ import annotations

import inspect
import json
import re
import secrets
from collections.abc import Collection, Sequence
from functools import cached_property, lru_cache
from typing import Any

from tokenizers import Tokenizer

from agentrl.errors import one_line

MARK = "\ud800"
"""Half of a surrogate pair, which no request holds (`http_messages.read_json`), no token stands for and no template writes."""
_OWN = secrets.token_hex(8)
"""Drawn anew in each process, so that no text can spell it."""
_TAG = re.compile(r"</?[^\s<>]+>")
_MARKED_ROLES = ("system", "user", "tool")
NO_CONTROL_TOKENS = re.compile("(?!)")
_REMEMBERED_TEXTS = 4096
_MAX_REMEMBERED_CHARACTERS = 4096
"""A longer text is encoded anew: it is rarely seen twice, and would hold memory."""


def marked(messages: Sequence[dict[str, Any]], pattern: re.Pattern[str]) -> list[dict[str, Any]]:
    """Return messages in whose contents no control token is spelled any more: a mark stands in each. Those of the model are as they were."""
    return [
        {**message, "content": _with_marks(message.get("content"), pattern)}
        if message["role"] in _MARKED_ROLES
        else message
        for message in messages
    ]


@lru_cache(maxsize=64)
def shown_tools(tools: bytes, pattern: re.Pattern[str]) -> Any:
    """Return tools, which are given as JSON, as a renderer gets them: with marks in all texts, and without the nulls that pad schemas.

    They are remembered, as those of an agent are the same at each of its calls.
    """
    return _with_marks(_without_padding(json.loads(tools)), pattern)


def _without_padding(value: Any) -> Any:
    """Return a JSON value without keys that are null: `datasets` and pydantic write those that another row or type has. A default may be null."""
    if isinstance(value, list):
        return [_without_padding(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _without_padding(item) for key, item in value.items() if item is not None or key == "default"}


def _with_marks(value: Any, pattern: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        return pattern.sub(lambda found: found[0][0] + MARK + found[0][1:], value)
    if isinstance(value, list):
        return [_with_marks(item, pattern) for item in value]
    return {key: _with_marks(item, pattern) for key, item in value.items()} if isinstance(value, dict) else value


class LeanTokenizer:
    """The methods that `renderers.Tokenizer` asks for; anything else is the Hugging Face tokenizer's own."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._length: int = 1 + max(tokenizer.get_vocab().values())
        # Looked up again and again while a reply grows, and found late by the class.
        self.convert_tokens_to_ids = tokenizer.convert_tokens_to_ids
        self.unk_token_id: int | None = tokenizer.unk_token_id
        self._remembered = lru_cache(_REMEMBERED_TEXTS)(self._encode)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # above all __call__
        return getattr(self._tokenizer, name)

    def __len__(self) -> int:
        """Return the number of ids, up to the last that there is a word for: a model's output layer may have more rows."""
        return self._length

    def apply_chat_template(self, conversation: Sequence[Any], *, tokenize: bool = True, **options: Any) -> Any:
        """Return a conversation as the model's chat template writes it: its ids, or its text.

        Raises:
            ValueError: The template raises an error.
        """
        from jinja2 import TemplateError

        try:
            text = self._tokenizer.apply_chat_template(conversation, tokenize=False, **options)
        except TemplateError as error:
            raise ValueError(f"the chat template raises {one_line(error)!r}") from error
        return self.encode(text) if tokenize else text

    @property
    def template_arguments(self) -> Collection[str]:
        """The names that are no options of a chat template, but arguments of the function that renders it."""
        return inspect.signature(self._tokenizer.apply_chat_template).parameters.keys()

    @cached_property
    def control_tokens(self) -> re.Pattern[str]:
        """The pattern of a spelled control token.

        It is a token of more than one character that is special, or written as a tag: Qwen's `<think>` and `<tool_call>` are not special.
        """
        added = self._tokenizer.added_tokens_decoder.values()
        spelled = {
            str(token) for token in added if (token.special and len(str(token)) > 1) or _TAG.fullmatch(str(token))
        }
        longest_first = sorted(spelled, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first))) if spelled else NO_CONTROL_TOKENS

    @cached_property
    def _of_marked_texts(self) -> Any:
        """A copy of the tokenizer, with the same ids, in which _OWN stands before each control token: without it, its spelling is text."""
        spelled_with_own = re.sub(f'"({self.control_tokens.pattern})"', f'"{_OWN}\\1"', self._backend.to_str())
        return Tokenizer.from_str(spelled_with_own)

    def _encode(self, text: str) -> tuple[int, ...]:
        backend = self._backend
        if MARK in text:
            backend = self._of_marked_texts
            text = self.control_tokens.sub(lambda found: _OWN + found[0], text).replace(MARK, "")
        # A batch is encoded without Python's lock, so that the event loop goes on.
        return tuple(backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Return ids of `text`; special tokens written in it are recognised but where a mark stands in them, none are added."""
        return list((self._remembered if len(text) <= _MAX_REMEMBERED_CHARACTERS else self._encode)(text))

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False, **_: Any) -> str:
        """Text of ids."""
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return str(self._backend.decode_batch([ids], skip_special_tokens=skip_special_tokens)[0])
