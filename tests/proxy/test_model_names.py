"""The names that agents hard-code: any is answered, or those that the configuration maps, in the role that it says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest

from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.proxy import ChatFormat, Proxy, open_proxy
from agentrl.proxy.limits import ProxyLimits
from tests.instant_engine import InstantEngine

pytestmark = pytest.mark.anyio
USER: list[Any] = [{"role": "user", "content": "1 2 3"}]
NAMES = {"gpt-4o": "nano", "claude-*": "nano", "claude-haiku-*": "role:side"}


@asynccontextmanager
async def opened(chat_format: ChatFormat, **limits: Any) -> AsyncIterator[Proxy]:
    async with open_proxy(InstantEngine(), chat_format, "nano", limits=ProxyLimits(**limits)) as proxy:
        yield proxy


async def asked(proxy: Proxy, key: str, model: str, path: str = "chat/completions") -> tuple[int, Any]:
    body = {"model": model, "messages": USER} | ({"max_tokens": 9} if path == "messages" else {})
    reply = await proxy.handle("POST", f"/v1/{path}", {"authorization": f"Bearer {key}"}, json.dumps(body).encode())
    return reply.status, json.loads(reply.body)


async def test_any_name_is_answered_and_recorded_by_default(nano_format: ChatFormat) -> None:
    async with opened(nano_format) as proxy:
        session = proxy.open_session()
        async with (
            openai.AsyncOpenAI(base_url=proxy.base_url, api_key=session.key, max_retries=0) as client,
            anthropic.AsyncAnthropic(base_url=proxy.url, api_key=session.key, max_retries=0) as claude,
        ):
            await client.chat.completions.create(model="gpt-4o", messages=USER)
            await client.responses.create(model="gpt-5", input="1")
            await claude.messages.create(model="claude-opus-4-5", messages=USER, max_tokens=9)
    assert [turn.model for turn in session.record.turns] == ["gpt-4o", "gpt-5", "claude-opus-4-5"]
    assert {turn.role for turn in session.record.turns} == {""}


async def test_with_a_mapping_its_names_are_answered_in_their_roles_and_others_refused(nano_format: ChatFormat) -> None:
    async with opened(nano_format, model_names=NAMES) as proxy:
        session = proxy.open_session()
        session.role("side").trained = False
        for model in ("nano", "gpt-4o", "claude-opus-4-5", "claude-haiku-4-5"):
            assert (await asked(proxy, session.key, model))[0] == 200
        assert (await asked(proxy, f"{session.key}.judge", "claude-haiku-4-5", "messages"))[0] == 200
        for path in ("chat/completions", "messages", "messages/count_tokens"):
            status, reply = await asked(proxy, session.key, "gpt-4o-mini", path)
            assert status == 404
            assert "proxy.model_names" in reply["error"]["message"]
        headers = {"x-api-key": session.key}
        listed = json.loads((await proxy.handle("GET", "/v1/models", headers, b"")).body)
        assert [model["id"] for model in listed["data"]] == ["nano", "gpt-4o"]
        for name, status in (("claude-opus-4-5", 200), ("gemini", 404)):
            assert (await proxy.handle("GET", f"/v1/models/{name}", headers, b"")).status == status
    roles = [(turn.model, turn.role, turn.trained) for turn in session.record.turns]
    assert roles == [
        ("nano", "", True),
        ("gpt-4o", "", True),
        ("claude-opus-4-5", "", True),
        ("claude-haiku-4-5", "side", False),
        ("claude-haiku-4-5", "judge", True),
    ]
    assert "model" not in proxy.ignored, "what the configuration names is no surprise"


async def test_a_mapping_that_cannot_be_is_refused_by_name(nano_format: ChatFormat) -> None:
    with pytest.raises(ConfigError, match=r"maps 'gpt-4o' to 'nanoo'.*'nano'"):
        async with opened(nano_format, model_names={"gpt-4o": "nanoo"}):
            pass
    for bad in ("role:", "role:two words", ""):
        with pytest.raises(ConfigError, match=r"proxy\.model_names\.gpt-4o"):
            RunConfig(proxy={"model_names": {"gpt-4o": bad}})


async def test_an_empty_mapping_leaves_the_served_name_alone(nano_format: ChatFormat) -> None:
    async with opened(nano_format, model_names={}) as proxy:
        session = proxy.open_session()
        assert (await asked(proxy, session.key, "nano"))[0] == 200
        assert (await asked(proxy, session.key, "gpt-4o"))[0] == 404
