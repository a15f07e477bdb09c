"""The text of token ids, for people to read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, one_line


@dataclass(frozen=True)
class TokenText:
    """Decodes token ids, special tokens included."""

    decode: Callable[[list[int]], str]
    _pieces: dict[int, str] = field(default_factory=dict)

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Return the text of each token by itself. A token that is a part of a character is shown as �."""
        for token in token_ids:
            if token not in self._pieces:
                self._pieces[token] = self.decode([token])
        return [self._pieces[token] for token in token_ids]


def token_text(directories: Sequence[Path]) -> TokenText:
    """Return what decodes with the tokenizer of the first of some checkpoints that has one.

    Raises:
        ConfigError: None of them has one that can be loaded.
    """
    for directory in directories:
        if (directory / "tokenizer.json").is_file():
            return TokenText(_rust_decode(directory / "tokenizer.json"))
        if (directory / "tokenizer_config.json").is_file():
            return TokenText(_hugging_face_decode(directory))
    places = " nor ".join(map(str, directories))
    raise ConfigError(f"there is no tokenizer in {places}, so tokens have no text: put the model back where it was")


def _rust_decode(file: Path) -> Callable[[list[int]], str]:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises what it likes
        raise ConfigError(
            f"{file} cannot be loaded: {one_line(error)}; copy it from the model it was made of"
        ) from error
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False))


def _hugging_face_decode(directory: Path) -> Callable[[list[int]], str]:
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    except Exception as error:
        raise ConfigError(f"the tokenizer in {directory} cannot be loaded: {one_line(error)}") from error
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False))
