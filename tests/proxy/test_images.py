"""Images in messages, in every dialect's form, through a real SGLang server with a tiny vision-language model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import anyio
import openai
import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.engine.client import sglang_engine
from agentrl.proxy import ChatFormat, SamplingDefaults, load_chat_format, open_proxy
from agentrl.record.tokens import ImageSpan
from agentrl.record.trajectory import TokenRecord
from tests.conftest import start_server, stop_server
from tests.record_invariant import Tapped, assert_record_is_what_the_engine_saw
from tests.tiny_vl import largest_difference, make_tiny_vl, picture

pytestmark = [pytest.mark.anyio, pytest.mark.soak, pytest.mark.timeout(300)]
RED, BLUE = picture(48, 32, (200, 30, 30)), picture(32, 64, (30, 30, 200))
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny-vl")
    make_tiny_vl(directory)
    return directory


@pytest.fixture(scope="module")
def url(model: Path) -> Iterator[str]:
    process, url = start_server(model, kind="sglang")
    yield url
    stop_server(process)


@pytest.fixture(scope="module")
def chat_format(model: Path) -> ChatFormat:
    return load_chat_format(model)


async def test_images_reach_the_model_and_the_record_in_every_dialect(
    url: str, model: Path, chat_format: ChatFormat
) -> None:
    async with sglang_engine([url]) as raw:
        engine = Tapped(raw)
        async with open_proxy(engine, chat_format, "vl") as proxy:
            session = proxy.open_session(SamplingDefaults(temperature=0.0, max_tokens=8))
            options: dict[str, Any] = {"base_url": proxy.base_url, "api_key": session.key, "max_retries": 0}
            async with openai.AsyncOpenAI(**options) as client:
                asked: list[Any] = [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "1 + 1"},
                            {"type": "image_url", "image_url": {"url": RED}},
                        ],
                    }
                ]
                first = await client.chat.completions.create(model="vl", messages=asked)
                said = first.choices[0].message
                more = {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": BLUE}}, {"type": "text", "text": "2"}],
                }
                await client.chat.completions.create(model="vl", messages=[*asked, said, more])
                item = [{"type": "input_text", "text": "1 + 1"}, {"type": "input_image", "image_url": RED}]
                await client.responses.create(model="vl", input=[{"role": "user", "content": item}])
                other = [{"type": "input_text", "text": "1 + 1"}, {"type": "input_image", "image_url": BLUE}]
                await client.responses.create(model="vl", input=[{"role": "user", "content": other}])
                bad = [
                    ("http://127.0.0.1/secret.png", "data URL"),
                    ("data:image/png;base64,AAAA", "cannot identify image file"),
                ]
                for where, problem in bad:
                    asked[0]["content"][1]["image_url"]["url"] = where
                    with pytest.raises(openai.BadRequestError, match=problem):
                        await client.chat.completions.create(model="vl", messages=asked)
            async with anthropic.AsyncAnthropic(base_url=proxy.url, api_key=session.key, max_retries=0) as claude:
                source: Any = {"type": "base64", "media_type": "image/png", "data": RED.partition(",")[2]}
                block: Any = [{"type": "text", "text": "1 + 1"}, {"type": "image", "source": source}]
                await claude.messages.create(model="vl", max_tokens=8, messages=[{"role": "user", "content": block}])

    chat, second, responses, blue, messages = turns = session.record.turns
    assert second.parent is chat
    assert chat.prompt_ids == responses.prompt_ids == messages.prompt_ids
    assert chat.output_ids == responses.output_ids == messages.output_ids
    assert chat.logprobs[0] != blue.logprobs[0], "another image changes what the model says"
    assert [image.length for image in second.path_images()] == [6, 8]
    for turn in turns:
        ids = turn.token_ids()
        for image in turn.path_images():
            assert set(ids[image.start : image.start + image.length]) == {
                chat_format.tokenizer.convert_tokens_to_ids("<|image_pad|>")
            }
    assert_record_is_what_the_engine_saw(session.record, engine.calls)
    assert TokenRecord.from_json(session.record.to_json()).to_json() == session.record.to_json()
    assert chat.images == [ImageSpan(RED, chat.images[0].start, 6)]
    assert await in_thread(largest_difference, model, turns) < TOLERANCE


async def test_replies_about_images_survive_weight_updates(url: str, model: Path, chat_format: ChatFormat) -> None:
    async with sglang_engine([url], pause_mode="abort") as engine, open_proxy(engine, chat_format, "vl") as proxy:
        session = proxy.open_session(SamplingDefaults(temperature=0.0, max_tokens=300))
        async with openai.AsyncOpenAI(base_url=proxy.base_url, api_key=session.key, max_retries=0) as client:
            content: Any = [{"type": "image_url", "image_url": {"url": RED}}]

            async def ask() -> None:
                await client.chat.completions.create(model="vl", messages=[{"role": "user", "content": content}])

            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                await anyio.sleep(0.3)
                await engine.update_weights(model, 1)
    (turn,) = session.record.turns
    assert [span.version for span in turn.versions] in ([0, 1], [1])
    assert await in_thread(largest_difference, model, [turn]) < TOLERANCE
