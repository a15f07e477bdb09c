"""Reasoning comes apart from the text in every dialect, and goes back into the prompt when a client returns it."""

from __future__ import annotations

import json

import pytest

from agentrl.engine.protocol import Sampling
from agentrl.proxy import ChatFormat
from agentrl.proxy.completion import Completion, CompletionRequest, PreparedCompletion
from agentrl.proxy.deltas import SentDeltas
from agentrl.proxy.dialects.messages import MessagesRequest, MessagesWriter
from agentrl.proxy.dialects.responses import ResponsesRequest, ResponsesWriter
from agentrl.proxy.session import Prompt, Session
from agentrl.record.rolling_digest import RollingDigest
from agentrl.record.tokens import Generation, VersionSpan

ASKED = ResponsesRequest(model="nano")
SAID = "<think>\nadd them\n</think>\n\n42<|im_end|>"


def reply(chat_format: ChatFormat) -> Completion:
    ids = chat_format.tokenizer.encode(SAID, add_special_tokens=False)
    spans = [VersionSpan(0, 0, len(ids))]
    generation = Generation(output_ids=ids, logprobs=[-1.0] * len(ids), versions=spans, finish="stop")
    return Completion(generation, chat_format.parse(ids, None))


def call(chat_format: ChatFormat) -> PreparedCompletion:
    return PreparedCompletion(
        id="resp_1",
        role=Session().role(""),
        request=CompletionRequest(model="nano"),
        prompt=Prompt(input_ids=[1], parent=None, digest=RollingDigest().with_ids([1])),
        sampling=Sampling(max_new_tokens=9),
        chat_format=chat_format,
        digest="",
    )


def test_thinking_is_parted_from_the_text_and_its_tokens_are_counted(nano_format: ChatFormat) -> None:
    thought = reply(nano_format)
    message = thought.message
    assert (message.reasoning, message.content) == ("add them", "42")
    until = nano_format.decode(thought.generation.output_ids[: message.reasoning_tokens])
    assert until.endswith("</think>")
    assert message.to_json()["reasoning_content"] == "add them"


@pytest.mark.parametrize(("opened", "cut_off"), [("", "<think>\nadd them"), ("<think>\n", "add them")])
def test_a_thought_that_is_cut_off_counts_every_token(opened: str, cut_off: str, nano_format: ChatFormat) -> None:
    encode = nano_format.tokenizer.encode
    message = nano_format.parse(encode(cut_off), None, prompt_ids=encode(f"<|im_start|>assistant\n{opened}"))
    assert (message.content, message.reasoning_tokens) == ("", len(encode(cut_off)))


@pytest.mark.parametrize(
    ("end", "opens"), [("<think>", True), ("<think>\n\n", True), ("<think> 42", False), ("<think>\n</think>\n", False)]
)
def test_a_prompt_opens_a_thought_where_nothing_but_blanks_follows(
    end: str, opens: bool, nano_format: ChatFormat
) -> None:
    assert nano_format.opens_thought(nano_format.tokenizer.encode(f"<|im_start|>assistant\n{end}")) is opens


def test_each_dialect_has_its_own_place_for_it(nano_format: ChatFormat) -> None:
    thought = reply(nano_format)
    items = ResponsesWriter([call(nano_format)], ASKED).whole([thought])["output"]
    assert [item["type"] for item in items] == ["reasoning", "message"]
    request = MessagesRequest.model_validate({"model": "nano", "messages": [{"role": "user", "content": "1"}]})
    blocks = MessagesWriter([call(nano_format)], request).whole([thought])["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text"]
    assert blocks[0]["signature"], "clients send an unsigned thought back as text"
    deltas = SentDeltas().growth(thought.message, final=True)
    assert [(d.reasoning, d.text) for d in deltas] == [("add them", ""), ("", "42")]


def test_responses_stream_it_as_an_item_of_its_own(nano_format: ChatFormat) -> None:
    thought, writer = reply(nano_format), ResponsesWriter([call(nano_format)], ASKED)
    events = [event for delta in SentDeltas().growth(thought.message, final=True) for event in writer.delta(0, delta)]
    events += writer.ended(0, thought)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["type"] for item in done] == ["reasoning", "message"]
    assert done == events[-1]["response"]["output"]


def test_messages_stream_it_as_a_block_that_is_signed_at_its_end(nano_format: ChatFormat) -> None:
    thought, request = reply(nano_format), MessagesRequest(model="nano", messages=[{"role": "user", "content": "1"}])
    writer = MessagesWriter([call(nano_format)], request)
    events = [event for delta in SentDeltas().growth(thought.message, final=True) for event in writer.delta(0, delta)]
    deltas = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert deltas == ["thinking_delta", "signature_delta", "text_delta"]
    assert events[0]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}


def test_returned_reasoning_is_rendered_again_whatever_the_dialect(nano_format: ChatFormat) -> None:
    items = [
        {"role": "user", "content": "1"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "add them"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "42"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"x": 1}'},
        {"type": "function_call_output", "call_id": "c", "output": "7"},
    ]
    responses = ResponsesRequest.model_validate_json(
        json.dumps({"model": "nano", "input": items})
    ).to_completion_request(Session())
    blocks = [
        {"type": "thinking", "thinking": "add them", "signature": "s"},
        {"type": "text", "text": "42"},
        {"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1}},
    ]
    said = [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "7"}]},
    ]
    body = {"model": "nano", "max_tokens": 1, "messages": said}
    messages = MessagesRequest.model_validate_json(json.dumps(body)).to_completion_request(Session())
    assert list(responses.messages) == list(messages.messages)
    assert responses.messages[1] == {
        "role": "assistant",
        "content": "42",
        "reasoning_content": "add them",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}],
    }
    assert "add them" in nano_format.decode(nano_format.render(responses.messages, None).ids)
