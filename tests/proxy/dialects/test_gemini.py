"""Google's own client, unmodified, over loopback HTTP, and what its API asks for and does not get."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from google import genai
from google.genai import errors, types

from agentrl.proxy import ChatFormat, Proxy, Session, open_proxy
from agentrl.proxy.dialects.gemini import json_schema
from agentrl.proxy.http_messages import Response
from tests.instant_engine import InstantEngine
from tests.policy_by_prompt import PolicyByPrompt
from tests.record_invariant import assert_record_is_what_the_engine_saw

pytestmark = [
    pytest.mark.anyio,
    # Google's client derives a class from aiohttp's, which aiohttp warns of.
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),
]
CALL = '<tool_call>\n{"name": "add", "arguments": {"x": 1, "y": 2}}\n</tool_call>'
ADD = types.FunctionDeclaration(
    name="add",
    description="Add two numbers.",
    parameters=types.Schema(
        type=types.Type.OBJECT,
        properties={"x": types.Schema(type=types.Type.INTEGER), "y": types.Schema(type=types.Type.INTEGER)},
        required=["x", "y"],
    ),
)
TOOLS: Any = [types.Tool(function_declarations=[ADD])]
GENERATE = "/v1beta/models/nano:generateContent"
CONTENTS: list[Any] = [{"role": "user", "parts": [{"text": "1 + 2"}]}]


@dataclass
class Setup:
    proxy: Proxy
    session: Session
    client: genai.Client
    replies: list[str]
    engine: PolicyByPrompt

    def in_order(self) -> None:
        turns = self.session.record.turns
        assert [turn.parent for turn in turns] == [None, *turns[:-1]]
        assert len(self.session.record.leaves()) == 1

    def prompt(self, index: int) -> str:
        turn = self.session.record.turns[index]
        return self.proxy.chat_format.decode(turn.token_ids()[: turn.length - len(turn.output_ids)])


def google_client(proxy: Proxy, key: str) -> genai.Client:
    return genai.Client(api_key=key, http_options=types.HttpOptions(base_url=proxy.url))


@pytest.fixture
async def setup(nano_format: ChatFormat, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Setup]:
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    replies: list[str] = []
    engine = PolicyByPrompt(nano_format, lambda _: replies.pop(0) if replies else "done", has_grammar=True)
    async with open_proxy(engine, nano_format, "nano") as proxy:
        session = proxy.open_session()
        client = google_client(proxy, session.key)
        try:
            yield Setup(proxy, session, client, replies, engine)
        finally:
            await client.aio.aclose()
            client.close()
        assert_record_is_what_the_engine_saw(session.record, engine.calls)


async def posted(proxy: Proxy, body: dict[str, Any], target: str = GENERATE, key: str = "") -> Response:
    headers = {"x-goog-api-key": key or proxy.open_session().key}
    return await proxy.handle("POST", target, headers, json.dumps({"contents": CONTENTS, **body}).encode())


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_that_calls_tools_is_one_root_and_one_leaf(setup: Setup, stream: bool) -> None:
    setup.replies += ["I add.\n" + CALL + "\n" + CALL, CALL, "The sum is 3.", "Bye."]
    config = types.GenerateContentConfig(
        tools=TOOLS, system_instruction="Be brief.", temperature=0.5, top_p=0.9, max_output_tokens=200, seed=7
    )
    chat = setup.client.aio.chats.create(model="gemini-3-pro", config=config)

    async def say(message: Any) -> tuple[str, list[Any]]:
        if stream:
            replies = [reply async for reply in await chat.send_message_stream(message)]
        else:
            replies = [await chat.send_message(message)]
        parts = [part for reply in replies for part in reply.candidates[0].content.parts]
        assert replies[-1].candidates[0].finish_reason == types.FinishReason.STOP
        assert replies[-1].usage_metadata.candidates_token_count == len(setup.session.record.turns[-1].output_ids)
        return "".join(part.text or "" for part in parts), [p.function_call for p in parts if p.function_call]

    text, calls = await say("1 + 2")
    assert text.strip() == "I add."
    assert [(call.name, call.args) for call in calls] == [("add", {"x": 1, "y": 2})] * 2
    answers = [types.Part.from_function_response(name="add", response={"result": value}) for value in ("3", "4")]
    _, (call,) = await say(answers)
    answer = types.FunctionResponse(id=call.id, name=call.name, response={"output": {"sum": 3}})
    text, calls = await say(types.Part(function_response=answer))
    assert (text, calls) == ("The sum is 3.", [])
    assert (await say("Bye"))[0] == "Bye."
    setup.in_order()
    shown = setup.prompt(3)
    assert shown.index("Be brief.") < shown.index('"add"') < shown.index("1 + 2")
    assert shown.count("<tool_response>") == 3
    assert '{"sum": 3}' in shown
    assert '"type": "object"' in shown, "types are those of JSON schemas"
    assert {turn.model for turn in setup.session.record.turns} == {"gemini-3-pro"}
    assert {turn.temperature for turn in setup.session.record.turns} == {0.5}


async def test_the_clients_own_loop_calls_python_functions(setup: Setup) -> None:
    setup.replies += [CALL, CALL, "The sum is 3."]
    added: list[int] = []

    def add(x: int, y: int) -> int:
        """Add two numbers."""
        added.append(x + y)
        return x + y

    config = types.GenerateContentConfig(tools=[add])
    reply = await setup.client.aio.models.generate_content(model="any", contents="1 + 2", config=config)
    assert (reply.text, added) == ("The sum is 3.", [3, 3])
    setup.in_order()


async def test_calls_without_ids_go_on_from_the_recorded_turn(setup: Setup) -> None:
    setup.replies += [CALL]
    config = types.GenerateContentConfig(tools=TOOLS)
    question = types.Content(role="user", parts=[types.Part(text="1 + 2")])
    first = await setup.client.aio.models.generate_content(model="any", contents=[question], config=config)
    assert first.candidates is not None
    said = types.Content(
        role="model", parts=[types.Part(function_call=types.FunctionCall(name="add", args={"x": 1, "y": 2}))]
    )
    answer = types.Content(
        role="user", parts=[types.Part(function_response=types.FunctionResponse(name="add", response={"result": "3"}))]
    )
    await setup.client.aio.models.generate_content(model="any", contents=[question, said, answer], config=config)
    setup.in_order()


async def test_a_reply_in_json_has_the_schema_that_was_asked_for(setup: Setup) -> None:
    setup.replies += ['{"sum": 3}'] * 2
    schema = types.Schema(
        type=types.Type.OBJECT, properties={"sum": types.Schema(type=types.Type.INTEGER, nullable=True)}
    )
    for one in ({"response_schema": schema}, {"response_json_schema": {"type": "object"}}):
        config = types.GenerateContentConfig(response_mime_type="application/json", **one)  # type: ignore[arg-type]
        reply = await setup.client.aio.models.generate_content(model="any", contents="1 + 2", config=config)
        assert json.loads(reply.text or "") == {"sum": 3}


async def test_several_candidates_and_stop_sequences(setup: Setup) -> None:
    setup.replies += ["one", "two"]
    config = types.GenerateContentConfig(candidate_count=2, stop_sequences=["never said"], top_k=5)
    reply = await setup.client.aio.models.generate_content(model="any", contents="1", config=config)
    assert reply.candidates is not None
    assert {candidate.content.parts[0].text for candidate in reply.candidates} == {"one", "two"}  # type: ignore[union-attr, index]
    assert [turn.alterations for turn in setup.session.record.turns] == [{"top_k": 5}] * 2


async def test_a_last_content_of_the_models_is_continued(setup: Setup) -> None:
    setup.replies += [" 3."]
    begun = types.Content(role="model", parts=[types.Part(text="The sum is")])
    question = types.Content(role="user", parts=[types.Part(text="1 + 2")])
    reply = await setup.client.aio.models.generate_content(model="any", contents=[question, begun])
    assert reply.text == " 3."
    said = types.Content(role="model", parts=[types.Part(text=reply.text)])
    await setup.client.aio.models.generate_content(model="any", contents=[question, begun, said, question])
    setup.in_order()


async def test_tokens_are_counted_and_models_told(setup: Setup) -> None:
    counted = await setup.client.aio.models.count_tokens(model="any", contents="1 + 2")
    await setup.client.aio.models.generate_content(model="any", contents="1 + 2")
    assert counted.total_tokens == len(setup.session.record.turns[0].prompt_ids)
    listed = [model.name async for model in await setup.client.aio.models.list()]
    assert listed == ["models/nano"]
    told = await setup.client.aio.models.get(model="nano")
    assert told.input_token_limit == setup.proxy.chat_format.context_length


async def test_errors_are_googles(setup: Setup) -> None:
    stranger = google_client(setup.proxy, "unknown")
    with pytest.raises(errors.ClientError) as unknown:
        await stranger.aio.models.generate_content(model="any", contents="1")
    assert (unknown.value.code, unknown.value.status) == (401, "UNAUTHENTICATED")
    await stranger.aio.aclose()
    stranger.close()
    with pytest.raises(errors.ClientError) as refused:
        await setup.client.aio.models.generate_content(
            model="any", contents="1", config=types.GenerateContentConfig(temperature=3)
        )
    assert (refused.value.code, refused.value.status) == (400, "INVALID_ARGUMENT")
    assert "temperature" in str(refused.value)
    await setup.client.aio.models.generate_content(model="any", contents="1")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"contents": []}, "contents"),
        ({"contents": [{"parts": [{"fileData": {"fileUri": "x"}}]}]}, "contents"),
        ({"contents": [{"parts": [{"functionResponse": {"name": "f", "response": {}}}]}]}, "contents"),
        ({"contents": [*CONTENTS, {"role": "model", "parts": [{"functionCall": {"name": "f"}}]}]}, "messages"),
        ({"cachedContent": "cachedContents/1"}, "cachedContent"),
        ({"tools": [{"computerUse": {}}]}, "computerUse"),
        ({"generationConfig": {"responseModalities": ["IMAGE"]}}, "responseModalities"),
        ({"generationConfig": {"logitBias": {"1": 2}}}, "logitBias"),
        ({"generationConfig": {"topK": 1.5}}, "generationConfig.topK"),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "generationConfig.responseMimeType"),
    ],
)
async def test_what_cannot_be_given_is_refused_by_name(
    nano_format: ChatFormat, body: dict[str, Any], field: str
) -> None:
    async with open_proxy(InstantEngine(), nano_format, "nano") as proxy:
        reply = await posted(proxy, body)
        assert reply.status == 400, reply.body
        error = json.loads(reply.body)["error"]
        assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
        assert field in json.dumps(error), error


async def test_what_changes_no_reply_is_ignored_and_named(nano_format: ChatFormat) -> None:
    body = {
        "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
        "labels": {"a": "b"},
        "tools": [{"googleSearch": {}}, {"functionDeclarations": [{"name": "f"}]}],
        "generationConfig": {
            "thinkingConfig": {"thinkingBudget": 5},
            "responseLogprobs": True,
            "responseModalities": ["TEXT"],
            "topP": None,
        },
    }
    async with open_proxy(InstantEngine(), nano_format, "nano") as proxy:
        reply = await posted(proxy, body)
        assert reply.status == 200, reply.body
        wanted = ["generationConfig.responseLogprobs", "labels", "safetySettings", "tools.googleSearch"]
        assert sorted(proxy.ignored) == wanted


async def test_names_may_be_written_with_underscores(nano_format: ChatFormat) -> None:
    async with open_proxy(InstantEngine(), nano_format, "nano") as proxy:
        session = proxy.open_session()
        camel = {
            "systemInstruction": {"parts": [{"text": "Add."}]},
            "generationConfig": {"maxOutputTokens": 3, "topK": 2},
        }
        snake = {
            "system_instruction": {"parts": [{"text": "Add."}]},
            "generation_config": {"max_output_tokens": 3, "top_k": 2},
        }
        for body in (camel, snake):
            assert (await posted(proxy, body, key=session.key)).status == 200
    first, second = session.record.turns
    assert first.prompt_ids == second.prompt_ids
    assert len(first.output_ids) == len(second.output_ids) == 3
    assert first.alterations == second.alterations == {"top_k": 2}


async def test_a_stream_is_events_or_one_array(nano_format: ChatFormat) -> None:
    async with open_proxy(InstantEngine(), nano_format, "nano") as proxy:
        session = proxy.open_session()
        target = GENERATE.replace("generate", "streamGenerate")
        texts = []
        for query, kind in (("?alt=sse", "text/event-stream"), ("", "application/json")):
            reply = await posted(proxy, {}, target + query, session.key)
            assert reply.headers["Content-Type"].startswith(kind)
            assert reply.events is not None
            content = b"".join([event async for event in reply.events])
            if query:
                events = [json.loads(line.removeprefix(b"data: ")) for line in content.split(b"\n\n") if line]
            else:
                events = json.loads(content)
            assert len(events) > 1
            assert events[-1]["candidates"][0]["finishReason"] == "STOP"
            texts.append("".join(part["text"] for e in events for part in e["candidates"][0]["content"]["parts"]))
        assert texts[0] == texts[1] != ""
        assert len(session.record.turns) == 2


async def test_of_the_functions_only_those_that_are_allowed_are_shown(setup: Setup) -> None:
    functions = [{"name": name} for name in ("one", "two", "three")]
    for mode, allowed in (("ANY", ["two"]), ("ANY", ["two", "three"]), ("NONE", None)):
        calling = {"mode": mode, "allowedFunctionNames": allowed}
        body = {"tools": [{"functionDeclarations": functions}], "toolConfig": {"functionCallingConfig": calling}}
        assert (await posted(setup.proxy, body, key=setup.session.key)).status == 200
    named, one_of, none = (setup.prompt(index) for index in range(3))
    assert '"two"' in named
    assert '"three"' not in named
    assert named.endswith('{"name": "two", "arguments":')
    assert '"three"' in one_of
    assert '"one"' not in one_of
    assert '"two"' not in none


def test_schemas_become_json_schemas() -> None:
    schema = {
        "type": "OBJECT",
        "properties": {
            "type": {"type": "STRING", "nullable": True},
            "of": {"type": "ARRAY", "items": {"type": "NUMBER"}, "minItems": "2"},
        },
        "anyOf": [{"type": "STRING", "enum": ["STRING"]}],
        "propertyOrdering": ["of", "type"],
    }
    assert json_schema(schema) == {
        "type": "object",
        "properties": {
            "type": {"type": ["string", "null"]},
            "of": {"type": "array", "items": {"type": "number"}, "minItems": 2},
        },
        "anyOf": [{"type": "string", "enum": ["STRING"]}],
    }
