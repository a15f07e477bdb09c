"""What ends a turn is derived once, from all files of a model that say something of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from agentrl.errors import ConfigError
from agentrl.models import NANO
from agentrl.proxy import load_chat_format

PHI = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}<|assistant|>\n"
GEMMA = "{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}<start_of_turn>model\n"
GLM = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"
TEXT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
ONE = "{% if messages | length > 1 %}{{ raise_exception('one message') }}{% endif %}{{ messages[0].content }}<|end|>"


def model(directory: Path, template: str = "", **generation: Any) -> Path:
    """The files of a model but its weights."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(NANO / name, directory)
    if template:
        tokenizer: Any = AutoTokenizer.from_pretrained(directory)
        tokenizer.add_tokens(["<|end|>", "<end_of_turn>", "<|user|>"], special_tokens=True)
        tokenizer.chat_template = template
        tokenizer.save_pretrained(directory)
    (directory / "generation_config.json").write_text(json.dumps(generation))
    return directory


@pytest.mark.parametrize(
    ("template", "end"),
    [(PHI, "<|end|>"), (GEMMA, "<end_of_turn>"), (GLM, "<|user|>"), (TEXT, ""), (ONE, "")],
    ids=["Phi", "Gemma", "GLM", "no token", "no conversation"],
)
def test_the_token_after_an_assistants_message_ends_a_turn(template: str, end: str, tmp_path: Path) -> None:
    chat_format = load_chat_format(model(tmp_path, template), "default")
    ends = [chat_format.decode([token]) for token in chat_format.stop_token_ids]
    assert ends == ["<|im_end|>", *([end] if end else [])]
    reply = [*chat_format.tokenizer.encode("42", add_special_tokens=False), chat_format.stop_token_ids[-1]]
    assert chat_format.parse(reply, None).content == "42"
    assert chat_format.plain(reply).content == "42"


@pytest.mark.parametrize("ends", [7, [7], [2, 7]])
def test_all_ids_of_the_generation_config_end_a_turn(ends: Any, tmp_path: Path, nano_format: Any) -> None:
    chat_format = load_chat_format(model(tmp_path, eos_token_id=ends))
    assert chat_format.stop_token_ids == [*nano_format.stop_token_ids, 7]
    assert f" or {chat_format.decode([7])}; its tool calls" in chat_format.summary, "as a run says at its start"


def test_a_damaged_generation_config_is_named(tmp_path: Path) -> None:
    (model(tmp_path) / "generation_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"generation_config\.json is not JSON"):
        load_chat_format(tmp_path)
