"""agentrl over real SGLang servers: mixed dialects, interruption, grammars. float32, so that it is exact."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import aiohttp
import anthropic
import anyio
import openai
import pydantic
import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.engine.client import EngineLimits, SGLangEngine, sglang_engine
from agentrl.engine.protocol import Sampling
from agentrl.envs.calculator_env import TOOL
from agentrl.models import NANO
from agentrl.proxy import ChatFormat, Proxy, SamplingDefaults, Session, open_proxy
from agentrl.record.tokens import Generation
from agentrl.record.trajectory import TokenRecord
from tests.conftest import start_server, stop_server
from tests.record_invariant import Tapped, assert_record_is_what_the_engine_saw
from tests.rescoring import Rescorer

pytestmark = [pytest.mark.anyio, pytest.mark.soak]
CALLS = int(os.environ.get("AGENTRL_TEST_CALLS", "400"))
CALLS_A_SESSION = 16
WORKERS = 32
TOLERANCE = 1e-4


class Agent:
    """A conversation that changes its dialect with every call, and now and then goes back to an earlier point."""

    def __init__(self, proxy: Proxy, session: Session, http: aiohttp.ClientSession, seed: int) -> None:
        self._random = random.Random(seed)
        self._url, self._http = proxy.url, http
        self._headers = {"Authorization": f"Bearer {session.key}"}
        self._messages: list[dict[str, Any]] = []

    async def call(self) -> None:
        """One model call."""
        if self._messages and self._random.random() < 0.25:
            self._messages = self._messages[: 2 * self._random.randrange(1 + len(self._messages) // 2)]
        if sum(len(m["content"]) for m in self._messages) > 400:
            self._messages = []
        text = "".join(self._random.choices("0123456789+-= ?", k=self._random.randint(1, 8)))
        asked = [*self._messages, {"role": "user", "content": text}]
        dialect = self._random.choice([self._chat, self._chat, self._responses, self._messages_api, self._completions])
        said = await dialect(asked, self._random.randint(1, 30), self._random.random() < 0.3)
        if said is not None:
            self._messages = [*asked, {"role": "assistant", "content": said}]

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        async with self._http.post(self._url + path, json={"model": "nano", **body}, headers=self._headers) as reply:
            assert reply.status == 200, await reply.text()
            if not body.get("stream"):
                return await reply.json()
            return [json.loads(line[6:]) async for line in reply.content if line.startswith(b"data: {")]

    async def _chat(self, messages: list[Any], tokens: int, stream: bool) -> str | None:
        body: dict[str, Any] = {"messages": messages, "max_tokens": tokens, "stream": stream}
        if self._random.random() < 0.3:
            body["tools"] = [TOOL]
        got = await self._post("/v1/chat/completions", body)
        if "tools" in body:
            return None  # tools start a branch of their own
        if stream:
            return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in got)
        content: str = got["choices"][0]["message"]["content"]
        return content

    async def _responses(self, messages: list[Any], tokens: int, stream: bool) -> str:
        got = await self._post("/v1/responses", {"input": messages, "max_output_tokens": tokens, "stream": stream})
        response = got[-1]["response"] if stream else got
        text: str = response["output"][0]["content"][0]["text"]
        return text

    async def _messages_api(self, messages: list[Any], tokens: int, stream: bool) -> str:
        got = await self._post("/v1/messages", {"messages": messages, "max_tokens": tokens, "stream": stream})
        if stream:
            return "".join(e["delta"].get("text", "") for e in got if e["type"] == "content_block_delta")
        text: str = got["content"][0]["text"]
        return text

    async def _completions(self, messages: list[Any], tokens: int, stream: bool) -> None:
        prompt = messages[-1]["content"]
        first = await self._post("/v1/completions", {"prompt": prompt, "max_tokens": tokens})
        await self._post(
            "/v1/completions", {"prompt": prompt + first["choices"][0]["text"] + "1", "max_tokens": 3, "stream": stream}
        )


@pytest.fixture(scope="module")
def two_sglang_urls(sglang_url: str) -> Iterator[list[str]]:
    """Two real servers."""
    process, url = start_server(NANO, kind="sglang")
    yield [sglang_url, url]
    stop_server(process)


@pytest.mark.timeout(600)
async def test_calls_in_every_dialect_under_weight_updates(
    nano_format: ChatFormat, versions: list[Path], two_sglang_urls: list[str]
) -> None:
    """Two real servers, updates in modes retract and abort all the while: no mismatched id, no wrong logprob."""
    records: list[tuple[Session, int]] = []
    async with sglang_engine(two_sglang_urls) as raw:
        engine = Tapped(raw)
        async with (
            open_proxy(engine, nano_format, "nano") as proxy,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
        ):
            await raw.update_weights(versions[0], 0)
            updates = 0

            async def keep_updating() -> None:
                nonlocal updates
                while True:
                    await anyio.sleep(0.4)
                    raw.pause_mode = "abort" if updates % 4 == 3 else "retract"
                    version = (raw.version + 1) % len(versions)
                    await raw.update_weights(versions[version], version)
                    updates += 1

            async def work(worker: int) -> None:
                while len(engine.calls) < CALLS:
                    session = proxy.open_session(SamplingDefaults(temperature=random.choice([0.7, 1.0, 1.3])))
                    records.append((session, worker))
                    agent = Agent(proxy, session, http, len(records))
                    for _ in range(CALLS_A_SESSION):
                        await agent.call()
                    proxy.close_session(session)

            async with anyio.create_task_group() as updating:
                updating.start_soon(keep_updating)
                async with anyio.create_task_group() as group:
                    for worker in range(WORKERS):
                        group.start_soon(work, worker)
                updating.cancel_scope.cancel()
            await raw.update_weights(versions[0], 0)

    assert len(engine.calls) >= CALLS
    assert updates >= 10
    assert raw.fleet.bad_replies == raw.fleet.failures == 0
    interrupted = sum(len(generation.versions) > 1 for _, generation in engine.calls)
    assert interrupted >= 20, "too few replies were interrupted for this to say anything"
    rescorer = Rescorer(versions)
    branches = 0
    for session, _ in records:
        assert_record_is_what_the_engine_saw(session.record, engine.by_session[session.key])
        branches += len(session.record.leaves())
    assert branches > len(records)
    largest = await in_thread(lambda: max(rescorer.largest_difference(session.record) for session, _ in records))
    assert largest < TOLERANCE


async def test_64_replies_survive_20_updates_of_two_servers(versions: list[Path], two_sglang_urls: list[str]) -> None:
    async with sglang_engine(two_sglang_urls) as engine:
        await engine.update_weights(versions[0], 0)
        results = await replies_under_updates(engine, versions, updates=20, replies=64)
        await engine.update_weights(versions[0], 0)
    assert max(len(generation.versions) for _, generation in results) >= 4
    await assert_exact(results, versions)


async def replies_under_updates(
    engine: SGLangEngine, versions: list[Path], *, updates: int, replies: int, tokens: int = 400
) -> list[tuple[list[int], Generation]]:
    results: list[tuple[list[int], Generation]] = []

    async def one(index: int) -> None:
        prompt = [1, 2, 3, 4 + index]
        results.append((prompt, await engine.generate(prompt, Sampling(max_new_tokens=tokens), f"s{index}")))

    async with anyio.create_task_group() as group:
        for index in range(replies):
            group.start_soon(one, index)
        for update in range(updates):
            await anyio.sleep(0.1)
            version = 1 + update % (len(versions) - 1)
            await engine.update_weights(versions[version], version)
    assert len(results) == replies
    return results


async def assert_exact(results: list[tuple[list[int], Generation]], versions: list[Path]) -> None:
    record = TokenRecord()
    for prompt, generation in results:
        assert generation.finish in ("stop", "length")
        covered = [position for span in generation.versions for position in range(span.start, span.end)]
        assert covered == list(range(len(generation.output_ids)))
        record.add("id", None, prompt, generation, 1.0)
    assert await in_thread(lambda: Rescorer(versions).largest_difference(record)) < TOLERANCE


class Answer(pydantic.BaseModel):
    verdict: Literal["right", "wrong"]
    sure: bool


async def test_a_json_schema_holds_through_every_dialect_that_has_one(sglang_url: str, nano_format: ChatFormat) -> None:
    async with sglang_engine([sglang_url]) as engine, open_proxy(engine, nano_format, "nano") as proxy:
        assert engine.has_grammar
        key = proxy.open_session(SamplingDefaults(max_tokens=300)).key
        messages: list[Any] = [{"role": "user", "content": "12 + 30 ="}]
        async with openai.AsyncOpenAI(base_url=proxy.base_url, api_key=key, max_retries=0) as client:
            for _ in range(4):
                parsed = await client.chat.completions.parse(model="nano", messages=messages, response_format=Answer)
                assert isinstance(parsed.choices[0].message.parsed, Answer)
            response = await client.responses.parse(model="nano", input="1", text_format=Answer)
            assert isinstance(response.output_parsed, Answer)
            reply = await client.chat.completions.create(
                model="nano", messages=messages, response_format={"type": "json_object"}, max_tokens=5
            )
            assert reply.choices[0].message.content.lstrip().startswith("{")


async def test_an_interrupted_constrained_reply_starts_over_and_stays_valid(
    sglang_url: str, versions: list[Path]
) -> None:
    schema = json.dumps({"type": "array", "items": {"type": "integer"}, "minItems": 60, "maxItems": 60})
    async with sglang_engine([sglang_url], pause_mode="abort", limits=EngineLimits(request_timeout_s=60)) as engine:
        replies: list[Generation] = []

        async def one() -> None:
            sampling = Sampling(max_new_tokens=900, json_schema=schema, stop_token_ids=[2])
            replies.append(await engine.generate([1, 20, 30], sampling, "s"))

        async with anyio.create_task_group() as group:
            group.start_soon(one)
            await anyio.sleep(0.15)
            await engine.update_weights(versions[1], 1)
        assert {span.version for span in replies[0].versions} == {1}
        await engine.update_weights(versions[0], 0)


async def test_anthropic_streams_from_a_real_server(sglang_url: str, nano_format: ChatFormat) -> None:
    async with sglang_engine([sglang_url]) as engine, open_proxy(engine, nano_format, "nano") as proxy:
        key = proxy.open_session().key
        async with anthropic.AsyncAnthropic(base_url=proxy.url, api_key=key) as client:
            async with client.messages.stream(
                model="nano", max_tokens=20, messages=[{"role": "user", "content": "1 + 1"}]
            ) as stream:
                text = "".join([piece async for piece in stream.text_stream])
                final = await stream.get_final_message()
        assert final.content[0].text == text
