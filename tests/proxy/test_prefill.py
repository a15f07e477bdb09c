"""A reply goes on with the beginning that its client wrote: that is of the prompt, and the conversation is one root and one leaf."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import anthropic
import openai
import pytest

from agentrl.proxy import ChatFormat, Proxy, Session, open_proxy
from agentrl.proxy.prefill import prefill_ids
from tests.policy_by_prompt import PolicyByPrompt
from tests.record_invariant import assert_record_is_what_the_engine_saw

pytestmark = pytest.mark.anyio
USER = {"role": "user", "content": "1 + 1"}
BEGUN = {"role": "assistant", "content": "The sum is"}
AGAIN = {"role": "user", "content": "2 + 2"}
TOOL: Any = {"name": "add", "input_schema": {"type": "object", "properties": {}}}


@dataclass
class Setup:
    proxy: Proxy
    session: Session
    openai: openai.AsyncOpenAI
    anthropic: anthropic.AsyncAnthropic
    replies: list[str]

    def prompt(self, index: int) -> str:
        turn = self.session.record.turns[index]
        return self.proxy.chat_format.decode(turn.token_ids()[: turn.length - len(turn.output_ids)])

    def reply(self, index: int) -> str:
        return self.proxy.chat_format.decode(self.session.record.turns[index].output_ids)

    def in_order(self) -> None:
        turns = self.session.record.turns
        assert [turn.parent for turn in turns] == [None, *turns[:-1]]
        assert len(self.session.record.leaves()) == 1

    async def ask(self, messages: list[Any], dialect: str, *, stream: bool = False, **options: Any) -> str:
        """Return the text of a reply that goes on with the last message."""
        if dialect == "messages":
            options = {"model": "any", "max_tokens": 99, "messages": messages, **options}
            if stream:
                async with self.anthropic.messages.stream(**options) as events:
                    return "".join([text async for text in events.text_stream])
            reply: Any = await self.anthropic.messages.create(**options)
            return "".join(block.text for block in reply.content)
        options["extra_body"] = {"continue_final_message": True, "add_generation_prompt": False}
        if dialect == "prefix":
            messages, options["extra_body"] = [*messages[:-1], {**messages[-1], "prefix": True}], {}
        if stream:
            chunks = await self.openai.chat.completions.create(model="any", messages=messages, stream=True, **options)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])
        reply = await self.openai.chat.completions.create(model="any", messages=messages, **options)
        return reply.choices[0].message.content or ""


@pytest.fixture
async def setup(nano_format: ChatFormat) -> AsyncIterator[Setup]:
    replies: list[str] = []
    engine = PolicyByPrompt(nano_format, lambda _: replies.pop(0) if replies else " done")
    async with open_proxy(engine, nano_format, "nano") as proxy:
        session = proxy.open_session()
        async with (
            openai.AsyncOpenAI(base_url=proxy.base_url, api_key=session.key, max_retries=0) as client,
            anthropic.AsyncAnthropic(base_url=proxy.url, api_key=session.key, max_retries=0) as claude,
        ):
            yield Setup(proxy, session, client, claude, replies)
        assert_record_is_what_the_engine_saw(session.record, engine.calls)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ["messages", "continue_final_message", "prefix"])
async def test_a_prefill_is_continued_and_its_conversation_is_one_path(
    setup: Setup, dialect: str, stream: bool
) -> None:
    setup.replies += [" 2, of course.", " 4", " 6"]
    said = await setup.ask([USER, BEGUN], dialect, stream=stream)
    assert said == " 2, of course."
    assert setup.prompt(0).endswith("assistant\nThe sum is")
    assert setup.reply(0) == " 2, of course.<|im_end|>", "what is trained on is the rest alone"
    history = [USER, {"role": "assistant", "content": "The sum is" + said}, AGAIN, BEGUN]
    assert await setup.ask(history, dialect, stream=stream) == " 4"
    history += [{"role": "assistant", "content": " 4"}, {"role": "user", "content": "3 + 3"}, BEGUN]
    assert await setup.ask(history, dialect, stream=stream) == " 6", "prefill and rest may stay two messages"
    setup.in_order()
    assert setup.prompt(2).count("The sum is") == 3


async def test_the_prompt_that_is_counted_holds_the_prefill(setup: Setup) -> None:
    counts = []
    for messages in ([USER], [USER, BEGUN]):
        counted = await setup.anthropic.messages.count_tokens(model="any", messages=messages)  # type: ignore[arg-type]
        await setup.ask(messages, "messages")
        turn = setup.session.record.turns[-1]
        assert counted.input_tokens == len(turn.prompt_ids)
        counts.append(counted.input_tokens)
    encoded = setup.proxy.chat_format.tokenizer.encode("The sum is", add_special_tokens=False)
    assert counts[1] == counts[0] + len(encoded)


@pytest.mark.parametrize("begun", ["{", "  {", "I think ", "", "\n\n"])
async def test_prefill_and_rest_are_the_whole_text_whatever_is_between_them(setup: Setup, begun: str) -> None:
    setup.replies += ['"a": 1}', " x"]
    history = [USER, {"role": "assistant", "content": begun}]
    said = await setup.ask(history, "messages", stream=True)
    assert said == '"a": 1}'
    await setup.ask([USER, {"role": "assistant", "content": begun + said}, AGAIN], "messages")
    setup.in_order()


async def test_a_stop_string_is_looked_for_in_the_rest_alone(nano_format: ChatFormat) -> None:
    engine = PolicyByPrompt(nano_format, lambda _: " 2. The sum is more.")
    async with open_proxy(engine, nano_format, "nano") as proxy:
        session = proxy.open_session()
        async with anthropic.AsyncAnthropic(base_url=proxy.url, api_key=session.key, max_retries=0) as claude:
            reply: Any = await claude.messages.create(
                model="any",
                max_tokens=99,
                messages=[USER, BEGUN],  # type: ignore[list-item]
                stop_sequences=["sum"],
            )
    assert (reply.content[0].text, reply.stop_sequence) == (" 2. The ", "sum")


async def test_a_tool_call_may_follow_a_prefill(setup: Setup) -> None:
    setup.replies += [' I call it.\n<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>', "done"]
    reply: Any = await setup.anthropic.messages.create(
        model="any",
        max_tokens=99,
        messages=[USER, BEGUN],  # type: ignore[list-item]
        tools=[TOOL],
    )
    text, use = reply.content
    assert (text.text.strip(), use.name) == ("I call it.", "add")
    blocks = [{"type": "text", "text": "The sum is" + text.text}, use]
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "2"}
    history: list[Any] = [USER, {"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}]
    await setup.anthropic.messages.create(model="any", max_tokens=99, messages=history, tools=[TOOL])
    setup.in_order()


async def test_a_thread_goes_on_after_a_prefill(setup: Setup) -> None:
    setup.replies += [" 2"]
    options: Any = {"model": "any", "max_tokens": 99}
    first = await setup.anthropic.messages.create(
        **options, messages=[USER, BEGUN], extra_body={"thread": {"type": "create"}}
    )
    thread = {"thread": {"type": "continue", "previous_message_id": first.id}}
    await setup.anthropic.messages.create(**options, messages=[AGAIN], extra_body=thread)
    setup.in_order()


async def test_without_a_word_chat_answers_a_last_message_of_the_assistants(setup: Setup) -> None:
    await setup.openai.chat.completions.create(model="any", messages=[USER, BEGUN])  # type: ignore[list-item]
    assert setup.prompt(0).endswith("The sum is<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("messages", "extra", "param"),
    [
        ([USER], {"continue_final_message": True}, "messages"),
        ([BEGUN], {"continue_final_message": True}, "messages"),
        ([USER], {"add_generation_prompt": False}, "messages"),
        (
            [
                USER,
                {**BEGUN, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}], "prefix": True},
            ],
            {},
            "messages",
        ),
    ],
)
async def test_what_cannot_be_continued_is_refused_by_name(
    setup: Setup, messages: list[Any], extra: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await setup.openai.chat.completions.create(model="any", messages=messages, extra_body=extra)
    assert refused.value.param == param


async def test_thinking_that_the_prompt_opens_is_closed_before_the_prefill(nano_format: ChatFormat) -> None:
    opening, closing = nano_format.special("<think>"), nano_format.special("</think>")
    assert opening is not None
    assert closing is not None
    for prompt, begins in (([1, 2], "The"), ([1, opening], "</think>"), ([opening, closing], "The")):
        text = nano_format.decode(prefill_ids(nano_format, prompt, BEGUN))
        assert text.strip().startswith(begins)
        assert text.endswith("The sum is")
    thought = {**BEGUN, "reasoning_content": "I add."}
    assert nano_format.decode(prefill_ids(nano_format, [1], thought)) == "<think>\nI add.\n</think>\n\nThe sum is"
