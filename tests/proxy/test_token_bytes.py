"""What the tokens of a reply stand for, where one is a part of a character: their bytes together are the text."""

from __future__ import annotations

import json

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agentrl.proxy import ChatFormat, open_proxy
from agentrl.proxy.token_bytes import bytes_of_tokens
from tests.policy_by_prompt import PolicyByPrompt
from tests.proxy.conformance.replies import events_of

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def by_letters() -> Tokenizer:
    """A vocabulary of single bytes, each written as a letter (GPT-2, Qwen, Llama 3)."""
    tokenizer = Tokenizer(
        models.BPE({letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])
    )
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return tokenizer


def by_pieces() -> Tokenizer:
    """A vocabulary of pieces with a space as ▁, and of bytes for what they lack (SentencePiece: Llama 2, Gemma, Mistral)."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a", "ö"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("▁", "a")], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


@pytest.mark.parametrize("made", [by_letters, by_pieces])
def test_bytes_of_tokens_together_are_the_text(made: object) -> None:
    backend = made()  # type: ignore[operator]
    backend.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    bytes_of = bytes_of_tokens(tokenizer)

    @given(TEXTS.filter(lambda text: "\N{LOWER ONE EIGHTH BLOCK}" not in text))
    def together(text: str) -> None:
        ids = tokenizer.encode(f"{text}<|end|>", add_special_tokens=False)
        assert b"".join(map(bytes_of, ids)).decode() == f"{text}<|end|>"

    together()


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_puts_the_text_together_from_logprobs(stream: bool, nano_format: ChatFormat) -> None:
    said = "wö 日本 🙂👍🏽 é\u200d"
    body = {"model": "nano", "messages": [{"role": "user", "content": "?"}], "logprobs": True, "stream": stream}
    engine = PolicyByPrompt(nano_format, lambda _: said)
    async with open_proxy(engine, nano_format, "nano") as proxy, aiohttp.ClientSession() as http:
        headers = {"authorization": f"Bearer {proxy.open_session().key}"}
        async with http.post(f"{proxy.url}/v1/chat/completions", json=body, headers=headers) as answer:
            text = await answer.text()
    choices = [choice for part in (events_of(text) if stream else [json.loads(text)]) for choice in part["choices"]]
    entries = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == f"{said}<|im_end|>"
    assert all(entry["token"] == bytes(entry["bytes"]).decode(errors="replace") for entry in entries)


@pytest.mark.anyio
async def test_each_token_of_a_text_completion_says_where_it_begins(nano_format: ChatFormat) -> None:
    body = {"model": "nano", "prompt": "Say", "logprobs": 1, "max_tokens": 50}
    async with (
        open_proxy(PolicyByPrompt(nano_format, lambda _: "one two"), nano_format, "nano") as proxy,
        aiohttp.ClientSession() as http,
    ):
        headers = {"authorization": f"Bearer {proxy.open_session().key}"}
        async with http.post(f"{proxy.url}/v1/completions", json=body, headers=headers) as answer:
            (choice,) = (await answer.json())["choices"]
    logprobs = choice["logprobs"]
    text = "".join(logprobs["tokens"])
    assert text.startswith(choice["text"])
    assert len(logprobs["text_offset"]) == len(logprobs["tokens"]) == len(logprobs["token_logprobs"])
    for token, begin in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert text[begin:].startswith(token)
