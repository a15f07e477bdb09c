"""The OpenAI API as clients see it: the real `openai` client in the process, plain HTTP from outside."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import anyio
import httpx2
import openai
import pytest

from agentrl.engine.client import SGLangEngine, sglang_engine
from agentrl.engine.protocol import Sampling
from agentrl.envs.calculator_env import TOOL
from agentrl.proxy import ChatFormat, Proxy, SamplingDefaults, Session, open_proxy
from agentrl.proxy.chat_format import AssistantMessage
from agentrl.proxy.completion import Delta
from agentrl.proxy.deltas import SentDeltas
from agentrl.proxy.http_messages import InProcessTransport
from agentrl.rollout.run_episode import IN_PROCESS_URL
from tests.components import wait_until

pytestmark = pytest.mark.anyio
USER = [{"role": "user", "content": "State the final answer to the following arithmetic problem: 12 + 30 ="}]


@dataclass
class Setup:
    engine: SGLangEngine
    proxy: Proxy
    session: Session
    client: openai.AsyncOpenAI

    async def ask(self, messages: Any = USER, **options: Any) -> Any:
        options = {"max_tokens": 12, **options}
        return await self.client.chat.completions.create(model="nano", messages=messages, **options)


@pytest.fixture
async def setup(server_url: str, nano_format: ChatFormat) -> AsyncIterator[Setup]:
    async with (
        sglang_engine([server_url]) as engine,
        open_proxy(engine, nano_format, "nano") as proxy,
        httpx2.AsyncClient(transport=InProcessTransport(proxy.handle), base_url=IN_PROCESS_URL, timeout=60) as http,
    ):
        session = proxy.open_session()
        client = openai.AsyncOpenAI(api_key=session.key, base_url=IN_PROCESS_URL, http_client=http, max_retries=0)
        yield Setup(engine, proxy, session, client)


async def http_post(
    setup: Setup, body: Any, key: str | None = None, path: str = "/chat/completions"
) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {setup.session.key if key is None else key}"}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with aiohttp.ClientSession() as http:
        async with http.post(setup.proxy.base_url + path, data=data, headers=headers) as response:
            return response.status, json.loads(await response.text())


async def test_a_completion_has_openais_shape_and_is_recorded(setup: Setup) -> None:
    reply = await setup.ask()
    (turn,) = setup.session.record.turns
    assert reply.id == turn.completion_id
    assert reply.object == "chat.completion"
    assert reply.choices[0].message.role == "assistant"
    assert reply.usage.prompt_tokens == len(turn.prompt_ids)
    assert reply.usage.completion_tokens == len(turn.output_ids)
    assert reply.choices[0].logprobs is None


async def test_a_conversation_keeps_its_recorded_ids_however_the_client_spells_history(setup: Setup) -> None:
    first = await setup.ask(seed=1)
    said = first.choices[0].message
    follow_up = {"role": "user", "content": [{"type": "text", "text": "and 1 + 1 ="}]}
    await setup.ask([*USER, said, follow_up])
    await setup.ask([*USER, {"role": "assistant", "content": said.content}, follow_up])
    root, second, third = setup.session.record.turns
    assert second.parent is root
    assert third.parent is root
    assert second.token_ids()[: len(root.token_ids())] == root.token_ids()
    assert second.prompt_ids == third.prompt_ids


async def test_changed_history_or_tools_start_a_new_branch(setup: Setup) -> None:
    said = (await setup.ask()).choices[0].message
    more = {"role": "user", "content": "again"}
    await setup.ask([{"role": "user", "content": "other"}, said, more])
    await setup.ask([*USER, said, more], tools=[TOOL])
    assert [turn.parent for turn in setup.session.record.turns] == [None, None, None]


async def test_parallel_tool_calls_and_their_results(setup: Setup, nano_format: ChatFormat) -> None:
    call = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1 + 2"}}\n</tool_call>'
    ids = nano_format.tokenizer.encode(f"{call}\n{call}<|im_end|>", add_special_tokens=False)
    message = nano_format.parse(ids, [TOOL])
    assert [c["function"]["name"] for c in message.tool_calls] == ["calculator", "calculator"]
    assert json.loads(message.tool_calls[1]["function"]["arguments"]) == {"expression": "1 + 2"}
    assert message.tool_calls[0]["id"] != message.tool_calls[1]["id"]

    results = [{"role": "tool", "tool_call_id": c["id"], "content": "3"} for c in message.tool_calls]
    reply = await setup.ask([*USER, message.to_json(), *results], tools=[TOOL])
    text = nano_format.tokenizer.decode(setup.session.record.turns[0].prompt_ids)
    assert text.count("<tool_response>") == 2
    assert reply.choices[0].finish_reason in ("stop", "length", "tool_calls")


async def test_tool_choice_required_and_named_force_a_call(setup: Setup) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "calculator"}}):
        reply = await setup.ask(tools=[TOOL], tool_choice=choice, max_tokens=60, temperature=0)
        assert reply.choices[0].finish_reason == "tool_calls"
        assert reply.choices[0].message.tool_calls[0].function.name == "calculator"
    required, named = setup.session.record.turns
    assert len(named.prompt_ids) > len(required.prompt_ids), "what is forced is prompt, not sampled"


async def test_tool_choice_none_offers_no_tools(setup: Setup) -> None:
    await setup.ask(tools=[TOOL], tool_choice="none")
    await setup.ask()
    with_none, without = setup.session.record.turns
    assert with_none.prompt_ids == without.prompt_ids


async def test_without_parallel_tool_calls_the_reply_ends_with_the_first_call(setup: Setup) -> None:
    reply = await setup.ask(
        tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=80, temperature=0
    )
    assert len(reply.choices[0].message.tool_calls) == 1
    text = setup.proxy.chat_format.tokenizer.decode(setup.session.record.turns[0].output_ids)
    assert text.endswith("</tool_call>")


async def test_a_malformed_call_stays_in_the_content(nano_format: ChatFormat) -> None:
    for body in (
        '{"name": "calculator", "argum',
        '{"name": {"a": 1}, "arguments": {}}',
        '{"name": "f", "arguments": 3}',
    ):
        ids = nano_format.tokenizer.encode(f"<tool_call>\n{body}\n</tool_call><|im_end|>", add_special_tokens=False)
        message = nano_format.parse(ids, [TOOL])
        assert not message.tool_calls
        assert body in message.content


async def collect(stream: Any) -> tuple[str, list[dict[str, Any]], list[Any]]:
    content, calls, chunks = "", [], []
    async for chunk in stream:
        chunks.append(chunk)
        for choice in chunk.choices:
            content += choice.delta.content or ""
            for call in choice.delta.tool_calls or []:
                if call.index == len(calls):
                    calls.append({"id": call.id, "name": call.function.name, "arguments": ""})
                calls[call.index]["arguments"] += call.function.arguments or ""
    return content, calls, chunks


async def test_a_stream_says_what_the_whole_reply_says(setup: Setup) -> None:
    options: dict[str, Any] = {"seed": 5, "max_tokens": 30}
    await setup.ask(max_tokens=1)  # so that both replies find their prompt in the engine's cache
    whole = await setup.ask(**options)
    usage = {"include_usage": True}
    content, _, chunks = await collect(await setup.ask(stream=True, stream_options=usage, **options))
    assert content == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    _, first, second = setup.session.record.turns
    assert first.output_ids == second.output_ids


async def test_tool_calls_stream_as_deltas(setup: Setup) -> None:
    options: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required", "temperature": 0, "max_tokens": 60}
    whole = (await setup.ask(**options)).choices[0].message.tool_calls[0].function
    _, calls, chunks = await collect(await setup.ask(stream=True, **options))
    assert (calls[0]["name"], calls[0]["arguments"]) == (whole.name, whole.arguments)
    assert calls[0]["id"].startswith("call_")
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_text_streams_as_it_grows_and_a_split_character_is_held_back() -> None:
    sent = SentDeltas()
    deltas = [
        sent.growth(AssistantMessage(text), final=final)
        for text, final in (("1", False), ("1\N{REPLACEMENT CHARACTER}", False), ("1é2", False), ("1é2", True))
    ]
    assert deltas == [[Delta(text="1")], [], [Delta(text="é2")], []]


def test_a_growing_reply_holds_back_what_may_become_a_call_or_a_stop_string(nano_format: ChatFormat) -> None:
    def parse(text: str, growing: bool) -> str:
        ids = nano_format.tokenizer.encode(text, add_special_tokens=False)
        return nano_format.parse(ids, [TOOL], stop=["STOP"], growing=growing).content

    assert parse("12 STO", growing=True) == "12 "
    assert parse("12 STO", growing=False) == "12 STO"
    assert parse("12 STOP 3", growing=True) == "12 "
    assert parse('7<tool_call>\n{"name', growing=True) == "7"
    assert parse('7<tool_call>\n{"name', growing=False) == '7<tool_call>\n{"name'


async def test_n_choices_are_siblings_and_seeded_ones_differ(setup: Setup) -> None:
    reply = await setup.ask(n=3, seed=11, temperature=1.5)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    turns = setup.session.record.turns
    assert len({tuple(turn.output_ids) for turn in turns}) > 1
    assert len({turn.completion_id for turn in turns}) == 1
    _, _, chunks = await collect(await setup.ask(n=2, stream=True))
    assert {choice.index for chunk in chunks for choice in chunk.choices} == {0, 1}


async def test_logprobs_are_given_on_request(setup: Setup) -> None:
    reply = await setup.ask(logprobs=True, top_logprobs=2)
    content = reply.choices[0].logprobs.content
    turn = setup.session.record.turns[0]
    assert [entry.logprob for entry in content] == pytest.approx(turn.logprobs)
    assert all(len(entry.top_logprobs) == 2 for entry in content)
    assert bytes(content[0].bytes).decode() == content[0].token


async def test_stop_strings_are_cut_from_the_content(setup: Setup) -> None:
    for seed in range(20):
        free = (await setup.ask(seed=seed, max_tokens=8)).choices[0].message.content
        # A character that the reply does not begin with, nor repeats before.
        end = next((i for i in range(1, len(free)) if free[i] not in free[:i] + " \n"), None)
        if end is not None:
            break
    assert end is not None
    stopped = (await setup.ask(seed=seed, max_tokens=8, stop=free[end])).choices[0]
    assert stopped.message.content == free[:end].strip()
    assert stopped.finish_reason == "stop"


async def test_defaults_of_the_session_apply_where_the_request_is_silent(setup: Setup) -> None:
    session = setup.proxy.open_session(SamplingDefaults(temperature=0.25, max_tokens=2))
    client = setup.client.with_options(api_key=session.key)
    await client.chat.completions.create(model="nano", messages=USER)  # type: ignore[arg-type]
    assert session.record.turns[0].temperature == 0.25
    assert len(session.record.turns[0].output_ids) <= 2


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"best_of": 2}, "best_of", "unsupported_parameter"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_value"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        ({"functions": [{"name": "f"}]}, "functions", "unsupported_parameter"),
        ({"function_call": {"name": "f"}}, "function_call", "unsupported_parameter"),
        ({"audio": {}}, "audio", "unsupported_parameter"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "invalid_value"),
        ({"stop": ""}, "stop", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role", "invalid_value"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "nope"}}},
            "tool_choice",
            "invalid_value",
        ),
    ],
)
async def test_a_bad_request_is_400_and_names_the_parameter(
    setup: Setup, change: dict[str, Any], param: str, code: str
) -> None:
    status, reply = await http_post(setup, {"model": "nano", "messages": USER, **change})
    error = reply["error"]
    assert status == 400, reply
    assert error["type"] == "invalid_request_error"
    assert error["code"] == code
    assert error["param"] == param
    assert not setup.session.record.turns


async def test_images_are_refused_not_dropped(setup: Setup) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    status, reply = await http_post(setup, {"model": "nano", "messages": [{"role": "user", "content": [image]}]})
    assert status == 400
    assert reply["error"]["param"] == "messages"
    assert "does not take images" in reply["error"]["message"]


async def test_max_tokens_is_bounded_by_the_context(setup: Setup) -> None:
    reply = await setup.ask(max_tokens=100_000, temperature=0)
    assert reply.usage.total_tokens <= 1024


async def test_unknown_key_is_401_and_closed_episode_409(setup: Setup) -> None:
    body = {"model": "nano", "messages": USER}
    status, reply = await http_post(setup, body, key="sk-nobody")
    assert (status, reply["error"]["code"]) == (401, "invalid_api_key")
    setup.proxy.close_session(setup.session)
    status, reply = await http_post(setup, body)
    assert (status, reply["error"]["code"]) == (409, "episode_closed")
    with pytest.raises(openai.ConflictError):
        await setup.ask()


async def test_an_episode_that_closes_during_a_call_records_nothing_more(setup: Setup) -> None:
    statuses: list[int] = []

    async def call() -> None:
        status, _ = await http_post(setup, {"model": "nano", "messages": USER, "max_tokens": 300, "temperature": 2})
        statuses.append(status)

    await setup.engine.pause("in_place")
    setup.engine.fleet.running.set()
    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await wait_until(lambda: setup.engine.in_flight == 1, 40)
        setup.proxy.close_session(setup.session)
        await setup.engine.resume()
    assert statuses == [409]
    assert not setup.session.record.turns


async def test_another_model_is_answered_and_an_unknown_path_or_method_is_not(setup: Setup) -> None:
    status, reply = await http_post(setup, {"model": "gpt-4", "messages": USER})
    assert (status, reply["model"]) == (200, "gpt-4"), "agents hard-code the names of their models"
    for path, hint in {"/nothing": "", "/v1/messages": " The base URL has one /v1 too many."}.items():
        status, reply = await http_post(setup, {}, path=path)
        assert (status, reply["error"]["message"]) == (404, f"There is no POST /v1{path}.{hint}")
    headers = {"x-api-key": setup.session.key}
    url = setup.proxy.base_url + "/chat/completions"
    async with aiohttp.ClientSession(headers=headers) as http, http.get(url) as response:
        assert response.status == 404


async def test_models_and_health(setup: Setup) -> None:
    assert [model.id async for model in setup.client.models.list()] == ["nano"]
    async with aiohttp.ClientSession() as http:
        async with http.get(setup.proxy.base_url.removesuffix("/v1") + "/health") as response:
            assert (response.status, await response.json()) == (200, {"status": "ok"})


async def test_a_reader_that_leaves_a_stream_ends_its_generation(setup: Setup) -> None:
    await setup.engine.pause("in_place")
    setup.engine.fleet.running.set()
    stream = await setup.ask(stream=True, max_tokens=500)
    async for _ in stream:
        break
    await wait_until(lambda: setup.engine.in_flight == 1, 40)
    await stream.close()
    await wait_until(lambda: setup.engine.in_flight == 0, 40)
    await setup.engine.resume()
    assert not setup.session.record.turns
    assert (await setup.engine.generate([1, 2], Sampling(max_new_tokens=2), "s")).output_ids


async def test_every_choice_of_a_call_is_found_by_its_id(setup: Setup) -> None:
    reply = await setup.ask(n=2)
    assert setup.session.turns_of(reply.id) == setup.session.record.turns
    assert len(setup.session.record.turns) == 2
    with pytest.raises(KeyError):
        setup.session.turns_of("chatcmpl-unknown")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_bug_in_a_chat_format_fails_one_request_and_not_the_proxy(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    def parse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a bug in a renderer")

    with monkeypatch.context() as patched:
        patched.setattr(type(setup.proxy.chat_format.renderer), "parse_response", parse)
        with pytest.raises(openai.APIError, match="AssertionError: a bug in a renderer"):
            await collect(await setup.ask(stream=stream))
    assert (await setup.ask()).choices
