"""A lean face of a Hugging Face tokenizer for `renderers`.

A renderer encodes a dozen short, mostly fixed pieces of text a call. The Hugging Face class spends 30 µs around each;
this goes to the Rust tokenizer behind it and remembers what it encoded. A text with marks goes to a copy of that
(`control_tokens`). It has no `__call__`: renderers then skip the character offsets, which say which token came from which
message and which nothing here reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache, wraps
from typing import Any

from agentrl.errors import one_line
from agentrl.proxy.control_tokens import MARK, OWN, control_tokens, with_own_spellings

REMEMBERED_TEXTS = 4096
MAX_REMEMBERED_CHARACTERS = 4096
"""A longer text is encoded anew: it is rarely seen twice, and would hold memory."""


class LeanTokenizer:
    """The methods that `renderers.Tokenizer` asks for; anything else is the Hugging Face tokenizer's own."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self.unk_token_id: int | None = tokenizer.unk_token_id  # renderers ask for it ten times a call
        self._remembered = lru_cache(REMEMBERED_TEXTS)(self._encode)
        self._id_of = lru_cache(REMEMBERED_TEXTS)(tokenizer.convert_tokens_to_ids)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # above all __call__
        return getattr(self._tokenizer, name)

    def __len__(self) -> int:
        return len(self._tokenizer)

    @property
    def apply_chat_template(self) -> Callable[..., Any]:
        """The tokenizer's own method, whose text is encoded here, and which raises ValueError where the template does."""
        own = self._tokenizer.apply_chat_template

        @wraps(own)
        def apply(conversation: Sequence[Any], *, tokenize: bool = True, **options: Any) -> Any:
            from jinja2 import TemplateError

            try:
                text = own(conversation, tokenize=False, **options)
            except TemplateError as error:
                raise ValueError(f"the chat template raises {one_line(error)!r}") from error
            return self.encode(text) if tokenize else text

        return apply

    @cached_property
    def _own_spellings(self) -> tuple[Any, Any]:
        control: Any = control_tokens(self._tokenizer)
        return control, with_own_spellings(self._backend, control)

    def _encode(self, text: str) -> tuple[int, ...]:
        if len(text) > MAX_REMEMBERED_CHARACTERS:
            # A batch is encoded without Python's lock, so that the event loop goes on meanwhile.
            return tuple(self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)
        return tuple(self._backend.encode(text, add_special_tokens=False).ids)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Return ids of `text`; special tokens written in it are recognised but where a mark stands in them, none are added."""
        if MARK in text:
            control, copy = self._own_spellings
            text = control.sub(lambda found: OWN + found[0], text).replace(MARK, "")
            return list(copy.encode_batch_fast([text], add_special_tokens=False)[0].ids)
        if add_special_tokens:
            return list(self._tokenizer.encode(text))
        encode = self._encode if len(text) > MAX_REMEMBERED_CHARACTERS else self._remembered
        return list(encode(text))

    def convert_tokens_to_ids(self, tokens: str | list[str]) -> Any:
        """Return the id of a token, or the ids of several."""
        return self._id_of(tokens) if isinstance(tokens, str) else self._tokenizer.convert_tokens_to_ids(tokens)

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False, **_: Any) -> str:
        """Text of ids."""
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        if len(ids) > MAX_REMEMBERED_CHARACTERS:
            return str(self._backend.decode_batch([ids], skip_special_tokens=skip_special_tokens)[0])
        return str(self._backend.decode(ids, skip_special_tokens=skip_special_tokens))
