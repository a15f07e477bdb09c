"""Tools in namespaces, what a session holds for its clients, and ids: the record is one conversation of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import anthropic
import openai
import pytest

from agentrl.proxy import ChatFormat, Proxy, Session, open_proxy
from agentrl.proxy.dialects.messages import MessagesRequest
from agentrl.proxy.dialects.responses import stored_response
from tests.policy_by_prompt import PolicyByPrompt
from tests.record_invariant import assert_record_is_what_the_engine_saw

pytestmark = pytest.mark.anyio
PLAIN = {"type": "object", "properties": {"x": {"type": "integer"}}}


def said_call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


@dataclass
class Setup:
    proxy: Proxy
    session: Session
    engine: PolicyByPrompt
    openai: openai.AsyncOpenAI
    anthropic: anthropic.AsyncAnthropic
    replies: list[str]
    """What the model says next, first to last; then it says "done"."""

    def in_order(self) -> None:
        """Check that each recorded turn goes on from the one before."""
        turns = self.session.record.turns
        assert [turn.parent for turn in turns] == [None, *turns[:-1]]


@pytest.fixture
async def setup(nano_format: ChatFormat) -> AsyncIterator[Setup]:
    replies: list[str] = []
    chat_format = ChatFormat(nano_format.tokenizer, nano_format.renderer, 50_000)
    engine = PolicyByPrompt(chat_format, lambda _: replies.pop(0) if replies else "done")
    async with open_proxy(engine, chat_format, "nano") as proxy:
        session = proxy.open_session()
        async with (
            openai.AsyncOpenAI(base_url=proxy.base_url, api_key=session.key, max_retries=0) as client,
            anthropic.AsyncAnthropic(base_url=proxy.url, api_key=session.key, max_retries=0) as claude,
        ):
            yield Setup(proxy, session, engine, client, claude, replies)
        assert_record_is_what_the_engine_saw(session.record, engine.calls)


async def test_equal_names_in_two_namespaces_are_told_apart(setup: Setup) -> None:
    function = {"type": "function", "name": "open", "parameters": PLAIN}
    tools: list[Any] = [{"type": "namespace", "name": name, "tools": [function]} for name in ("files", "doors")]
    history: list[Any] = [{"role": "user", "content": "1"}]
    for namespace in ("files", "doors"):
        setup.replies += [said_call(f"{namespace}__open", x=1)]
        reply = await setup.openai.responses.create(model="any", input=history, tools=tools)
        item = reply.output[0].model_dump(exclude_none=True)
        assert (item["name"], item["namespace"]) == ("open", namespace)
        history += [item, {"type": "function_call_output", "call_id": item["call_id"], "output": "ok"}]
    await setup.openai.responses.create(model="any", input=history, tools=tools)
    setup.in_order()


@pytest.mark.parametrize(("sent", "said"), [({}, False), ({"strict": None}, False), ({"strict": True}, True)])
async def test_a_response_says_its_functions_again_without_nulls(
    setup: Setup, sent: dict[str, Any], said: bool
) -> None:
    function: Any = {"type": "function", "name": "add", "description": None, "parameters": PLAIN, **sent}
    reply = await setup.openai.responses.create(model="any", input="1", tools=[function])
    assert [tool.to_dict() for tool in reply.tools] == [
        {"type": "function", "name": "add", "parameters": PLAIN, "strict": said}
    ]


async def test_tools_that_are_not_allowed_are_not_shown(setup: Setup) -> None:
    functions: list[Any] = [{"type": "function", "name": name, "parameters": PLAIN} for name in ("one", "two")]
    allowed: Any = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "two"}]}
    await setup.openai.responses.create(model="any", input="1", tools=functions, tool_choice=allowed)
    named = [{"type": "function", "function": {"name": "two"}}]
    await setup.openai.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": "1"}],
        tools=[{"type": "function", "function": {k: f[k] for k in ("name", "parameters")}} for f in functions],
        tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named}},  # type: ignore[typeddict-item]
    )
    for turn in setup.session.record.turns:
        shown = setup.proxy.chat_format.decode(turn.prompt_ids)
        assert '"two"' in shown
        assert '"one"' not in shown


async def test_references_to_items_go_on_with_the_recorded_turn(setup: Setup) -> None:
    tools: list[Any] = [{"type": "function", "name": "add", "parameters": PLAIN}]
    setup.replies += ["I add. " + said_call("add", x=1)]
    first = await setup.openai.responses.create(model="any", input="1", tools=tools)
    assert [item.type for item in first.output] == ["message", "function_call"]
    history: list[Any] = [
        {"role": "user", "content": "1"},
        *({"type": "item_reference", "id": item.id} for item in first.output),
        {"type": "function_call_output", "call_id": first.output[1].call_id, "output": "2"},  # type: ignore[union-attr]
    ]
    await setup.openai.responses.create(model="any", input=history, tools=tools)
    setup.in_order()
    with pytest.raises(openai.BadRequestError, match="msg_none"):
        await setup.openai.responses.create(model="any", input=[{"type": "item_reference", "id": "msg_none"}])


async def test_a_stored_response_is_given_again_and_forgotten_by_its_own_session_alone(setup: Setup) -> None:
    first = await setup.openai.responses.create(model="any", input="1")
    unstored = await setup.openai.responses.create(model="any", input="1", store=False)
    assert (first.store, unstored.store) == (True, False)
    again = await setup.openai.responses.retrieve(first.id)
    assert again.output_text == first.output_text
    other = setup.openai.with_options(api_key=setup.proxy.open_session().key)
    for client, response_id in ((other, first.id), (setup.openai, unstored.id), (setup.openai, "resp_none")):
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(response_id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.delete(response_id)
    with pytest.raises(openai.BadRequestError, match="not found"):
        await other.responses.create(model="any", input="2", previous_response_id=first.id)
    with pytest.raises(openai.BadRequestError, match="no stored response"):
        await other.responses.create(model="any", input=[{"type": "item_reference", "id": first.output[0].id}])  # type: ignore[typeddict-item]
    await setup.openai.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        await setup.openai.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError, match="not found"):
        await setup.openai.responses.create(model="any", input="2", previous_response_id=first.id)


async def test_a_response_that_is_deleted_while_another_goes_on_from_it_fails_neither(setup: Setup) -> None:
    first = await setup.openai.responses.create(model="any", input="1")

    def deleting(_: str) -> str:
        stored_response(setup.session, "DELETE", first.id)
        setup.engine.reply = lambda _: "done"
        return "done"

    setup.engine.reply = deleting
    second = await setup.openai.responses.create(model="any", input="2", previous_response_id=first.id)
    assert second.output_text == "done"
    await setup.openai.responses.create(model="any", input="3", previous_response_id=second.id)
    setup.in_order()


def test_messages_write_a_tool_as_the_other_dialects_do() -> None:
    tools = [{"name": "add", "description": "Add.", "input_schema": PLAIN}]
    request = MessagesRequest(model="nano", messages=[{"role": "user", "content": "1 + 1 ="}], tools=tools)
    function = {"name": "add", "description": "Add.", "parameters": PLAIN}
    assert json.dumps(request.to_completion_request(Session()).tools) == json.dumps(
        [{"type": "function", "function": function}]
    )


async def test_ids_of_tool_calls_are_each_dialects_own_and_come_back_as_one(setup: Setup) -> None:
    tool: Any = {"name": "add", "input_schema": PLAIN}
    setup.replies += [said_call("add", x=1)]
    question: list[Any] = [{"role": "user", "content": "1"}]
    first = await setup.anthropic.messages.create(model="any", max_tokens=99, messages=question, tools=[tool])
    (use,) = first.content
    assert use.id.startswith("toolu_")  # type: ignore[union-attr]
    (recorded,) = setup.session.record.turns[0].tool_call_ids
    assert recorded == use.id.replace("toolu_", "call_")  # type: ignore[union-attr]
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "2"}  # type: ignore[union-attr]
    await setup.anthropic.messages.create(
        model="any",
        max_tokens=99,
        tools=[tool],
        messages=[*question, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}],  # type: ignore[list-item]
    )
    setup.in_order()


async def test_a_thread_goes_on_where_it_was_left_with_its_system_and_tools(setup: Setup) -> None:
    tool: Any = {"name": "add", "input_schema": PLAIN}
    setup.replies += [said_call("add", x=1)]
    extra: Any = {"thread": {"type": "create"}}
    first = await setup.anthropic.messages.create(
        model="any",
        max_tokens=99,
        system="Add.",
        tools=[tool],
        messages=[{"role": "user", "content": "1"}],
        extra_body=extra,
    )
    result: Any = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": "2"}  # type: ignore[union-attr]
    extra = {"thread": {"type": "continue", "previous_message_id": first.id}}
    options: Any = {"model": "any", "max_tokens": 99, "messages": [{"role": "user", "content": [result]}]}
    second = await setup.anthropic.messages.create(**options, extra_body=extra)
    extra = {"thread": {"type": "continue", "previous_message_id": second.id}}
    options["messages"] = [{"role": "user", "content": "3"}]
    async with setup.anthropic.messages.stream(**options, extra_body=extra) as stream:
        await stream.get_final_message()
    setup.in_order()
    counting: Any = {"model": "any", "messages": [{"role": "user", "content": "3"}]}
    counted = await setup.anthropic.messages.count_tokens(
        **counting, extra_body={"thread": {"type": "continue", "previous_message_id": second.id}}
    )
    assert counted.input_tokens == len(setup.session.record.turns[-1].token_ids()) - len(
        setup.session.record.turns[-1].output_ids
    )
    with pytest.raises(anthropic.BadRequestError, match="the thread goes on with the one that it began with"):
        await setup.anthropic.messages.create(**options, system="Add.", extra_body=extra)
    other = setup.anthropic.with_options(api_key=setup.proxy.open_session().key)
    with pytest.raises(anthropic.NotFoundError, match="thread_not_found"):
        await other.messages.create(**options, extra_body=extra)


async def test_documents_and_system_messages_are_text_in_their_place(setup: Setup) -> None:
    document = {
        "type": "document",
        "title": "Prices",
        "source": {"type": "text", "media_type": "text/plain", "data": "tea 3"},
    }
    await setup.anthropic.messages.create(
        model="any",
        max_tokens=9,
        messages=[{"role": "user", "content": [document]}, {"role": "system", "content": "Be brief."}],  # type: ignore[list-item, typeddict-item]
    )
    shown = setup.proxy.chat_format.decode(setup.session.record.turns[0].prompt_ids)
    assert shown.index("Prices\ntea 3") < shown.index("Be brief.")
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}}
    with pytest.raises(anthropic.BadRequestError, match="source"):
        await setup.anthropic.messages.create(
            model="any",
            max_tokens=9,
            messages=[{"role": "user", "content": [pdf]}],  # type: ignore[list-item, typeddict-item]
        )


async def test_an_empty_input_goes_on_from_a_response_and_is_otherwise_nothing_to_answer(setup: Setup) -> None:
    first = await setup.openai.responses.create(model="any", input="1")
    await setup.openai.responses.create(model="any", input=[], previous_response_id=first.id)
    with pytest.raises(openai.BadRequestError, match="nothing to answer"):
        await setup.openai.responses.create(model="any", input=[])
