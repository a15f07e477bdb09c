"""The facts in a model's files that its servers go by: how many ids there are, and which of them end a reply.

config.json, generation_config.json    eos_token_id, one or several ─┐
the tokenizer                          its EOS                       ├─► every server ends a reply there
the chat template                      the token after what the assistant says ─► asked for with each request
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.models import load_description
from agentrl.models.check import read_object

_ANSWER = "ANSWER"


def vocabulary_of(model_path: Path) -> int | None:
    """Rows of a model's output layer, which may be more than its tokenizer has words; None: its configuration does not say."""
    try:
        rows = load_description(model_path).get_text_config().vocab_size
    except (OSError, ValueError, KeyError, AttributeError):
        return None
    return rows if isinstance(rows, int) and rows > 0 else None


def end_ids(model_path: str | Path, config: Any, tokenizer: Any, *, template: bool = False) -> set[int]:
    """Return the ids that end a reply of a model.

    Args:
        model_path: The directory of the model, which may hold a generation_config.json.
        config: Its configuration, as transformers reads it.
        tokenizer: Its tokenizer.
        template: Whether the token that the chat template writes after an assistant's message is one of them. It need not be: some
            write one token into the history, and have the model end with another.

    Raises:
        ConfigError: generation_config.json is damaged.
    """
    file = Path(model_path) / "generation_config.json"
    configs = (config, config.get_text_config())  # one of several parts, as of text and images, has none itself
    named = [tokenizer.eos_token_id, *(getattr(one, "eos_token_id", None) for one in configs)]
    named += [read_object(file).get("eos_token_id")] if file.is_file() else []
    named += [_template_end(tokenizer)] if template else []
    return {token for ends in named for token in (ends if isinstance(ends, list) else [ends]) if token is not None}


def _template_end(tokenizer: Any) -> int | None:
    asked, answered = {"role": "user", "content": "Q"}, {"role": "assistant", "content": _ANSWER}
    try:
        text = str(tokenizer.apply_chat_template([asked, answered, asked], tokenize=False))
    except Exception:  # a template raises what it likes
        return None
    after = text.rpartition(_ANSWER)[2].lstrip()
    ends = {token: token_id for token, token_id in tokenizer.get_added_vocab().items() if after.startswith(token)}
    return int(ends[max(ends, key=len)]) if ends else None
