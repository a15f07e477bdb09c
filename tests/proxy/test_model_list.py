"""The names that agents hard-code: any is answered."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from agentrl.proxy import ChatFormat, open_proxy
from tests.instant_engine import InstantEngine

pytestmark = pytest.mark.anyio
USER: list[Any] = [{"role": "user", "content": "1 2 3"}]


async def test_any_name_is_answered_and_recorded_by_default(nano_format: ChatFormat) -> None:
    async with open_proxy(InstantEngine(), nano_format, "nano") as proxy:
        session = proxy.open_session()
        async with (
            openai.AsyncOpenAI(base_url=proxy.base_url, api_key=session.key, max_retries=0) as client,
            anthropic.AsyncAnthropic(base_url=proxy.url, api_key=session.key, max_retries=0) as claude,
        ):
            await client.chat.completions.create(model="gpt-4o", messages=USER)
            await client.responses.create(model="gpt-5", input="1")
            await claude.messages.create(model="claude-opus-4-5", messages=USER, max_tokens=9)
            assert [model.id async for model in client.models.list()] == ["nano"]
    assert [turn.model for turn in session.record.turns] == ["gpt-4o", "gpt-5", "claude-opus-4-5"]
    assert {turn.role for turn in session.record.turns} == {""}
