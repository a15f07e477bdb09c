"""The limits of a served model, which are not those that its tokenizer and config.json alone would tell: how much its server holds, what
ends a reply, and which ids there are."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Iterator
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from safetensors.torch import load_file, save_file
from torch.nn.functional import pad

from agentrl.engine.client import sglang_engine
from agentrl.models import NANO
from agentrl.proxy import ChatFormat, Proxy, Session, load_chat_format, open_proxy
from tests.conftest import start_server, stop_server
from tests.scripted_engine import ScriptedEngine

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
HELD = 256
"""Tokens that the server has room for; the model was made for 1024."""
ROWS = 512
"""Rows of the output layer; the tokenizer has 475 words."""
END, PADDING = 7, 500
NO_END = {"0": -100, "2": -100, str(END): -100}
USER = {"role": "user", "content": "1 2 3"}
CHAT: dict[str, Any] = {"model": "nano", "messages": [USER]}
LONG = "1 2 3 " * 70
TOO_LONG = {**CHAT, "messages": [{**USER, "content": LONG}]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The nano model with a padded head, and with one more token that ends its turn."""
    directory = tmp_path_factory.mktemp("padded") / "nano"
    shutil.copytree(NANO, directory)
    tensors = load_file(NANO / "model.safetensors")
    embeddings = tensors["model.embed_tokens.weight"]
    tensors["model.embed_tokens.weight"] = pad(embeddings, (0, 0, 0, ROWS - len(embeddings)))
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    for name, change in (("config.json", {"vocab_size": ROWS}), ("generation_config.json", {"eos_token_id": [2, END]})):
        file = directory / name
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
    return directory


@pytest.fixture(scope="module")
def url(model: Path) -> Iterator[str]:
    process, url = start_server(model, "--max-total-tokens", str(HELD + 16))
    yield url
    assert stop_server(process) == 0


@pytest.fixture(scope="module")
def chat_format(model: Path) -> ChatFormat:
    return load_chat_format(model)


@pytest.fixture
async def proxy(url: str, chat_format: ChatFormat) -> AsyncIterator[Proxy]:
    async with sglang_engine([url], vocabulary=ROWS) as engine, open_proxy(engine, chat_format, "nano") as proxy:
        yield proxy


async def asked(proxy: Proxy, path: str, body: Any, session: Session | None = None) -> Any:
    headers = {"authorization": f"Bearer {(session or proxy.open_session()).key}"}
    reply = await proxy.handle("POST" if body else "GET", path, headers, json.dumps(body).encode())
    return reply.status, json.loads(reply.body)


async def test_a_reply_without_max_tokens_is_as_long_as_the_server_can_hold(proxy: Proxy) -> None:
    status, reply = await asked(proxy, "/v1/chat/completions", {**CHAT, "logit_bias": NO_END})
    assert (status, reply["choices"][0]["finish_reason"], reply["usage"]["total_tokens"]) == (200, "length", HELD)
    _, listed = await asked(proxy, "/v1/models", None)
    assert listed["data"][0]["inputTokenLimit"] == HELD


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/v1/chat/completions", TOO_LONG, ["code"]),
        ("/v1/completions", {"model": "nano", "prompt": LONG}, ["code"]),
        ("/v1/completions", {"model": "nano", "prompt": [30] * HELD}, ["code"]),
        ("/v1/responses", {"model": "nano", "input": LONG}, ["code"]),
        ("/v1/messages", {**TOO_LONG, "max_tokens": 9}, ["details", "error_code"]),
        ("/v1beta/models/nano:generateContent", {"contents": [{"parts": [{"text": LONG}]}]}, ["message"]),
    ],
)
async def test_a_prompt_that_the_server_cannot_hold_is_400_in_each_dialects_own_form(
    proxy: Proxy, path: str, body: Any, code: list[Any]
) -> None:
    status, reply = await asked(proxy, path, body)
    assert status == 400
    assert "context_length_exceeded" in reduce(getitem, code, reply["error"])
    assert f"context length is {HELD} tokens" in reply["error"]["message"]


async def test_a_request_is_known_again_by_an_engine_with_other_limits(chat_format: ChatFormat) -> None:
    digests = set()
    for held in (None, HELD, 2 * HELD):
        async with open_proxy(ScriptedEngine(context_length=held), chat_format, "nano") as proxy:
            session = proxy.open_session()
            assert (await asked(proxy, "/v1/chat/completions", CHAT, session))[0] == 200
            digests.add(session.record.turns[0].request)
    assert len(digests) == 1


async def test_every_id_that_ends_a_turn_ends_it_on_the_embedded_server_asked_or_not(proxy: Proxy, url: str) -> None:
    status, reply = await asked(proxy, "/v1/chat/completions", {**CHAT, "logit_bias": {str(END): 100}})
    assert (status, reply["choices"][0]["finish_reason"], reply["usage"]["completion_tokens"]) == (200, "stop", 1)
    assert reply["choices"][0]["message"]["content"] == ""
    body = {"input_ids": [1, 20, 30], "sampling_params": {"logit_bias": {END: 100}}}
    async with aiohttp.ClientSession() as http, http.post(f"{url}/generate", json=body) as response:
        assert (await response.json())["meta_info"]["finish_reason"] == {"type": "stop", "matched": END}


async def test_ids_of_ones_own_reply_that_have_no_word_are_a_prompt_and_others_are_not(proxy: Proxy) -> None:
    session = proxy.open_session()
    padding = {"max_tokens": 3, "logit_bias": {str(PADDING): 100}}
    assert (await asked(proxy, "/v1/chat/completions", {**CHAT, **padding}, session))[0] == 200
    said = session.record.turns[0]
    assert said.output_ids == [PADDING] * 3
    more = {"model": "nano", "prompt": said.prompt_ids + said.output_ids, **padding, "logprobs": 1}
    status, reply = await asked(proxy, "/v1/completions", more, session)
    assert (status, session.record.turns[-1].parent) == (200, said), reply
    status, reply = await asked(proxy, "/v1/completions", {"model": "nano", "prompt": [ROWS]}, session)
    assert (status, reply["error"]["param"]) == (400, "prompt")
