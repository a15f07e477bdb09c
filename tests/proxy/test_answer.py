"""The one loop that answers in every dialect: a stream that fails ends with an error in the words of its API, and records nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentrl.errors import EngineError
from agentrl.proxy import ChatFormat, open_proxy
from agentrl.record.tokens import Generation
from tests.instant_engine import InstantEngine

pytestmark = pytest.mark.anyio
USER = [{"role": "user", "content": "1 2 3"}]
GOOGLE = {"contents": [{"parts": [{"text": "1 2 3"}]}]}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "/v1/chat/completions": ({"messages": USER, "n": 2}, {"error": {"code": "engine_error"}}),
    "/v1/completions": ({"prompt": ["1 2", "3 4"], "n": 2}, {"error": {"code": "engine_error"}}),
    "/v1/responses": (
        {"input": "1 2 3"},
        {"type": "response.failed", "response": {"status": "failed", "error": {"code": "engine_error"}}},
    ),
    "/v1/messages": (
        {"messages": USER, "max_tokens": 9},
        {"type": "error", "error": {"details": {"error_code": "engine_error"}}},
    ),
    "/v1beta/models/nano:streamGenerateContent": (GOOGLE, {"error": {"status": "UNAVAILABLE"}}),
}
"""Of each API a request, and what the last event of its stream says where the engine fails."""


class Failing(InstantEngine):
    """Its last reply is lost, after what it grew to was shown."""

    def __init__(self, failing: int) -> None:
        super().__init__()
        self.failing = failing

    async def answer(self, *sent: Any) -> Generation:
        reply = await super().answer(*sent)
        if len(self.order) == self.failing:
            raise EngineError("no server answers")
        return reply


def holds(said: Any, wanted: Any) -> bool:
    """Whether an event says what is wanted, among other things."""
    if isinstance(wanted, dict):
        return all(holds(said.get(name), value) for name, value in wanted.items())
    return bool(said == wanted)


@pytest.mark.parametrize("path", CASES)
async def test_a_stream_that_fails_ends_with_an_error_in_the_words_of_its_api_and_is_not_recorded(
    nano_format: ChatFormat, path: str
) -> None:
    body, wanted = CASES[path]
    replies = body.get("n", 1) * (len(body["prompt"]) if "prompt" in body else 1)
    async with open_proxy(Failing(replies), nano_format, "nano") as proxy:
        session = proxy.open_session()
        content = json.dumps({"model": "nano", "stream": True, **body}).encode()
        reply = await proxy.handle("POST", f"{path}?alt=sse", {"authorization": f"Bearer {session.key}"}, content)
        assert reply.events is not None
        events = [event async for event in reply.events]
        last = [event for event in events if b"[DONE]" not in event][-1].decode()
        assert holds(json.loads(last.partition("data: ")[2]), wanted), last
        assert not session.record.turns
