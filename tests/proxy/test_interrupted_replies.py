"""A reply that is interrupted and goes on elsewhere: what the client reads, what is recorded, and what an uninterrupted one would be."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from agentrl.engine.client import EngineLimits, SGLangEngine, sglang_engine
from agentrl.proxy import ChatFormat, Proxy, Session, open_proxy
from tests.components import wait_until
from tests.engine.growing_replies import growing_replies
from tests.engine.scripted_server import Answer, Json, ScriptedServer, scripted_server

pytestmark = pytest.mark.anyio
TEXT = "111 - 8 STOP 22 STOP 3"
USER: Any = [{"role": "user", "content": "1 + 1 ="}]


def state(ids: list[int], prompt_tokens: int, *, version: int = 0, ends: bool = False) -> Json:
    """One state of an incremental stream; where it ends, all of it was of `version`."""
    meta: Json = {
        "finish_reason": {"type": "length", "length": 1} if ends else None,
        "prompt_tokens": prompt_tokens,
        "weight_version": str(version),
        "output_token_logprobs": [[-0.5, token, None] for token in ids],
    }
    if ends:
        meta["weight_versions"] = [{"version": str(version), "start": 0, "end": len(ids)}]
    return {"output_ids": ids, "meta_info": meta}


@dataclass
class Setup:
    engine: SGLangEngine
    session: Session
    servers: list[ScriptedServer]
    client: openai.AsyncOpenAI

    async def ask(self, **options: Any) -> str:
        """The text of a reply."""
        made = self.client.chat.completions.create(model="nano", messages=USER, max_tokens=100, **options)
        if not options.get("stream"):
            return str((await made).choices[0].message.content)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in await made if chunk.choices])


@asynccontextmanager
async def setup_of(chat_format: ChatFormat, *answers: Callable[[Json], Answer]) -> AsyncIterator[Setup]:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(scripted_server(answer)) for answer in answers]
        limits = EngineLimits(health_interval_s=0.05, request_timeout_s=20)
        engine = await stack.enter_async_context(sglang_engine([s.url for s in servers], limits=limits))
        proxy: Proxy = await stack.enter_async_context(open_proxy(engine, chat_format, "nano"))
        session = proxy.open_session()
        client = openai.AsyncOpenAI(api_key=session.key, base_url=proxy.base_url, max_retries=0)
        yield Setup(engine, session, servers, await stack.enter_async_context(client))


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_a_reply_wherever_it_was_interrupted(nano_format: ChatFormat, stream: bool) -> None:
    """A server looks for stop strings in the tokens that it makes itself, and is asked to go on from others."""
    ids = nano_format.tokenizer.encode(TEXT, add_special_tokens=False)
    up_to_stop = next(n for n in range(len(ids)) if "STOP" in nano_format.decode(ids[:n]))
    for made in range(1, up_to_stop):
        begins_at: list[int] = []

        def answer(body: Json, made: int = made, begins_at: list[int] = begins_at) -> Answer:
            prompt_tokens = len(body["input_ids"])
            if not begins_at:
                begins_at.append(prompt_tokens)
                return [state(ids[:made], prompt_tokens)]  # and it breaks off
            assert body["input_ids"][begins_at[0] :] == ids[:made]
            return [state(ids[made:], prompt_tokens, ends=True)]

        async with setup_of(nano_format, answer, answer) as setup:
            assert (await setup.ask(stop="STOP", stream=stream)).strip() == "111 - 8"
            (turn,) = setup.session.record.turns
            assert turn.output_ids == ids[:up_to_stop]
            assert not turn.truncated
            assert [(span.start, span.end) for span in turn.versions] == [(0, up_to_stop)]
            assert len(turn.logprobs) == up_to_stop


async def test_what_was_streamed_is_what_is_recorded_or_the_call_fails(nano_format: ChatFormat, tmp_path: Path) -> None:
    """Tokens arrive after a weight update began, so that nobody knows which weights made them; then the server is lost."""
    ids = nano_format.tokenizer.encode(TEXT, add_special_tokens=False)
    other = nano_format.tokenizer.encode(" other", add_special_tokens=False)
    calls = 0

    async def read() -> None:
        await wait_until(lambda: len(growing[-1][1].so_far().output_ids) == 4, 40)

    async def update() -> None:
        await setup.engine.update_weights(tmp_path, setup.engine.version + 1)

    def answer(body: Json) -> Answer:
        nonlocal calls
        calls += 1
        prompt_tokens, version = len(body["input_ids"]), setup.engine.version
        if calls > 1:
            return [state(other, prompt_tokens, version=version, ends=True)]
        first = state(ids[:4], prompt_tokens, version=version)
        return [first, read, update, state(ids[4:8], prompt_tokens, version=version + 1)]

    async with setup_of(nano_format, answer) as setup:
        with growing_replies() as growing:
            with pytest.raises(openai.APIError, match="4 tokens were streamed of which"):
                await setup.ask(stream=True)
            assert setup.session.record.turns == []
            calls = 0
            said = await setup.ask()
        assert said == nano_format.decode(ids[:4] + other).strip()


async def test_what_has_not_been_checked_is_not_streamed(nano_format: ChatFormat) -> None:
    """The ids of a state may come before their logprobs."""
    ids = nano_format.tokenizer.encode(TEXT, add_special_tokens=False)
    other = nano_format.tokenizer.encode("9", add_special_tokens=False)

    asked = 0

    def answer(body: Json) -> Answer:
        nonlocal asked
        asked += 1
        if asked > 1:
            return [state(other, len(body["input_ids"]), ends=True)]
        ahead = state(ids[2:], len(body["input_ids"]))
        ahead["meta_info"]["output_token_logprobs"] = []
        return [state(ids[:2], len(body["input_ids"])), ahead]

    async with setup_of(nano_format, answer, answer) as setup:
        assert await setup.ask(stream=True) == nano_format.decode(ids[:2] + other)
        (turn,) = setup.session.record.turns
        assert turn.output_ids == ids[:2] + other
