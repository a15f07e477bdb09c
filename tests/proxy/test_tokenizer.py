"""The lean tokenizer gives what the Hugging Face tokenizer gives."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from renderers import Qwen3RendererConfig, create_renderer
from transformers import AutoTokenizer

from agentrl.envs.calculator_env import TOOL
from agentrl.models import NANO
from agentrl.proxy.tokenizer import LeanTokenizer

PLAIN = AutoTokenizer.from_pretrained(NANO)
LEAN = LeanTokenizer(PLAIN)
TEXTS = st.text(max_size=60) | st.lists(
    st.sampled_from(["<tool_call>", "</think>", "<|im_end|>", "12", "\n", " + ", "é"]), max_size=8
).map("".join)


@pytest.mark.slow
@given(TEXTS)
def test_encoding_is_the_same_twice(text: str) -> None:
    expected = PLAIN.encode(text, add_special_tokens=False)
    assert LEAN.encode(text) == expected
    assert LEAN.encode(text) == expected


@given(st.lists(st.integers(0, 474), max_size=40))
def test_decoding_is_the_same(ids: list[int]) -> None:
    assert LEAN.decode(ids) == PLAIN.decode(ids, skip_special_tokens=False)


def test_a_remembered_encoding_cannot_be_changed_from_outside() -> None:
    LEAN.encode("1 + 2").append(7)
    assert LEAN.encode("1 + 2") == PLAIN.encode("1 + 2", add_special_tokens=False)


@given(st.lists(TEXTS, min_size=1, max_size=3))
@settings(deadline=None)
def test_a_renderer_gives_the_same_ids_with_either(texts: list[str]) -> None:
    messages = [{"role": "user", "content": text} for text in texts]
    rendered = [
        create_renderer(tokenizer, Qwen3RendererConfig()).render_ids(messages, tools=[TOOL], add_generation_prompt=True)
        for tokenizer in (PLAIN, LEAN)
    ]
    assert rendered[0] == rendered[1]


def test_what_it_does_not_define_is_the_tokenizers_own() -> None:
    assert LEAN.eos_token_id == PLAIN.eos_token_id
    with pytest.raises(AttributeError):
        _ = LEAN.nothing_of_that_name
