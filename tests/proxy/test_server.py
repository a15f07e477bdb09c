"""The proxy on a socket: addresses, bodies that do not come, bytes that are no HTTP, clients that leave."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import openai
import pytest

from agentrl.engine.client import SGLangEngine, sglang_engine
from agentrl.proxy import ChatFormat, Proxy, ProxyLimits, open_proxy
from tests.components import missing, wait_until
from tests.instant_engine import InstantEngine
from tests.proxy.test_limits import CHAT, USER, opened

pytestmark = pytest.mark.anyio
BODY = json.dumps(CHAT).encode()
LONG = {**CHAT, "max_tokens": 900, "temperature": 2.0}


class Client:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def of(cls, proxy: Proxy) -> Client:
        host, port = proxy.url.removeprefix("http://").split(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def close(self) -> None:
        self._writer.close()

    async def rest(self, timeout_s: float = 40) -> bytes:
        """What comes until the server closes."""
        with anyio.fail_after(timeout_s):
            try:
                return await self._reader.read()
            except ConnectionError:
                return b""
            finally:
                self._writer.close()


def post(key: str, body: bytes = BODY, *headers: str, length: int | None = None) -> bytes:
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {key}",
        "Connection: close",
        *headers,
    ]
    if not any(line.startswith("Transfer-Encoding") for line in headers):
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join([*lines, "", ""]).encode(errors="surrogateescape") + body


async def status(proxy: Proxy, request: bytes, timeout_s: float = 40) -> int:
    """The status of the reply to one request; 0: the connection was closed without one."""
    client = await Client.of(proxy)
    client.send(request)
    line = (await client.rest(timeout_s)).split(b" ", 2)
    return int(line[1]) if len(line) > 1 else 0


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "0.0.0.0", "localhost", *(pytest.param(host, marks=pytest.mark.soak) for host in ("::1", "::"))],
)
async def test_its_url_is_one_that_clients_can_use(nano_format: ChatFormat, host: str) -> None:
    if ":" in host and not socket.has_ipv6:
        missing("this machine has no IPv6")
    async with open_proxy(InstantEngine(), nano_format, "nano", host=host) as proxy:
        async with aiohttp.ClientSession() as http, http.get(f"{proxy.url}/health") as response:
            assert response.status == 200


async def test_a_body_that_does_not_come_is_given_up(nano_format: ChatFormat) -> None:
    async with opened(nano_format, body_timeout_s=0.2) as (_, proxy):
        key = proxy.open_session().key
        assert await status(proxy, post(key, length=len(BODY) + 1)) == 408


async def test_a_compressed_body_is_read_and_its_limit_is_that_of_what_it_holds(nano_format: ChatFormat) -> None:
    async with opened(nano_format, max_request_bytes=100_000) as (_, proxy):
        key = proxy.open_session().key
        assert await status(proxy, post(key, gzip.compress(BODY), "Content-Encoding: gzip")) == 200
        assert await status(proxy, post(key, gzip.compress(bytes(100_000_000)), "Content-Encoding: gzip")) == 413
        assert await status(proxy, post(key, BODY, "Content-Encoding: gzip")) == 400


async def test_a_body_is_not_waited_for_where_the_key_is_wrong(nano_format: ChatFormat) -> None:
    async with opened(nano_format) as (_, proxy):
        assert await status(proxy, post("wrong", b"", length=10_000_000)) == 401
        assert await status(proxy, post("w\udce4\udcff", b"", length=10_000_000)) == 401
        assert await status(proxy, post("\u6f22", b"", length=10_000_000)) == 401


async def test_what_is_no_request_is_refused_and_no_log_holds_a_key(
    nano_format: ChatFormat, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with opened(nano_format, max_request_bytes=10_000) as (_, proxy):
        key = proxy.open_session().key
        for request, expected in (
            (post(key, BODY, "Transfer-Encoding: chunked"), 400),
            (post(key, b"5\r\nabc\r\nzz\r\n", "Transfer-Encoding: chunked"), 400),
            (post(key, b"x" * 10_001), 413),
            (post(key, b"2711\r\n" + b"x" * 10_001 + b"\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), 413),
            (post(key, BODY, "x: " + "y" * 9000), 400),
            (post(key, BODY, *(f"x-{i}: y" for i in range(300))), 400),
            (post(key, BODY, "Content-Length: -1"), 400),
            (post(key, BODY, "b\x00d: x"), 400),
            (post(key + "\x00"), 400),
            (post(key).replace(b"POST", b"PO ST"), 400),
            (post(key).replace(b"/v1/chat/completions", b"*"), 400),
            (b"\x16\x03\x01\x02\x00" + b"\xff" * 50 + b"\r\n\r\n", 400),
            (post(f"{key}.a b"), 400),
        ):
            assert await status(proxy, request) == expected, request[:200]
        assert await status(proxy, post(key)) == 200
    assert key not in caplog.text


async def test_the_body_is_read_once_the_key_is_known_to_be_good(nano_format: ChatFormat) -> None:
    async with opened(nano_format) as (_, proxy):
        read = 0

        async def body() -> bytes:
            nonlocal read
            read += 1
            return json.dumps(CHAT).encode()

        for key in ("wrong", "ä漢", "\udcff", ""):
            for name in ("authorization", "x-api-key"):
                reply = await proxy.handle("POST", "/v1/chat/completions", {name: key}, body)
                assert reply.status == 401
        assert read == 0
        headers = {"x-api-key": proxy.open_session().key}
        assert (await proxy.handle("POST", "/v1/chat/completions", headers, body)).status == 200
        assert read == 1


@asynccontextmanager
async def served(url: str, chat_format: ChatFormat, **limits: Any) -> AsyncIterator[tuple[SGLangEngine, Proxy]]:
    async with (
        sglang_engine([url]) as engine,
        open_proxy(engine, chat_format, "nano", limits=ProxyLimits(**limits)) as proxy,
    ):
        yield engine, proxy


async def test_a_request_beyond_the_limit_is_413_in_the_words_of_its_api(nano_format: ChatFormat) -> None:
    async with opened(nano_format, max_request_bytes=1000) as (_, proxy):
        body = json.dumps({"model": "nano", "messages": [{"role": "user", "content": "x" * 2000}]}).encode()
        headers = {"x-api-key": proxy.open_session().key}
        async with aiohttp.ClientSession(headers=headers) as http:
            async with http.post(f"{proxy.base_url}/messages", data=body) as response:
                assert response.status == 413
                assert (await response.json())["error"]["type"] == "request_too_large"


@pytest.mark.soak
@pytest.mark.usefixtures("no_garbage_collection")
async def test_logprobs_of_a_long_reply_are_made_beside_the_event_loop(nano_format: ChatFormat) -> None:
    """The loop's thread computes much less than it takes to read and write such a reply once."""
    async with opened(ChatFormat(nano_format.tokenizer, nano_format.renderer, 50_000)) as (engine, proxy):
        engine.tokens = 10_000
        body = {**CHAT, "logprobs": True, "top_logprobs": 20, "max_tokens": 10_000, "n": 2}
        computed_s: dict[bool, float] = {}
        for stream in (False, True):
            before_s = time.thread_time()
            headers = {"x-api-key": proxy.open_session().key}
            content = json.dumps({**body, "stream": stream}).encode()
            reply = await proxy.handle("POST", "/v1/chat/completions", headers, content)
            text = reply.body if reply.events is None else b"".join([event async for event in reply.events])
            computed_s[stream] = time.thread_time() - before_s
            assert text.count(b'"top_logprobs"') == 20_000
            if not stream:
                before_s = time.thread_time()
                document = json.loads(text)
                json.dumps(document)
                written_s = time.thread_time() - before_s
                assert len(document["choices"][1]["logprobs"]["content"][9_999]["top_logprobs"]) == 20
        assert max(computed_s.values()) < written_s / 2, (computed_s, written_s)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_vanishes_frees_the_engine(server_url: str, nano_format: ChatFormat, stream: bool) -> None:
    async with served(server_url, nano_format) as (engine, proxy):
        session = proxy.open_session()
        headers = {"Authorization": f"Bearer {session.key}"}
        body = {**LONG, "stream": stream}

        async def ask() -> None:
            async with aiohttp.ClientSession() as http:
                async with http.post(f"{proxy.base_url}/chat/completions", json=body, headers=headers) as response:
                    await response.read()

        await engine.pause("in_place")  # so that only the client's end can end the reply
        engine.fleet.running.set()
        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await wait_until(lambda: engine.in_flight == 1, 40)
            group.cancel_scope.cancel()
        await wait_until(lambda: engine.in_flight == 0, 40)
        assert not session.record.turns
        await engine.resume()


@pytest.mark.soak
@pytest.mark.timeout(120)
async def test_a_slow_reader_is_given_up_and_harms_nobody(server_url: str, nano_format: ChatFormat) -> None:
    """It asks for many long streamed replies with logprobs and reads none of them; others are answered meanwhile."""
    async with served(server_url, nano_format, write_timeout_s=1) as (engine, proxy):
        slow, other = proxy.open_session(), proxy.open_session()
        body = json.dumps(
            {**LONG, "stream": True, "n": 32, "logprobs": True, "top_logprobs": 20, "max_tokens": 700}
        ).encode()
        host, port = proxy.url.removeprefix("http://").split(":")
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            raw.setblocking(False)
            with anyio.fail_after(40):
                while True:
                    try:
                        raw.connect((host, int(port)))
                        break
                    except (BlockingIOError, InterruptedError):
                        await anyio.sleep(0.01)
                    except OSError:
                        break  # connected meanwhile
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {slow.key}\r\n"
            raw.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await wait_until(lambda: slow.requests == 1, 40)
            with anyio.fail_after(40):
                ask = json.dumps({**LONG, "max_tokens": 5}).encode()
                headers = {"authorization": f"Bearer {other.key}"}
                reply = await proxy.handle("POST", "/v1/chat/completions", headers, ask)
            assert reply.status == 200
            await wait_until(lambda: slow.requests == 0, 40)
            assert engine.in_flight == 0


async def test_it_listens_on_loopback_alone(server_url: str, nano_format: ChatFormat) -> None:
    async with served(server_url, nano_format) as (_, proxy):
        assert proxy.url.startswith("http://127.0.0.1:")


async def test_a_query_changes_no_path(nano_format: ChatFormat) -> None:
    async with opened(nano_format) as (_, proxy):
        async with openai.AsyncOpenAI(
            base_url=proxy.base_url, api_key=proxy.open_session().key, default_query={"beta": "true"}
        ) as client:
            reply = await client.chat.completions.create(model="nano", messages=[USER])
    assert reply.choices
