"""What real clients sent, sent again: each request is accepted, its reply is what the client's SDK takes, and the record has the turn.

`conformance/recording.py` says how it was recorded, and what was left out.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.errors import EngineError
from agentrl.proxy import ChatFormat, Session, open_proxy
from tests.policy_by_prompt import PolicyByPrompt
from tests.proxy.conformance.recording import ids_in
from tests.proxy.conformance.replies import Reply, check_other, dialect_of, read_reply
from tests.record_invariant import assert_record_is_what_the_engine_saw

pytestmark = pytest.mark.anyio
FOLDER = Path(__file__).parent / "conformance"
FILES = sorted(FOLDER.glob("*.jsonl"))
LEAST_CLIENTS = 31
LEAST_REQUESTS = 820
MOST_BYTES = 3_000_000
"""Of all files together."""
REFUSED: dict[int, str] = {503: "the engine failed, as the test's plan says, and the client tried again"}
"""What a recorded request may have been answered with beside 200. docs/api.md lists what is refused."""


def lines_of(file: Path) -> list[dict[str, Any]]:
    """The header of a recording, and its requests."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def check(reply: Reply, line: dict[str, Any], session: Session, known: int) -> None:
    """Check a reply against what the model said, and against the turns that the record has of it."""
    turns = session.record.turns[known:]
    said = line["replies"]
    assert len(turns) == len(said)
    for turn in turns:
        assert len(turn.logprobs) == len(turn.output_ids) > 0
    if reply.output_tokens is not None:
        assert reply.output_tokens == sum(len(turn.output_ids) for turn in turns)
        asked = line["body"].get("prompt")
        count = len(asked) if isinstance(asked, list) and not isinstance(asked[0], int) else 1
        prompts = turns[:: len(turns) // count]
        assert reply.prompt_tokens == sum(turn.length - len(turn.output_ids) for turn in prompts)
    thoughtless = [one.rpartition("</think>")[2].strip() for one in said]
    offered = line["body"].get("tools") or line["body"].get("functions")
    if len(said) == 1 and not any(one.startswith("<tool_call>") for one in thoughtless):
        assert thoughtless[0].startswith(reply.texts[0].strip())
    elif len(said) == 1 and offered:
        assert len(reply.called) == said[0].count("<tool_call>")
        assert all(f'"{name}"' in said[0] for name, _ in reply.called)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_what_a_client_sent_is_answered_again_as_it_needs(file: Path, nano_format: ChatFormat) -> None:
    _, *lines = await in_thread(lines_of, file)
    chat_format = ChatFormat(nano_format.tokenizer, nano_format.renderer, 4_000_000)
    replies: list[str | None] = []

    def reply(prompt: str) -> str:
        said = replies.pop(0)
        if said is None:
            raise EngineError("The engine fails, as it did.")
        return said

    engine = PolicyByPrompt(chat_format, reply, has_grammar=True)
    renamed: dict[str, str] = {}
    async with open_proxy(engine, chat_format, "nano", training=True) as proxy, aiohttp.ClientSession() as http:
        sessions = [proxy.open_session() for _ in range(1 + max(line["session"] for line in lines))]
        calls: list[list[Any]] = [[] for _ in sessions]
        for line in lines:
            session = sessions[line["session"]]
            key = {"authorization": f"Bearer {session.key}", "x-api-key": session.key}
            replies[:] = line["replies"]
            body = None if line["body"] is None else json.dumps(line["body"])
            path = line["path"].replace("key=KEY", f"key={session.key}")
            for old, new in renamed.items():
                body = body and body.replace(f'"{old}"', f'"{new}"')
                path = path.replace(old, new)
            known, called = len(session.record.turns), len(engine.calls)
            headers = {**line["headers"], **key}
            async with http.request(line["method"], proxy.url + path, data=body, headers=headers) as answer:
                said = (await answer.read()).decode()
            assert answer.status == line["status"], said
            assert not replies
            calls[line["session"]] += engine.calls[called:]
            renamed.update(zip(line["ids"], ids_in(said), strict=True))
            dialect = dialect_of(line["method"], path)
            if answer.status != 200:
                assert json.loads(said)["error"]["message"]
            elif dialect is None:
                check_other(line["method"], path, said)
            else:
                reply = read_reply(dialect, answer.content_type, said)
                if line["replies"]:
                    check(reply, line, session, known)
                else:
                    # The client had not got the reply before, and sent the request again.
                    assert line["headers"]["x-stainless-retry-count"] != "0"
                    assert len(session.record.turns) == known
        for session, seen in zip(sessions, calls, strict=True):
            assert_record_is_what_the_engine_saw(session.record, seen)
    assert any(dialect_of(line["method"], line["path"]) for line in lines)


def test_every_request_of_the_recordings_was_accepted() -> None:
    requests = [line for file in FILES for line in lines_of(file)[1:]]
    assert not [(line["path"], line["status"]) for line in requests if line["status"] not in (200, *REFUSED)]
    failed = [line for line in requests if line["status"] == 503]
    assert all(line["replies"][-1] is None for line in failed)


def test_there_are_as_many_clients_and_requests_as_the_docs_say() -> None:
    requests: Counter[str] = Counter()
    for file in FILES:
        header, *lines = lines_of(file)
        assert header["version"]
        requests[header["client"]] += len(lines)
    assert len(requests) >= LEAST_CLIENTS
    assert requests.total() >= LEAST_REQUESTS
    assert sum(file.stat().st_size for file in FILES) <= MOST_BYTES
