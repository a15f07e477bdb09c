"""Chat completions of before there were tools, as clients of then speak them: `functions` and `function_call`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import openai
import pytest

from agentrl.proxy import ChatFormat, Proxy, Session, open_proxy
from tests.policy_by_prompt import PolicyByPrompt
from tests.record_invariant import assert_record_is_what_the_engine_saw

pytestmark = pytest.mark.anyio
FUNCTION: dict[str, Any] = {
    "name": "add",
    "description": "Add numbers.",
    "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
}
USER = {"role": "user", "content": "1"}
CALL = '<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>'


@dataclass
class Setup:
    proxy: Proxy
    session: Session
    client: openai.AsyncOpenAI
    replies: list[str]

    async def ask(self, messages: list[Any], **options: Any) -> Any:
        return await self.client.chat.completions.create(
            model="gpt-3.5-turbo-0613", messages=messages, **{"functions": [FUNCTION], **options}
        )


@pytest.fixture
async def setup(nano_format: ChatFormat) -> AsyncIterator[Setup]:
    replies: list[str] = []
    engine = PolicyByPrompt(nano_format, lambda _: replies.pop(0) if replies else "done")
    async with open_proxy(engine, nano_format, "nano") as proxy:
        session = proxy.open_session()
        async with openai.AsyncOpenAI(base_url=proxy.base_url, api_key=session.key, max_retries=0) as client:
            yield Setup(proxy, session, client, replies)
        assert_record_is_what_the_engine_saw(session.record, engine.calls)


async def test_a_conversation_with_functions_is_one_root_and_one_leaf_whole_and_streamed(setup: Setup) -> None:
    setup.replies += ["I add. " + CALL, CALL]
    history: list[Any] = [USER]
    first = (await setup.ask(history, function_call="auto")).choices[0]
    assert first.finish_reason == "function_call"
    assert first.message.tool_calls is None
    assert (first.message.function_call.name, json.loads(first.message.function_call.arguments)) == ("add", {"x": 1})
    history += [first.message.model_dump(exclude_none=True), {"role": "function", "name": "add", "content": "2"}]
    call, finish = {"name": "", "arguments": ""}, None
    async for chunk in await setup.ask(history, stream=True):
        (choice,) = chunk.choices
        assert not choice.delta.tool_calls
        if (piece := choice.delta.function_call) is not None:
            call["name"] += piece.name or ""
            call["arguments"] += piece.arguments or ""
        finish = choice.finish_reason or finish
    assert finish == "function_call"
    assert (call["name"], json.loads(call["arguments"])) == ("add", {"x": 1})
    history += [{"role": "assistant", "content": None, "function_call": call}]
    history += [{"role": "function", "name": "add", "content": "3"}]
    last = (await setup.ask(history)).choices[0]
    assert (last.finish_reason, last.message.content, last.message.function_call) == ("stop", "done", None)
    history += [last.message.model_dump(exclude_none=True), USER]
    await setup.ask(history)
    turns = setup.session.record.turns
    assert [turn.parent for turn in turns] == [None, *turns[:-1]]
    assert [bool(turn.tool_call_ids) for turn in turns] == [True, True, False, False]
    shown = setup.proxy.chat_format.decode(turns[-1].token_ids())
    assert shown.count("<tool_response>") == 2


async def test_functions_are_shown_as_tools_are_and_their_choice_decides(setup: Setup) -> None:
    tools: dict[str, Any] = {"functions": openai.omit, "tools": [{"type": "function", "function": FUNCTION}]}
    for function_call, tool_choice in (("auto", "auto"), ("none", "none"), ({"name": "add"}, "required")):
        await setup.ask([USER], function_call=function_call)
        await setup.ask([USER], **tools, tool_choice=tool_choice)
    prompts = [turn.prompt_ids for turn in setup.session.record.turns]
    assert prompts[0] == prompts[1] != prompts[2] == prompts[3]
    assert setup.proxy.chat_format.decode(prompts[4]).endswith('{"name": "add", "arguments":')


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": [{"type": "function", "function": FUNCTION}]}, "functions"),
        ({"functions": openai.omit, "function_call": {"name": "add"}}, "function_call"),
        ({"function_call": {"name": "other"}}, "tool_choice"),
        ({"messages": [USER, {"role": "function", "content": "2"}]}, "messages.1"),
        ({"messages": [{**USER, "function_call": {"name": "add", "arguments": "{}"}}]}, "messages.0"),
    ],
)
async def test_what_does_not_fit_together_is_refused_by_name(setup: Setup, change: dict[str, Any], param: str) -> None:
    messages = change.pop("messages", [USER])
    with pytest.raises(openai.BadRequestError) as refused:
        await setup.ask(messages, **change)
    assert refused.value.param == param
