"""What real clients sent, sent again: each request is accepted, and its reply ends as it did.

`conformance/recording.py` says how it was recorded, and what was left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.proxy import ChatFormat, open_proxy
from tests.policy_by_prompt import PolicyByPrompt
from tests.proxy.conformance.recording import ids_in
from tests.proxy.test_agents import policy
from tests.record_invariant import assert_record_is_what_the_engine_saw

pytestmark = pytest.mark.anyio
FILES = sorted((Path(__file__).parent / "conformance").glob("*.jsonl"))
ENDS = {
    "/v1/chat/completions": "data: [DONE]",
    "/v1/responses": "event: response.completed",
    "/v1/messages": "event: message_stop",
    ":streamGenerateContent": '"finishReason"',
}
"""What a stream of each dialect ends with."""


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_what_a_client_sent_is_accepted_again(file: Path, nano_format: ChatFormat) -> None:
    lines = await in_thread(lines_of, file)
    chat_format = ChatFormat(nano_format.tokenizer, nano_format.renderer, 4_000_000)
    engine = PolicyByPrompt(chat_format, policy, has_grammar=True)
    renamed: dict[str, str] = {}
    async with open_proxy(engine, chat_format, "nano", training=True) as proxy, aiohttp.ClientSession() as http:
        session = proxy.open_session()
        key = {"authorization": f"Bearer {session.key}", "x-api-key": session.key}
        for line in lines:
            body = None if line["body"] is None else json.dumps(line["body"])
            for old, new in renamed.items():
                body = body and body.replace(f'"{old}"', f'"{new}"')
            path = proxy.url + line["path"]
            async with http.request(line["method"], path, data=body, headers={**line["headers"], **key}) as reply:
                said = (await reply.read()).decode()
            assert reply.status == line["status"], said
            if reply.content_type == "text/event-stream":
                (end,) = (mark for name, mark in ENDS.items() if line["path"].partition("?")[0].endswith(name))
                assert end in said
            renamed.update(zip(line["ids"], ids_in(said), strict=False))
        assert_record_is_what_the_engine_saw(session.record, engine.calls)
        assert sum(line["status"] == 200 and line["method"] == "POST" for line in lines) > 0


def test_every_request_of_the_recording_was_accepted() -> None:
    requests = [line for file in FILES for line in lines_of(file)]
    assert requests
    assert not [(line["path"], line["status"]) for line in requests if line["status"] != 200]
