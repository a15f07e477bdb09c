"""The headers that clients read: how much more they may ask, whether to try again, and what a browser lets a page do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import openai
import pydantic
import pytest

from agentrl.proxy import ChatFormat, Proxy, ProxyLimits, open_proxy
from agentrl.proxy.http_response import Response
from tests.instant_engine import InstantEngine

pytestmark = pytest.mark.anyio
USER: list[Any] = [{"role": "user", "content": "1 2 3"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "nano", "messages": USER},
    "/v1/messages": {"model": "nano", "messages": USER, "max_tokens": 9},
}
OF_THE_LIMIT = {
    "/v1/chat/completions": ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests"),
    "/v1/messages": ("anthropic-ratelimit-requests-limit", "anthropic-ratelimit-requests-remaining"),
}
ORIGIN = "http://localhost:3000"


@asynccontextmanager
async def opened(chat_format: ChatFormat, **limits: Any) -> AsyncIterator[tuple[Proxy, InstantEngine]]:
    engine = InstantEngine()
    async with open_proxy(engine, chat_format, "nano", limits=ProxyLimits(**limits)) as proxy:
        yield proxy, engine


async def asked(proxy: Proxy, path: str, key: str, **headers: str) -> Response:
    content = json.dumps(BODIES[path]).encode()
    return await proxy.handle("POST", path, {"authorization": f"Bearer {key}", **headers}, content)


@pytest.mark.parametrize("path", BODIES)
async def test_a_reply_says_how_many_requests_the_session_may_have_in_work_and_how_many_more_that_are(
    nano_format: ChatFormat, path: str
) -> None:
    limit, remaining = OF_THE_LIMIT[path]
    async with opened(nano_format, max_requests_per_session=2) as (proxy, engine):
        session = proxy.open_session()
        reply = await asked(proxy, path, session.key)
        assert (reply.headers[limit], reply.headers[remaining]) == ("2", "2")
        await engine.pause("retract")
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(asked, proxy, path, session.key)
            with anyio.fail_after(60):
                while engine.in_flight < 2:
                    await anyio.sleep(0.01)
            refused = await asked(proxy, path, session.key)
            assert refused.status == 429
            assert (refused.headers[limit], refused.headers[remaining]) == ("2", "0")
            assert int(refused.headers["retry-after"]) >= 1
            await engine.resume()
        stranger = await asked(proxy, path, "sk-unknown")
        assert stranger.status == 401
        assert limit not in stranger.headers
    for names in OF_THE_LIMIT.values():
        assert (names[0] in reply.headers) is (names[0] == limit), "each API in its own words"


async def test_the_client_of_openai_does_not_ask_again_after_the_end_of_an_episode(nano_format: ChatFormat) -> None:
    async with opened(nano_format) as (proxy, _):
        session = proxy.open_session()
        proxy.close_session(session)
        requests: list[Any] = []

        async def count(request: Any) -> None:
            requests.append(request)

        http = openai.DefaultAsyncHttpxClient(event_hooks={"request": [count]})
        async with openai.AsyncOpenAI(base_url=proxy.base_url, api_key=session.key, http_client=http) as client:
            assert client.max_retries
            with pytest.raises(openai.ConflictError) as ended:
                await client.chat.completions.create(model="nano", messages=USER)
        assert len(requests) == 1
        assert ended.value.response.headers["x-should-retry"] == "false"


async def test_pages_of_the_origins_that_are_set_may_ask_and_read(nano_format: ChatFormat) -> None:
    wanted = {"origin": ORIGIN, "access-control-request-headers": "authorization, x-stainless-lang"}
    async with opened(nano_format, cors_origins=[ORIGIN, "https://app.example"]) as (proxy, _):
        session = proxy.open_session()
        preflight = await proxy.handle("OPTIONS", "/v1/chat/completions", wanted, b"")
        assert (preflight.status, preflight.body) == (204, b"")
        assert preflight.headers["access-control-allow-origin"] == ORIGIN
        assert preflight.headers["access-control-allow-headers"] == wanted["access-control-request-headers"]
        assert "POST" in preflight.headers["access-control-allow-methods"]
        reply = await asked(proxy, "/v1/chat/completions", session.key, origin=ORIGIN)
        assert reply.headers["access-control-allow-origin"] == ORIGIN
        assert "x-request-id" in reply.headers["access-control-expose-headers"]
        refused = await asked(proxy, "/v1/chat/completions", "sk-unknown", origin=ORIGIN)
        assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, ORIGIN), "an error is read too"
        forged = {**wanted, "access-control-request-headers": "x\r\nset-cookie: a"}
        preflight = await proxy.handle("OPTIONS", "/v1/messages", forged, b"")
        assert "cookie" not in preflight.headers["access-control-allow-headers"]
        for origin in ("http://localhost:3001", "null", ""):
            assert (await proxy.handle("OPTIONS", "/v1/messages", {**wanted, "origin": origin}, b"")).status == 405
            reply = await asked(proxy, "/v1/chat/completions", session.key, origin=origin)
            assert "access-control-allow-origin" not in reply.headers


async def test_without_the_setting_no_page_may_and_with_a_star_any(nano_format: ChatFormat) -> None:
    async with opened(nano_format) as (proxy, _):
        assert (await proxy.handle("OPTIONS", "/v1/messages", {"origin": ORIGIN}, b"")).status == 405
        reply = await asked(proxy, "/v1/messages", proxy.open_session().key, origin=ORIGIN)
        assert not [name for name in reply.headers if name.startswith("access-control")]
    async with opened(nano_format, cors_origins=["*"]) as (proxy, _):
        reply = await asked(proxy, "/v1/messages", proxy.open_session().key, origin=ORIGIN)
        assert reply.headers["access-control-allow-origin"] == "*"
    for bad in ("http://localhost:3000/", "localhost", "http://a, http://b", ""):
        with pytest.raises(pydantic.ValidationError):
            ProxyLimits(cors_origins=(bad,))


async def test_a_query_changes_no_path(nano_format: ChatFormat) -> None:
    async with opened(nano_format) as (proxy, _):
        async with openai.AsyncOpenAI(
            base_url=proxy.base_url, api_key=proxy.open_session().key, default_query={"beta": "true"}
        ) as client:
            reply = await client.chat.completions.create(model="nano", messages=USER)
    assert reply.choices
