"""Real clients, unmodified, over loopback HTTP. Whatever they speak, the record is what the engine saw."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import agents
import anthropic
import anyio
import openai
import pydantic
import pytest
from anyio.to_thread import run_sync as in_thread
from google import genai
from google.genai import types as google

from agentrl.engine.client import sglang_engine
from agentrl.envs.calculator_env import TOOL
from agentrl.proxy import ChatFormat, Proxy, Session, open_proxy
from tests.components import missing
from tests.record_invariant import Tapped, assert_record_is_what_the_engine_saw
from tests.rescoring import Rescorer

pytestmark = pytest.mark.anyio
GREEDY = {"temperature": 0}
QUESTION = "State the final answer to the following arithmetic problem: 12 + 30 ="
FUNCTION = TOOL["function"]


@dataclass
class Setup:
    proxy: Proxy
    session: Session
    rescorer: Rescorer
    engine: Tapped

    @property
    def turns(self) -> Any:
        return self.session.record.turns


@pytest.fixture(scope="module")
def rescorer(versions: list[Path]) -> Rescorer:
    return Rescorer(versions)


@pytest.fixture
async def setup(server_url: str, nano_format: ChatFormat, rescorer: Rescorer) -> AsyncIterator[Setup]:
    """A proxy with one session, whose record is checked at the end of the test."""
    async with sglang_engine([server_url]) as raw:
        engine = Tapped(raw)
        async with open_proxy(engine, nano_format, "nano") as proxy:
            setup = Setup(proxy, proxy.open_session(), rescorer, engine)
            yield setup
            record = setup.session.record
            assert record.turns
            assert_record_is_what_the_engine_saw(record, engine.calls)
            assert rescorer.largest_difference(record) < 1e-4


@pytest.fixture
async def client(setup: Setup) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=setup.proxy.base_url, api_key=setup.session.key, max_retries=0) as client:
        yield client


@pytest.fixture
async def claude(setup: Setup) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=setup.proxy.url, api_key=setup.session.key, max_retries=0) as client:
        yield client


async def test_openai_sync_client(setup: Setup) -> None:
    def ask() -> Any:
        with openai.OpenAI(base_url=setup.proxy.base_url, api_key=setup.session.key) as client:
            assert [model.id for model in client.models.list()] == ["nano"]
            return client.chat.completions.create(
                model="nano", messages=[{"role": "user", "content": QUESTION}], max_tokens=8
            )

    reply = await in_thread(ask)
    assert reply.usage.completion_tokens == len(setup.turns[0].output_ids)


async def test_completions_go_on_from_text_and_ids_and_keep_what_they_recorded(
    setup: Setup, client: openai.AsyncOpenAI
) -> None:
    first = await client.completions.create(model="nano", prompt="12 + 30", max_tokens=6, logprobs=2)
    assert first.object == "text_completion"
    assert first.choices[0].logprobs.token_logprobs == setup.turns[0].logprobs
    if first.choices[0].finish_reason == "length":
        text = "12 + 30" + first.choices[0].text
        await client.completions.create(model="nano", prompt=text + " = ", max_tokens=4)
        assert setup.turns[1].parent is setup.turns[0]
    ids = setup.turns[0].token_ids()
    many = await client.completions.create(model="nano", prompt=[[*ids, 30], [7, 8]], n=2, max_tokens=3)
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    assert sum(turn.parent is setup.turns[0] for turn in setup.turns[-4:]) == 2
    pieces = [
        chunk async for chunk in await client.completions.create(model="nano", prompt="1", max_tokens=9, stream=True)
    ]
    assert pieces[-1].choices[0].finish_reason in ("stop", "length")
    with pytest.raises(openai.BadRequestError, match="outside the vocabulary"):
        await client.completions.create(model="nano", prompt=[10**6])


def response_tool() -> dict[str, Any]:
    return {"type": "function", **FUNCTION}


async def test_responses_with_a_tool_and_with_previous_response_id(setup: Setup, client: openai.AsyncOpenAI) -> None:
    first = await client.responses.create(
        model="nano", input=QUESTION, tools=[response_tool()], tool_choice="required", temperature=0
    )
    assert first.status == "completed"
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert json.loads(call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "42"}
    by_id = await client.responses.create(
        model="nano", previous_response_id=first.id, input=[result], tools=[response_tool()], max_output_tokens=9
    )
    by_items = await client.responses.create(
        model="nano",
        input=[{"role": "user", "content": QUESTION}, *[item.model_dump() for item in first.output], result],
        tools=[response_tool()],
        max_output_tokens=9,
    )
    assert by_id.previous_response_id == first.id
    assert by_items.output_text is not None
    root, second, third = setup.turns
    assert second.parent is root
    assert third.parent is root
    assert second.prompt_ids == third.prompt_ids
    with pytest.raises(openai.BadRequestError, match="not found"):
        await client.responses.create(model="nano", previous_response_id="resp_none", input="x")


async def test_a_streamed_response_says_what_the_whole_one_says(setup: Setup, client: openai.AsyncOpenAI) -> None:
    options: dict[str, Any] = {
        "model": "nano",
        "input": QUESTION,
        "temperature": 0,
        "tools": [response_tool()],
        "instructions": "Be brief.",
        "max_output_tokens": 80,
    }
    for choice in ("none", "required"):
        whole = await client.responses.create(**options, tool_choice=choice)
        events = [event async for event in await client.responses.create(**options, tool_choice=choice, stream=True)]
        kinds = [event.type for event in events]
        streamed = events[-1].response
        assert [event.sequence_number for event in events] == list(range(len(events)))
        deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
        assert "".join(deltas) == whole.output_text
        assert streamed.output_text == whole.output_text
        assert [item.type for item in streamed.output] == [item.type for item in whole.output]
        assert kinds[0] == "response.created"
        assert kinds[-1] in ("response.completed", "response.incomplete")
        expected = "response.function_call_arguments.delta" if choice == "required" else "response.output_text.delta"
        assert expected in kinds


async def test_anthropic_messages_with_a_tool(setup: Setup, claude: anthropic.AsyncAnthropic) -> None:
    tool = {
        "name": FUNCTION["name"],
        "description": FUNCTION["description"],
        "input_schema": FUNCTION["parameters"],
    }
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    counted = await claude.messages.count_tokens(model="nano", messages=messages, tools=[tool])
    first = await claude.messages.create(
        model="nano", max_tokens=60, messages=messages, tools=[tool], tool_choice={"type": "any"}, extra_body=GREEDY
    )
    assert first.stop_reason == "tool_use"
    use = first.content[-1]
    assert use.name == "calculator"
    forced = setup.turns[0].prompt_ids[counted.input_tokens :]
    assert "<tool_call>" in setup.proxy.chat_format.decode(forced)
    assert first.usage.output_tokens == len(setup.turns[0].output_ids)

    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "42"}]}
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    events = []
    async with claude.messages.stream(model="nano", max_tokens=12, messages=messages, tools=[tool]) as stream:
        async for event in stream:
            events.append(event.type)
        second = await stream.get_final_message()
    assert events[0] == "message_start"
    assert events[-1] == "message_stop"
    assert second.stop_reason in ("end_turn", "max_tokens", "tool_use")
    assert setup.turns[1].parent is setup.turns[0]
    said = await claude.messages.create(
        model="nano", max_tokens=30, system="x", messages=messages[:1], extra_body=GREEDY
    )
    text = said.content[0].text
    cut = await claude.messages.create(
        model="nano", max_tokens=30, system="x", messages=messages[:1], extra_body=GREEDY, stop_sequences=[text[1:3]]
    )
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", text[1:3])
    assert cut.content[0].text == text.partition(text[1:3])[0]


# Google's client derives a class from aiohttp's, which aiohttp warns of.
@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
async def test_a_conversation_keeps_its_tokens_in_whichever_of_the_five_dialects_it_goes_on(
    setup: Setup, client: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic
) -> None:
    said = await client.chat.completions.create(
        model="nano", messages=[{"role": "user", "content": "1"}], max_tokens=4, temperature=0
    )
    text = said.choices[0].message.content
    history: list[Any] = [{"role": "user", "content": "1"}, {"role": "assistant", "content": text}]
    await claude.messages.create(model="nano", max_tokens=4, messages=[*history, {"role": "user", "content": "2"}])
    await client.responses.create(model="nano", max_output_tokens=4, input=[*history, {"role": "user", "content": "2"}])
    options = google.HttpOptions(base_url=setup.proxy.url)
    contents: list[Any] = [
        google.Content(role=role, parts=[google.Part(text=text)])
        for role, text in (("user", "1"), ("model", text), ("user", "2"))
    ]
    async with genai.Client(api_key=setup.session.key, http_options=options).aio as gemini:
        await gemini.models.generate_content(model="nano", contents=contents, config={"max_output_tokens": 4})
    root, second, *_ = setup.turns
    whole_prompt = second.token_ids()[: second.length - len(second.output_ids)]
    await client.completions.create(model="nano", prompt=whole_prompt, max_tokens=4)
    _, *others = setup.turns
    assert len(others) == 4
    for turn in others:
        assert turn.parent is root
        assert turn.prompt_ids == second.prompt_ids
        assert turn.token_ids()[: root.length] == root.token_ids()


async def test_errors_reach_each_client_as_its_own(
    setup: Setup, client: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic
) -> None:
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="wrong").responses.create(model="nano", input="x")
    with pytest.raises(anthropic.AuthenticationError, match="authentication_error"):
        await claude.with_options(api_key="wrong").messages.create(model="nano", max_tokens=1, messages=USER)
    with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
        await claude.messages.create(
            model="nano",
            max_tokens=1,
            messages=USER,
            extra_body={"thread": {"type": "continue", "previous_message_id": "msg_none"}},
        )
    with pytest.raises(anthropic.BadRequestError, match="min_p"):
        await claude.messages.create(model="nano", max_tokens=1, messages=USER, extra_body={"min_p": 0.3})
    with pytest.raises(openai.BadRequestError, match="grammar"):
        await client.responses.create(model="nano", input="x", text={"format": {"type": "json_object"}})
    await claude.messages.create(model="nano", max_tokens=1, messages=USER)


USER: list[Any] = [{"role": "user", "content": "1"}]


class Order(pydantic.BaseModel):
    expression: str


async def test_openai_agents_with_a_handoff_make_two_branches_of_one_episode(
    setup: Setup, client: openai.AsyncOpenAI
) -> None:
    """A triage agent that must hand over, and a clerk that must use its tool; both through the Responses API."""
    model = agents.OpenAIResponsesModel(model="nano", openai_client=client)
    settings = agents.ModelSettings(tool_choice="calculator", temperature=0, max_tokens=60)
    used: list[str] = []

    # The nano model knows one tool by name, so the handoff and the clerk's tool both go by it.
    @agents.function_tool(name_override="calculator", description_override=FUNCTION["description"])
    def look_up(expression: str) -> str:
        used.append(expression)
        return "42"

    clerk = agents.Agent(
        name="clerk",
        model=model,
        tools=[look_up],
        model_settings=settings,
        tool_use_behavior="stop_on_first_tool",
    )
    handoff = agents.handoff(clerk, tool_name_override="calculator", tool_description_override=FUNCTION["description"])
    triage = agents.Agent(name="triage", model=model, handoffs=[handoff], model_settings=settings)
    config = agents.RunConfig(tracing_disabled=True)
    result = await agents.Runner.run(triage, QUESTION, max_turns=4, run_config=config)
    assert result.last_agent.name == "clerk"
    assert result.final_output == "42"
    assert used, "the tool or the handoff got what the model wrote"
    assert len(setup.session.record.leaves()) == 2


AGENT = """
set -eu
ask() { curl -sS --fail-with-body "$OPENAI_BASE_URL/chat/completions" -H "Authorization: Bearer $OPENAI_API_KEY" -d "$1"; }
first=$(ask '{"model": "nano", "messages": [{"role": "user", "content": "12 + 30"}], "max_tokens": 6}')
said=$(printf %s "$first" | sed 's/.*"message":\\({[^}]*}\\).*/\\1/')
ask '{"model": "nano", "messages": [{"role": "user", "content": "12 + 30"}, '"$said"', {"role": "user", "content": "1"}], "max_tokens": 6}'
"""


@pytest.mark.soak
async def test_a_shell_script_that_knows_a_url_and_a_key_is_an_agent(setup: Setup) -> None:
    if shutil.which("curl") is None:
        missing("curl is not installed")
    environment = {
        "OPENAI_BASE_URL": setup.proxy.base_url,
        "OPENAI_API_KEY": setup.session.key,
        "PATH": "/usr/bin:/bin",
    }
    with anyio.fail_after(30):
        done = await anyio.run_process(["bash", "-c", AGENT], env=environment)
    assert json.loads(done.stdout)["object"] == "chat.completion"
    first, second = setup.turns
    assert second.parent is first
