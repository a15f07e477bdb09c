"""How requests are refused: in each API's words, with an id, and with whether and when to try again."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from agentrl.proxy import ChatFormat, Proxy, ProxyLimits, open_proxy
from agentrl.proxy.http_messages import Response
from tests.components import wait_until
from tests.instant_engine import InstantEngine

pytestmark = pytest.mark.anyio
USER: list[Any] = [{"role": "user", "content": "1 2 3"}]


@asynccontextmanager
async def opened(chat_format: ChatFormat, **limits: Any) -> AsyncIterator[tuple[Proxy, InstantEngine]]:
    engine = InstantEngine()
    async with open_proxy(engine, chat_format, "nano", limits=ProxyLimits(**limits)) as proxy:
        yield proxy, engine


async def asked(proxy: Proxy, key: str) -> Response:
    content = json.dumps({"model": "nano", "messages": USER}).encode()
    return await proxy.handle("POST", "/v1/chat/completions", {"authorization": f"Bearer {key}"}, content)


async def test_a_refusal_is_one_sentence_that_names_no_class_of_the_proxy(nano_format: ChatFormat) -> None:
    said = {
        b"{nope": "Invalid 'body': it is not sound JSON: key must be a string at line 1 column 2.",
        b'{"model": "nano", "messages": [5]}': "Invalid 'messages.0': Input should be a valid dictionary.",
        b'{"model": "nano", "messages": [{"role": "user"}]}': "Invalid 'messages.0': a message with role 'user' needs 'content'.",
    }
    async with opened(nano_format) as (proxy, _):
        headers = {"authorization": f"Bearer {proxy.open_session().key}"}
        for body, message in said.items():
            reply = await proxy.handle("POST", "/v1/chat/completions", headers, body)
            assert (reply.status, json.loads(reply.body)["error"]["message"]) == (400, message)


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


async def test_every_reply_has_one_id_by_both_of_its_names(nano_format: ChatFormat) -> None:
    async with opened(nano_format) as (proxy, _):
        replies = [await asked(proxy, key) for key in (proxy.open_session().key, "sk-unknown")]
    ids = {reply.headers[name] for reply in replies for name in ("x-request-id", "request-id")}
    assert [reply.status for reply in replies] == [200, 401]
    assert len(ids) == 2


async def test_what_nobody_expects_is_a_500_with_a_number_and_no_key(
    nano_format: ChatFormat, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PanicException(BaseException):
        """What a Rust extension raises when it panics."""

    async with opened(nano_format) as (proxy, engine):
        session = proxy.open_session()

        def failing(error: BaseException) -> Any:
            async def fail(*_: Any, **__: Any) -> None:
                raise error

            return fail

        for error in (RuntimeError("broken"), PanicException("broken")):
            monkeypatch.setattr(engine, "generate", failing(error))
            refused = await asked(proxy, session.key)
            (number,) = re.findall(r"req_\w+", refused.body.decode())
            assert refused.status == 500
            assert number in caplog.text
            for path, body, ends in (
                ("chat/completions", {"model": "nano", "messages": USER}, '"internal_error"'),
                ("completions", {"model": "nano", "prompt": "1"}, '"internal_error"'),
                ("responses", {"model": "nano", "input": "1"}, "event: response.failed"),
                ("messages", {"model": "nano", "messages": USER, "max_tokens": 5}, "event: error"),
            ):
                headers = {"x-api-key": session.key}
                content = json.dumps({**body, "stream": True}).encode()
                streamed = await proxy.handle("POST", f"/v1/{path}", headers, content)
                assert streamed.events is not None
                assert ends in b"".join([event async for event in streamed.events]).decode()
        await wait_until(lambda: session.requests == 0, 40)
    assert session.key not in caplog.text
