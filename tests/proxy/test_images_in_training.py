"""Images in a training run: refused before anything is generated or recorded, in every dialect; elsewhere they are taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from agentrl import Episode
from agentrl.errors import ConfigError
from agentrl.proxy import ChatFormat, SamplingDefaults, load_chat_format, open_proxy
from agentrl.record.tokens import Generation
from agentrl.rollout.run_episode import local_runner
from agentrl.trainer.model.packed_model import load_model
from tests.modelless_engine import ModellessEngine
from tests.tiny_vl import make_tiny_vl, picture

pytestmark = pytest.mark.anyio
IMAGE = picture(32, 32, (200, 30, 30))
CHAT = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": IMAGE}}]}]
TEXT = [{"role": "user", "content": "1 + 1"}]


class SeeingEngine(ModellessEngine):
    """An engine that takes images and says "2"."""

    takes_images = True

    def __init__(self, reply_ids: list[int]) -> None:
        self.reply_ids = reply_ids
        self.seen: list[int] = []

    async def answer(self, *sent: Any) -> Generation:
        *_, images = sent
        self.seen.append(len(images))
        return self.generation(self.reply_ids)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny-vl")
    make_tiny_vl(directory)
    return directory


@pytest.fixture(scope="module")
def chat_format(model: Path) -> ChatFormat:
    return load_chat_format(model)


@pytest.mark.parametrize("training", [True, False])
async def test_a_training_run_refuses_images_and_takes_text(chat_format: ChatFormat, training: bool) -> None:
    engine: Any = SeeingEngine(chat_format.tokenizer.encode("2<|im_end|>"))
    async with open_proxy(engine, chat_format, "vl", training=training) as proxy:
        session = proxy.open_session()
        options: dict[str, Any] = {"api_key": session.key, "max_retries": 0}
        refusals = []
        async with (
            openai.AsyncOpenAI(base_url=proxy.base_url, **options) as client,
            anthropic.AsyncAnthropic(base_url=proxy.url, **options) as claude,
        ):
            parts: Any = [{"type": "input_image", "image_url": IMAGE}]
            source = {"type": "base64", "media_type": "image/png", "data": IMAGE.partition(",")[2]}
            block: Any = [{"type": "image", "source": source}]
            calls = [
                lambda: client.chat.completions.create(model="vl", messages=CHAT),
                lambda: client.responses.create(model="vl", input=[{"role": "user", "content": parts}]),
                lambda: claude.messages.create(model="vl", max_tokens=8, messages=[{"role": "user", "content": block}]),
            ]
            for call in calls:
                try:
                    await call()
                except (openai.BadRequestError, anthropic.BadRequestError) as error:
                    refusals.append(str(error))
            await client.chat.completions.create(model="vl", messages=TEXT)
    if training:
        assert len(refusals) == 3
        assert all("not trained on yet" in refusal and "agentrl eval" in refusal for refusal in refusals)
        assert engine.seen == [0], "the engine was asked for the text alone"
        assert len(session.record.turns) == 1
    else:
        assert refusals == []
        assert engine.seen == [1, 1, 1, 0]


async def test_an_episode_that_shows_an_image_fails_with_the_reason(chat_format: ChatFormat) -> None:
    async def run(episode: Episode) -> float:
        messages: Any = CHAT
        await episode.client.chat.completions.create(model=episode.model, messages=messages)
        return 1.0

    engine: Any = SeeingEngine(chat_format.tokenizer.encode("2<|im_end|>"))
    async with (
        open_proxy(engine, chat_format, "vl", training=True) as proxy,
        local_runner(run, proxy, timeout_s=30, defaults=SamplingDefaults()) as runner,
    ):
        outcome = await runner.run({}, 0)
    assert not outcome.finished
    assert outcome.error is not None
    assert "not trained on yet" in outcome.error
    assert outcome.record.turns == []
    assert engine.seen == []


@pytest.mark.slow
def test_the_trainer_names_a_vision_model_that_it_cannot_load(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no causal LM that transformers can load: .*Qwen3VLConfig") as refused:
        load_model(model)
    assert len(str(refused.value)) < 400
