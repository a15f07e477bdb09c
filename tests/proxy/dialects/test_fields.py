"""What a field means decides what becomes of it: honoured, refused since it would change the reply, or ignored and named."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentrl.proxy import ChatFormat, Proxy, ProxyLimits, Session, open_proxy
from agentrl.proxy.app import MAX_IGNORED
from agentrl.proxy.dialects.chat_completions import ChatRequest
from agentrl.proxy.dialects.completions import TextCompletionRequest
from agentrl.proxy.dialects.fields import CHANGES, RequestBody
from agentrl.proxy.dialects.messages import MessagesRequest
from agentrl.proxy.dialects.responses import ResponsesRequest
from agentrl.proxy.http_messages import Response
from tests.instant_engine import InstantEngine

pytestmark = pytest.mark.anyio
USER = [{"role": "user", "content": "1 2 3"}]
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"model": "nano", "messages": USER},
    "completions": {"model": "nano", "prompt": "1 2 3"},
    "responses": {"model": "nano", "input": "1 2 3"},
    "messages": {"model": "nano", "messages": USER, "max_tokens": 9},
    "messages/count_tokens": {"model": "nano", "messages": USER},
}
MODELS: dict[str, type[RequestBody]] = {
    "chat/completions": ChatRequest,
    "completions": TextCompletionRequest,
    "responses": ResponsesRequest,
    "messages": MessagesRequest,
    "messages/count_tokens": MessagesRequest,
}
GENERATING = [path for path in BODIES if path != "messages/count_tokens"]
BUILT_IN = {
    "chat/completions": [{"type": "web_search"}, {"type": "custom", "custom": {"name": "patch"}}],
    "responses": [
        {"type": "web_search"},
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {
            "type": "custom",
            "name": "apply_patch",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"},
        },
    ],
    "messages": [{"type": "web_search_20250305", "name": "web_search"}],
}


@asynccontextmanager
async def opened(chat_format: ChatFormat, **limits: Any) -> AsyncIterator[Proxy]:
    async with open_proxy(InstantEngine(), chat_format, "nano", limits=ProxyLimits(**limits)) as proxy:
        yield proxy


@pytest.fixture
async def proxy(nano_format: ChatFormat) -> AsyncIterator[Proxy]:
    async with opened(nano_format) as proxy:
        yield proxy


async def asked(proxy: Proxy, path: str, session: Session | None = None, **change: Any) -> Response:
    headers = {"authorization": f"Bearer {(session or proxy.open_session()).key}"}
    content = json.dumps({**BODIES[path], **change}).encode()
    reply = await proxy.handle("POST", f"/v1/{path}", headers, content)
    if reply.events is not None:
        reply.body = b"".join([event async for event in reply.events])
    return reply


def error(reply: Response) -> Any:
    return json.loads(reply.body)["error"]


@pytest.mark.parametrize("path", BODIES)
async def test_a_null_is_the_same_as_an_absent_field(proxy: Proxy, path: str) -> None:
    names = {field.alias or name for name, field in MODELS[path].model_fields.items()} - set(BODIES[path])
    for name in sorted({*names, *CHANGES, "unknown"} - set(BODIES[path])):
        reply = await asked(proxy, path, **{name: None})
        assert reply.status == 200, (name, reply.body)
    assert not proxy.ignored
    everything = dict.fromkeys(names)
    assert (await asked(proxy, path, **everything)).status == 200


async def test_a_null_is_absent_in_the_parts_of_a_request_too(proxy: Proxy) -> None:
    function = {"name": "add", "description": None, "parameters": None, "strict": None}
    said = {"role": "user", "content": "1", "name": None, "tool_calls": None, "refusal": None, "audio": None}
    for path, change in (
        ("chat/completions", {"messages": [said], "tools": [{"type": "function", "function": function}]}),
        ("responses", {"input": [{"type": None, "role": "user", "content": "1", "id": None, "status": None}]}),
        ("responses", {"tools": [{"type": "function", **function}], "text": {"format": None, "verbosity": None}}),
        ("messages", {"tools": [{"type": None, "name": "add", "input_schema": {}, "cache_control": None}]}),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "text", "text": "1", "citations": None}]}]}),
        ("messages", {"output_config": {"format": None, "effort": None}}),
    ):
        reply = await asked(proxy, path, **change)  # type: ignore[arg-type]
        assert reply.status == 200, reply.body


OTHER_VALUES: dict[str, Any] = {
    name: 3 if values and values[0] not in ([], {}) else {"x": 1} for name, values in CHANGES.items()
}


@pytest.mark.parametrize("path", BODIES)
async def test_what_would_change_the_reply_is_refused_by_name_unless_its_value_changes_nothing(
    proxy: Proxy, path: str
) -> None:
    for name in sorted(CHANGES.keys() - MODELS[path].model_fields.keys()):
        for neutral in CHANGES[name]:
            reply = await asked(proxy, path, **{name: neutral})
            assert reply.status == 200, (name, neutral, reply.body)
            assert not proxy.ignored, name
        session = proxy.open_session()
        reply = await asked(proxy, path, session, **{name: OTHER_VALUES[name]})
        assert reply.status == 400, name
        assert f"'{name}'" in error(reply)["message"]
        assert not session.record.turns


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("chat/completions", "previous_response_id system enable_thinking guided_json guided_regex"),
        ("completions", "tools typical_p"),
    ],
)
async def test_a_field_of_another_dialect_or_server_is_no_silent_loss(proxy: Proxy, path: str, names: str) -> None:
    for name in names.split():
        assert f"'{name}'" in error(await asked(proxy, path, **{name: {"x": 1}}))["message"]


LABELS = {"model", "store", "stream", "stream_options"}
"""Fields of a dialect that say nothing of the prompt, the sampling or the length."""
OF_THE_REPLY = {"logprobs", "top_logprobs"}
"""Fields that only say what the reply shows of itself."""


def test_what_one_dialect_honours_is_refused_by_those_that_do_not_know_it() -> None:
    declared = {field.alias or name for model in MODELS.values() for name, field in model.model_fields.items()}
    assert declared - CHANGES.keys() == LABELS | OF_THE_REPLY


async def test_how_a_reply_would_be_sampled_changes_no_count_of_its_prompt(proxy: Proxy) -> None:
    path, sampled = "messages/count_tokens", {"max_tokens": 3, "temperature": 0.5, "stop_sequences": ["x"]}
    plain, full = await asked(proxy, path), await asked(proxy, path, **sampled)
    assert (plain.status, full.status, full.body) == (200, 200, plain.body)


RUN_BY_CLIENTS: dict[str, list[dict[str, Any]]] = {
    "chat/completions": [{"type": "local_shell"}],
    "responses": [
        {"type": "local_shell"},
        {"type": "shell"},
        {"type": "shell", "environment": {"type": "local"}},
        {"type": "apply_patch"},
        {"type": "computer_use_preview", "environment": "browser", "display_width": 9, "display_height": 9},
        {"type": "namespace", "name": "files", "tools": [{"type": "apply_patch"}]},
    ],
    "messages": [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        {"type": "computer_20250124", "name": "computer", "display_width_px": 9, "display_height_px": 9},
        {"type": "memory_20250818", "name": "memory"},
    ],
}


@pytest.mark.parametrize("path", RUN_BY_CLIENTS)
async def test_tools_that_the_client_runs_are_refused_since_no_call_of_them_could_come(proxy: Proxy, path: str) -> None:
    for tool in RUN_BY_CLIENTS[path]:
        session = proxy.open_session()
        reply = await asked(proxy, path, session, tools=[tool])
        assert reply.status == 400, (tool, reply.body)
        assert "send it as a function tool" in error(reply)["message"]
        assert not session.record.turns


NAMELESS: dict[str, dict[str, Any]] = {
    "chat/completions": {"type": "function", "function": {"parameters": {}}},
    "responses": {"type": "function", "name": ""},
    "messages": {"input_schema": {}},
}


@pytest.mark.parametrize("path", NAMELESS)
async def test_a_function_needs_a_name(proxy: Proxy, path: str) -> None:
    reply = await asked(proxy, path, tools=[NAMELESS[path]])
    assert (reply.status, "a function needs 'name'" in error(reply)["message"]) == (400, True)


async def test_reasoning_has_two_names_in_a_message(proxy: Proxy) -> None:
    prompts = []
    for thought in ({"reasoning_content": "I add."}, {"reasoning": "I add."}, {"reasoning": None}):
        session = proxy.open_session()
        call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        said = {"role": "assistant", "content": "", "tool_calls": [call], **thought}
        result = {"role": "tool", "tool_call_id": "call_1", "content": "2"}
        reply = await asked(proxy, "chat/completions", session, messages=[*USER, said, result])
        assert reply.status == 200, reply.body
        prompts.append(session.record.turns[0].prompt_ids)
    assert prompts[0] == prompts[1] != prompts[2]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", GENERATING)
async def test_the_log_names_what_is_ignored_once_and_a_metric_counts_its_requests(
    proxy: Proxy, path: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    asks: dict[str, Any] = {"stream": stream, "service_tier": "auto", "brand_new": {"x": 1}, "model": "gpt-4"}
    for more in ({}, {"other": 1}, {}):
        assert (await asked(proxy, path, **asks, **more)).status == 200
    assert proxy.ignored == {"brand_new": 3, "service_tier": 3, "other": 1}
    lines = [record.getMessage() for record in caplog.records if "ignored" in record.getMessage()]
    assert [line.split(": ")[1] for line in lines] == [
        "service_tier, brand_new (docs/api.md)",
        "other (docs/api.md)",
    ]


@pytest.mark.parametrize("path", BUILT_IN)
async def test_tools_that_a_service_would_run_are_left_out_and_named(proxy: Proxy, path: str) -> None:
    session, tools = proxy.open_session(), BUILT_IN[path]
    reply = await asked(proxy, path, session, tools=tools)
    assert reply.status == 200, reply.body
    assert sorted(proxy.ignored) == sorted(f"tools.{tool['type']}" for tool in tools)
    plain = proxy.open_session()
    await asked(proxy, path, plain)
    assert session.record.turns[0].prompt_ids == plain.record.turns[0].prompt_ids


@pytest.mark.parametrize("path", GENERATING)
async def test_names_that_a_client_makes_up_do_not_fill_the_memory(proxy: Proxy, path: str) -> None:
    reply = await asked(proxy, path, **{f"name-{i}": 1 for i in range(10_000)})
    assert reply.status == 200
    assert len(proxy.ignored) == MAX_IGNORED


async def test_models_are_told_in_one_shape_under_any_name(nano_format: ChatFormat) -> None:
    async with opened(nano_format) as proxy:
        headers = {"x-api-key": proxy.open_session().key}

        async def get(path: str, method: str = "GET") -> Response:
            return await proxy.handle(method, path, headers, b"")

        for name in ("nano", "some/other"):
            assert (await get(f"/v1/models/{name}")).status == 200
        listed = json.loads((await get("/v1/models/")).body)
        assert (listed["object"], listed["has_more"], listed["data"][0]["type"]) == ("list", False, "model")
        for path in ("/", "/health", "/v1/models", "/v1/models/nano"):
            head = await get(path, "HEAD")
            assert (head.status, head.body) == (200, b"")
        assert (await proxy.handle("HEAD", "/v1/models", {}, b"")).status == 401
