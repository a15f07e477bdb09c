"""What the proxy bears: big requests, many sessions, idle ones, slow and vanished clients."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import pytest

from agentrl.engine.client import SGLangEngine, sglang_engine
from agentrl.errors import TooManySessionsError
from agentrl.proxy import ChatFormat, Proxy, ProxyLimits, open_proxy
from tests.components import wait_until

pytestmark = pytest.mark.anyio
USER = [{"role": "user", "content": "1 2 3"}]
LONG = {"model": "nano", "messages": USER, "max_tokens": 900, "temperature": 2.0}


@asynccontextmanager
async def opened(url: str, chat_format: ChatFormat, **limits: Any) -> AsyncIterator[tuple[SGLangEngine, Proxy]]:
    async with (
        sglang_engine([url]) as engine,
        open_proxy(engine, chat_format, "nano", limits=ProxyLimits(**limits)) as proxy,
    ):
        yield engine, proxy


async def test_a_request_beyond_the_limit_is_413_through_both_doors(server_url: str, nano_format: ChatFormat) -> None:
    async with opened(server_url, nano_format, max_request_bytes=1000) as (_, proxy):
        body = json.dumps({"model": "nano", "messages": [{"role": "user", "content": "x" * 2000}]}).encode()
        headers = {"x-api-key": proxy.open_session().key}
        reply = await proxy.handle("POST", "/v1/chat/completions", headers, body)
        assert reply.status == 413
        async with aiohttp.ClientSession(headers=headers) as http:
            async with http.post(f"{proxy.base_url}/messages", data=body) as response:
                assert response.status == 413
                assert (await response.json())["error"]["type"] == "request_too_large"


async def test_sessions_are_bounded_and_a_closed_one_makes_room(server_url: str, nano_format: ChatFormat) -> None:
    async with opened(server_url, nano_format, max_sessions=2) as (_, proxy):
        first, _ = proxy.open_session(), proxy.open_session()
        with pytest.raises(TooManySessionsError, match=r"proxy\.max_sessions"):
            proxy.open_session()
        proxy.close_session(first)
        proxy.open_session()


@pytest.mark.soak
async def test_idle_sessions_are_closed_and_busy_ones_are_not(server_url: str, nano_format: ChatFormat) -> None:
    async with opened(server_url, nano_format, session_idle_timeout_s=0.3) as (engine, proxy):
        idle, busy = proxy.open_session(), proxy.open_session()
        await engine.pause("in_place")
        async with anyio.create_task_group() as group:
            headers = {"authorization": f"Bearer {busy.key}"}
            body = json.dumps({**LONG, "max_tokens": 3}).encode()
            group.start_soon(proxy.handle, "POST", "/v1/chat/completions", headers, body)
            await wait_until(lambda: idle.closed, 40)
            await anyio.sleep(0.5)
            assert not busy.closed
            await engine.resume()
        assert busy.record.turns
        await wait_until(lambda: busy.closed, 40)
        assert len(proxy.sessions) == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_vanishes_frees_the_engine(server_url: str, nano_format: ChatFormat, stream: bool) -> None:
    async with opened(server_url, nano_format) as (engine, proxy):
        headers = {"Authorization": f"Bearer {proxy.open_session().key}"}
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
        await engine.resume()


@pytest.mark.soak
@pytest.mark.timeout(120)
async def test_a_slow_reader_is_given_up_and_harms_nobody(server_url: str, nano_format: ChatFormat) -> None:
    """It asks for many long streamed replies with logprobs and reads none of them; others are answered meanwhile."""
    async with opened(server_url, nano_format, write_timeout_s=1) as (engine, proxy):
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
            await wait_until(lambda: slow.activity.requests == 1, 40)
            with anyio.fail_after(40):
                ask = json.dumps({**LONG, "max_tokens": 5}).encode()
                headers = {"authorization": f"Bearer {other.key}"}
                reply = await proxy.handle("POST", "/v1/chat/completions", headers, ask)
            assert reply.status == 200
            await wait_until(lambda: slow.activity.requests == 0, 40)
            assert engine.in_flight == 0


async def test_keys_are_told_apart_to_the_last_character(server_url: str, nano_format: ChatFormat) -> None:
    async with opened(server_url, nano_format) as (_, proxy):
        key = proxy.open_session().key
        for name, wrong in (("authorization", f"Bearer {key[:-1]}"), ("x-api-key", key + "x"), ("authorization", "")):
            assert (await proxy.handle("GET", "/v1/models", {name: wrong}, b"")).status == 401
        for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}):
            assert (await proxy.handle("GET", "/v1/models", headers, b"")).status == 200


async def test_it_listens_on_loopback_alone(server_url: str, nano_format: ChatFormat) -> None:
    async with opened(server_url, nano_format) as (_, proxy):
        assert proxy.url.startswith("http://127.0.0.1:")
