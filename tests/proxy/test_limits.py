"""What a request may ask for: each bound is checked before the work that it bounds, and its refusal names it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentrl.proxy import ChatFormat, Proxy, ProxyLimits, Session, open_proxy
from agentrl.proxy.tokenizer import LeanTokenizer
from tests.instant_engine import InstantEngine

pytestmark = pytest.mark.anyio
USER = {"role": "user", "content": "1 2 3"}
CHAT: dict[str, Any] = {"model": "nano", "messages": [USER]}
TEXT: dict[str, Any] = {"model": "nano", "prompt": "1 2 3"}
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("add", "subtract", "multiply")]
DEEP = 100_000


@asynccontextmanager
async def opened(chat_format: ChatFormat, **limits: Any) -> AsyncIterator[tuple[InstantEngine, Proxy]]:
    engine = InstantEngine()
    async with open_proxy(engine, chat_format, "nano", limits=ProxyLimits(**limits)) as proxy:
        yield engine, proxy


async def asked(proxy: Proxy, body: Any, path: str = "chat/completions", session: Session | None = None) -> Any:
    """The status and the JSON of a reply. `body` is JSON, or bytes as they are."""
    headers = {"authorization": f"Bearer {(session or proxy.open_session()).key}"}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = await proxy.handle("POST", f"/v1/{path}", headers, content)
    return reply.status, json.loads(reply.body)


def with_arguments(arguments: str) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": arguments}}
    return {**CHAT, "messages": [USER, {"role": "assistant", "tool_calls": [call]}, USER]}


async def test_more_replies_than_one_request_may_have_are_refused(nano_format: ChatFormat) -> None:
    async with opened(nano_format) as (engine, proxy):
        status, reply = await asked(proxy, {**TEXT, "prompt": ["1"] * 9, "n": 114}, "completions")
        assert (status, reply["error"]["param"]) == (400, "n")
        assert "1026 replies are more than the 1024" in reply["error"]["message"]
        assert not engine.order


@pytest.mark.parametrize(
    ("path", "body", "param", "bound"),
    [
        ("chat/completions", {**CHAT, "stop": ["a"] * 5}, "stop", "at most 4 items"),
        ("completions", {**TEXT, "stop": ["a"] * 5}, "stop", "at most 4 items"),
        ("completions", {**TEXT, "prompt": []}, "prompt", "at least 1 item"),
        ("completions", {**TEXT, "prompt": [[30], []]}, "prompt.1", "at least 1 item"),
    ],
)
async def test_a_field_of_several_types_is_told_the_bound_that_it_breaks(
    nano_format: ChatFormat, path: str, body: dict[str, Any], param: str, bound: str
) -> None:
    async with opened(nano_format) as (_, proxy):
        status, reply = await asked(proxy, body, path)
    assert (status, reply["error"]["param"]) == (400, param)
    assert bound in reply["error"]["message"]


@pytest.mark.parametrize("prompt", ["1 " * 200_000, [30] * 200_000])
async def test_a_raw_prompt_that_is_too_long_is_refused_by_its_own_name(nano_format: ChatFormat, prompt: Any) -> None:
    async with opened(nano_format) as (_, proxy):
        _, reply = await asked(proxy, {**TEXT, "prompt": prompt}, "completions")
    assert (reply["error"]["param"], "'prompt' takes" in reply["error"]["message"]) == ("prompt", True)


TOO_LONG: list[tuple[str, dict[str, Any]]] = [
    ("chat/completions", {**CHAT, "messages": [{"role": "user", "content": "1 2 3 " * 1_000_000}]}),
    ("completions", {**TEXT, "prompt": "1 2 3 " * 1_000_000}),
    ("completions", {**TEXT, "prompt": ["1 2 3"] * 20_000}),
    ("completions", {**TEXT, "prompt": [30] * 200_000}),
    ("messages", {**CHAT, "max_tokens": 1, "system": "1 2 3 " * 1_000_000}),
    ("messages/count_tokens", {**CHAT, "system": "1 2 3 " * 1_000_000}),
]
MAY_FIT = {**CHAT, "messages": [{"role": "user", "content": "1 2 3 " * 80_000}]}


@pytest.fixture
def tokenised(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The length of each text that is tokenised, and the thread that does it."""
    texts: list[tuple[int, int]] = []
    encode = LeanTokenizer.encode

    def noted(self: LeanTokenizer, text: str, add_special_tokens: bool = False) -> list[int]:
        texts.append((len(text), threading.get_ident()))
        return encode(self, text, add_special_tokens)

    monkeypatch.setattr(LeanTokenizer, "encode", noted)
    return texts


@pytest.mark.parametrize(("path", "body"), TOO_LONG)
async def test_what_cannot_fit_is_refused_before_it_is_tokenised(
    nano_format: ChatFormat, tokenised: list[tuple[int, int]], path: str, body: dict[str, Any]
) -> None:
    async with opened(nano_format) as (_, proxy):
        status, _ = await asked(proxy, body, path)
    assert status == 400
    assert sum(length for length, _ in tokenised) < 10_000


@pytest.mark.soak
@pytest.mark.parametrize(("path", "body"), TOO_LONG)
@pytest.mark.usefixtures("no_garbage_collection")
async def test_what_cannot_fit_is_refused_in_little_time(
    nano_format: ChatFormat, path: str, body: dict[str, Any]
) -> None:
    async with opened(nano_format) as (_, proxy):
        content = json.dumps(body).encode()
        used = time.thread_time(), time.process_time()
        status, _ = await asked(proxy, content, path)
        assert status == 400
        assert time.thread_time() - used[0] < 0.05, "the event loop's thread did the work"
        assert time.process_time() - used[1] < 0.5


async def test_a_text_that_may_fit_is_tokenised_beside_the_event_loop(
    nano_format: ChatFormat, tokenised: list[tuple[int, int]]
) -> None:
    async with opened(ChatFormat(nano_format.tokenizer, nano_format.renderer, 100_000)) as (_, proxy):
        status, reply = await asked(proxy, MAY_FIT)
    assert (status, reply["error"]["code"]) == (400, "context_length_exceeded")
    (thread,) = (thread for length, thread in tokenised if length > 100_000)
    assert thread != threading.get_ident()


@pytest.mark.parametrize(("said", "beside"), [("1 2 3", False), ("1 2 3 " * 5_000, True)])
async def test_a_short_request_is_rendered_on_the_event_loop_unless_its_conversation_is_long(
    nano_format: ChatFormat, tokenised: list[tuple[int, int]], said: str, beside: bool
) -> None:
    async with opened(ChatFormat(nano_format.tokenizer, nano_format.renderer, 100_000)) as (_, proxy):
        session = proxy.open_session()
        _, first = await asked(proxy, {"model": "nano", "input": said}, "responses", session)
        tokenised.clear()
        await asked(proxy, {"model": "nano", "input": "4", "previous_response_id": first["id"]}, "responses", session)
    (_, thread), *_ = tokenised
    assert (thread != threading.get_ident(), len(session.record.turns)) == (beside, 2)


@pytest.mark.parametrize(
    "text",
    [
        b'{"model": "nano", "messages": NaN}',
        b'{"model": "nano", "messages": [{"role": "user", "content": "1"}], "temperature": Infinity}',
        b'{"model": "nano", "model": "nano", "messages": [{"role": "user", "content": "1"}]}',
        b'{"model": "nano", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "nano", "messages": [{"role": "user", "content": "\xff"}]}',
        b'{"model": "nano", "messages": [{"role": "user", "content": "1"}], "seed": ' + b"9" * 5000 + b"}",
        b'{"model": "nano", "messages": ' + b"[" * DEEP + b"]" * DEEP + b"}",
        b'{"model": "nano", "messages": [], "x": ' + b'{"a":' * 300 + b"1" + b"}" * 300 + b"}",
        b'{"messages"' + b", 1" * DEEP,
        json.dumps({str(i): i for i in range(DEEP)}).encode(),
        json.dumps({"model": "nano", "messages": [{}] * DEEP}).encode(),
        b"",
        b"\0",
        b"[]",
    ],
)
async def test_what_is_no_sound_json_of_the_right_types_is_400(nano_format: ChatFormat, text: bytes) -> None:
    async with opened(nano_format) as (engine, proxy):
        for path in ("chat/completions", "completions", "responses", "messages", "messages/count_tokens"):
            status, reply = await asked(proxy, text, path)
            assert status == 400, (path, reply)
        assert not engine.order


@pytest.mark.parametrize("field", ["n", "seed", "max_tokens", "temperature", "stream"])
@pytest.mark.parametrize("value", ["{}", '"1"', "[1]", "-1", "1e30", "9" * 400])
async def test_a_value_of_another_type_is_400_where_the_field_means_something(
    nano_format: ChatFormat, field: str, value: str
) -> None:
    async with opened(nano_format) as (engine, proxy):
        text = json.dumps(CHAT)[:-1].encode() + f', "{field}": {value}}}'.encode()
        status, reply = await asked(proxy, text)
        assert (status, reply["error"]["param"]) == (400, field)
        assert not engine.order


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":['])
async def test_tool_arguments_of_any_depth_are_answered_or_refused(nano_format: ChatFormat, opening: str) -> None:
    async with opened(ChatFormat(nano_format.tokenizer, nano_format.renderer, 10_000)) as (_, proxy):
        for depth in (10, 66, 1_000, DEEP):
            status, reply = await asked(proxy, with_arguments(opening * depth))
            assert status == 200 if depth < 100 else status in (200, 400), reply


@pytest.mark.parametrize(
    "said",
    ['{"name": "add", "arguments": ' + '{"a":' * 5000, '{"name": "add", "arguments": {"a": "\\ud800"}}', '{"name": "\\ud800", "arguments": {}}',
     '{"name": "add", "arguments": {"a": NaN}}', '{"name": "add", "arguments": {"a": 1e999}}', '{"name": "add", "arguments": {"a": ' + "9" * 5000 + "}}"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
async def test_whatever_the_model_writes_can_be_answered(nano_format: ChatFormat, said: str, path: str) -> None:
    tools = {"messages": [{"name": "add", "input_schema": {}}], "responses": [{"type": "function", "name": "add"}]}
    start, end = (nano_format.tokenizer.convert_tokens_to_ids(t) for t in ("<tool_call>", "</tool_call>"))
    chat_format = ChatFormat(nano_format.tokenizer, nano_format.renderer, 100_000)
    ids = nano_format.tokenizer.encode(f"\n{said}\n")
    async with opened(chat_format) as (engine, proxy):
        engine.reply, engine.tokens = [start, *ids, end], len(ids) + 3
        body = {
            "model": "nano",
            "tools": tools.get(path, TOOLS[:1]),
            **({"max_tokens": 50_000} if path == "messages" else {}),
        }
        body |= {"input": "1"} if path == "responses" else {"messages": [USER]}
        for stream in (False, True):
            session = proxy.open_session()
            headers = {"authorization": f"Bearer {session.key}"}
            content = json.dumps({**body, "stream": stream}).encode()
            reply = await proxy.handle("POST", f"/v1/{path}", headers, content)
            assert reply.status == 200
            text = reply.body if reply.events is None else b"".join([event async for event in reply.events])
            assert b"internal_error" not in text
            if not stream:
                json.loads(text, parse_constant=pytest.fail)
            assert len(session.record.turns) == 1


async def test_each_message_of_a_conversation_of_responses_is_kept_once(nano_format: ChatFormat) -> None:
    async with opened(nano_format) as (engine, proxy):
        engine.tokens = 2
        session, last, rounds = proxy.open_session(), None, 12
        for number in range(rounds):
            body = {"model": "nano", "input": f"{number}", "instructions": "1 2", "previous_response_id": last}
            status, reply = await asked(proxy, body, "responses", session)
            assert status == 200, reply
            last = reply["id"]
        kept = {id(message) for history in session.histories.values() for message in history.messages}
        assert len(kept) == 2 * rounds
        assert last is not None
        said = session.histories[last].messages
        assert [message["content"] for message in said if message["role"] == "user"] == [str(n) for n in range(rounds)]
        assert [message["role"] for message in said] == ["user", "assistant"] * rounds
