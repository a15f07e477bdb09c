"""Tool calls come in pieces as their arguments grow, in every dialect, and the pieces are what the whole reply says: also of calls that are cut off or malformed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import anthropic
import openai
import pytest
from anyio.to_thread import run_sync as in_thread
from google import genai
from google.genai import types as google
from hypothesis import given
from hypothesis import strategies as st

from agentrl.engine.protocol import OnProgress, Sampling
from agentrl.proxy import ChatFormat, Proxy, Session, open_proxy
from agentrl.proxy.chat_format import AssistantMessage
from agentrl.proxy.deltas import SentDeltas
from agentrl.proxy.tool_calls import begun_call, readable_part, values_so_far
from agentrl.record.tokens import Generation, beginning
from tests.policy_by_prompt import PolicyByPrompt
from tests.record_invariant import assert_record_is_what_the_engine_saw

SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}}}
TOOL: Any = {"type": "function", "function": {"name": "weather", "description": "Look.", "parameters": SCHEMA}}
ARGUMENTS = '{"place":  "Zürich \\"am\\" See {1} \N{SNOWMAN}\N{GRINNING FACE}", "days": 7, "more": [{"x": []}, "]}"]}'
WHOLE = '<tool_call>\n{"name": "weather", "arguments": %s}\n</tool_call>'
CALL = WHOLE % ARGUMENTS
REPLIES = {
    "a call": CALL,
    "two, after a thought and a text": f"<think>\nWell.\n</think>\n\nI look.\n{CALL}\n{CALL}",
    "spaces and an escape": '<tool_call>{ "name" : "weath\\u0065r" ,\n "arguments" :\n{ } }</tool_call>',
    "a key twice": WHOLE % '{"days": 1, "days": 2}',
    "a field after it": '<tool_call>\n{"name": "weather", "arguments": {"days": 1}, "arguments": {"days": 2}}\n</tool_call>',
    "its brace alone is missing": '<tool_call>\n{"name": "weather", "arguments": {"days": 1}\n</tool_call>',
    "no JSON inside": WHOLE % '{"days": tru, "place": "Rome"}',
    "no number": WHOLE % '{"days": NaN}',
    "half a character": WHOLE % '{"place": "\\ud83d"}',
    "too deep": WHOLE % ('{"a":' * 300 + "1" + "}" * 300),
    "too deep for any reader": f"{CALL}{WHOLE % ('{' + chr(34) + 'a' + chr(34) + ':' + '[' * 1200 + ']' * 1200 + '}')}",
    "too long a number": f"{CALL}{WHOLE % ('{' + chr(34) + 'days' + chr(34) + ':' + '9' * 5000 + '}')}{CALL}",
    "a bracket that closes none": WHOLE % '{"days": ]}',
    "a line break in a string": WHOLE % '{"place": "a\nb"}',
    "no object": WHOLE % "[1]",
    "text as arguments": WHOLE % '"{\\"days\\": 1}"',
    "another tool": '<tool_call>\n{"name": "other", "arguments": {"days": 1}}\n</tool_call>',
    "another tool, malformed": '<tool_call>\n{"name": "other", "arguments": {"days": 1}\n</tool_call>',
    "a draft in a thought": f"<think>\nPerhaps {CALL}?\n</think>\n\nNo.",
    "a call in a thought that has no end": f"<think>\nI look. {CALL}",
}

IN_SOAK = ("too deep",)
"""Those that take seconds, and of which another says the same."""


def encoded(chat_format: ChatFormat, text: str) -> list[int]:
    ids: list[int] = chat_format.tokenizer.encode(text, add_special_tokens=False)
    return ids


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def joined(chat_format: ChatFormat, states: Sequence[list[int]], stop: Sequence[str] = ()) -> AssistantMessage:
    """What a client has of a reply that it was shown in these states, the last of which is whole."""
    sent, ids = SentDeltas(), list[str]()
    got, is_open = AssistantMessage(""), False
    for state in states:
        final = state is states[-1]
        message = chat_format.parse(state, [TOOL], stop=stop, tool_call_ids=ids, growing=not final)
        for delta in sent.growth(message, final=final):
            assert not (is_open and (delta.text or delta.reasoning))
            is_open = delta.begun_call is not None
            got.content += delta.text
            got.reasoning = (got.reasoning or "") + delta.reasoning or None
            if delta.begun_call is not None and not delta.arguments:
                got.tool_calls.append({"id": delta.begun_call["id"], **delta.begun_call["function"]})
            got.tool_calls[-1:] = [
                {**call, "arguments": call["arguments"] + delta.arguments} for call in got.tool_calls[-1:]
            ]
            if delta.tool_call is not None:
                assert got.tool_calls[-1] == {"id": delta.tool_call["id"], **delta.tool_call["function"]}
    return got


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak) if name in IN_SOAK else name for name in REPLIES]
)
def test_pieces_are_what_the_whole_reply_says_wherever_it_is_cut(name: str, nano_format: ChatFormat) -> None:
    ids = encoded(nano_format, REPLIES[name] + "<|im_end|>")
    step = max(1, len(ids) // 60)
    for end in range(1, len(ids) + 1, step):
        for stride in (1, 7):
            states = [ids[:count] for count in range(1, end, max(stride, step))] + [ids[:end]]
            whole = nano_format.parse(ids[:end], [TOOL])
            got = joined(nano_format, states)
            made = [(call["function"]["name"], call["function"]["arguments"]) for call in whole.tool_calls]
            assert [(call["name"], call["arguments"]) for call in got.tool_calls] == made
            assert got.reasoning == (whole.reasoning or None)
            if made:
                assert got.content.strip() == whole.content.strip()


@pytest.mark.parametrize(
    "stop", ["x y", "<tool", *(pytest.param(stop, marks=pytest.mark.soak) for stop in ("é!", "\n\n"))]
)
def test_a_text_that_may_become_a_stop_string_does_not_come_into_the_middle_of_a_call(
    stop: str, nano_format: ChatFormat
) -> None:
    for between in ("x", " x ", "é", "\n", "<"):
        ids = encoded(nano_format, f"a{between}{CALL}{between}{CALL}{between}<|im_end|>")
        whole = nano_format.parse(ids, [TOOL], stop=[stop])
        for last in range(0, len(ids), 3):  # the last state that was seen before the whole
            got = joined(nano_format, [*(ids[:count] for count in range(1, last, 2)), ids], [stop])
            assert len(got.tool_calls) == len(whole.tool_calls) == 2
            assert got.content.split() == whole.content.split()


def test_a_call_that_is_not_whole_has_arguments_that_no_client_takes_for_whole(nano_format: ChatFormat) -> None:
    for text in (CALL, REPLIES["its brace alone is missing"], REPLIES["a key twice"]):
        ids = encoded(nano_format, text)
        seen = 0
        for end in range(1, len(ids) + 1):
            message = nano_format.parse(ids[:end], [TOOL])
            for call in message.tool_calls:
                if end == len(ids) and text != REPLIES["its brace alone is missing"]:
                    assert text == WHOLE % call["function"]["arguments"]
                    continue
                seen += 1
                assert not is_json(call["function"]["arguments"])
                assert message.unfinished == (end < len(ids))
        assert seen > 2


def test_a_stop_string_inside_a_call_is_held_back_and_cuts_it(nano_format: ChatFormat) -> None:
    ids = encoded(nano_format, WHOLE % '{"place": "Rome STOP here"}')
    end = nano_format.tokens_to_stop(ids, ["STOP"])
    states = [ids[:count] for count in range(1, end + 1)]
    whole = nano_format.parse(ids[:end], [TOOL], stop=["STOP"])
    assert (whole.stopped_by, whole.unfinished) == ("STOP", True)
    (call,) = joined(nano_format, states, ["STOP"]).tool_calls
    assert call["arguments"] == whole.tool_calls[0]["function"]["arguments"] == '{"place": "Rome '


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4), st.booleans(), st.sampled_from([None, 1]))
def test_any_beginning_of_a_call_is_read_as_its_beginning(arguments: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(arguments, ensure_ascii=ascii_only, indent=indent)
    call = f'\n{{"name": "f", "arguments": {text}}}\n'
    whole = begun_call(call, ["f"])
    assert whole is not None
    assert whole.whole_as("f", arguments) == text
    assert readable_part(text) == text
    start = call.index(text)
    for end in range(start + 1, len(call)):
        begun = begun_call(call[:end], ["f"])
        assert begun is not None
        assert begun.arguments == text[: min(end - start, len(text) - 1)]
        assert readable_part(begun.arguments) == begun.arguments
        so_far = values_so_far(begun.arguments)
        assert list(so_far) == list(arguments)[: len(so_far)]


class Cut(PolicyByPrompt):
    """Its replies are cut off at the request's bound."""

    async def answer(
        self, input_ids: list[int], sampling: Sampling, session: str, on_progress: OnProgress, *others: Any
    ) -> Generation:
        most = sampling.max_new_tokens

        def cut_progress(ids: list[int]) -> None:
            on_progress(ids[:most])

        generation = await super().answer(input_ids, sampling, session, cut_progress, *others)
        if most < len(generation.output_ids):
            generation = beginning(generation, most, "length")
            self.calls[-1] = (self.calls[-1][0], generation)
        return generation


@dataclass
class Setup:
    proxy: Proxy
    session: Session
    openai: openai.AsyncOpenAI
    anthropic: anthropic.AsyncAnthropic
    google: genai.Client
    replies: list[str]
    """What the model says next, first to last; then it says "done"."""

    def say(self, text: str) -> None:
        self.replies.append(text)


@pytest.fixture
async def setup(nano_format: ChatFormat) -> AsyncIterator[Setup]:
    replies: list[str] = []
    chat_format = ChatFormat(nano_format.tokenizer, nano_format.renderer, 50_000)

    def reply(prompt: str) -> str:
        # Where a tool must be called, the turn has begun with the call.
        begun = prompt.rpartition("<|im_start|>assistant\n")[2]
        return (replies.pop(0) if replies else "done").removeprefix(begun)

    engine = Cut(chat_format, reply)
    async with open_proxy(engine, chat_format, "nano") as proxy:
        session = proxy.open_session()
        options = google.HttpOptions(base_url=proxy.url)
        async with (
            openai.AsyncOpenAI(base_url=proxy.base_url, api_key=session.key, max_retries=0) as client,
            anthropic.AsyncAnthropic(base_url=proxy.url, api_key=session.key, max_retries=0) as claude,
        ):
            yield Setup(
                proxy, session, client, claude, genai.Client(api_key=session.key, http_options=options), replies
            )
        assert_record_is_what_the_engine_saw(session.record, engine.calls)


NAMED = {"type": "function", "function": {"name": "weather"}}
MALFORMED = REPLIES["no JSON inside"]
DEEP = WHOLE % ('{"place":' + "[" * 190 + "]" * 190 + "}")
ENDLESS = WHOLE % ('{"place":' + "[" * 1200 + "]" * 1200 + "}")
CASES = [
    pytest.param(CALL, None, {}, id="auto"),
    pytest.param(CALL, None, {"tool_choice": "required"}, id="required"),
    pytest.param(CALL, None, {"tool_choice": NAMED}, id="named"),
    pytest.param(CALL, 40, {}, id="cut off"),
    pytest.param(CALL, 25, {"tool_choice": NAMED}, id="named and cut off"),
    pytest.param(MALFORMED, None, {}, id="malformed"),
    pytest.param(DEEP, None, {}, id="deep"),
    pytest.param(ENDLESS, 900, {}, id="a loop of brackets that is cut off", marks=pytest.mark.soak),
    pytest.param(ENDLESS, None, {}, id="deeper than readers go"),
]


@pytest.mark.anyio
@pytest.mark.parametrize(("said", "most", "choice"), CASES)
async def test_chat_streams_a_call_in_pieces(setup: Setup, said: str, most: int | None, choice: Any) -> None:
    history: list[Any] = [{"role": "user", "content": "1"}]
    options: Any = {"model": "any", "messages": history, "tools": [TOOL], "max_tokens": most, **choice}
    setup.say(said)
    whole = (await setup.openai.chat.completions.create(**options)).choices[0]
    setup.say(said)
    stream = await setup.openai.chat.completions.create(**options, stream=True)
    pieces, finish = [], None
    async for chunk in stream:
        finish = chunk.choices[0].finish_reason or finish
        pieces += list(chunk.choices[0].delta.tool_calls or [])
    assert whole.message.tool_calls is not None
    (call,) = whole.message.tool_calls
    assert call.type == "function"
    assert [piece.index for piece in pieces] == [0] * len(pieces)
    assert (pieces[0].id or "").startswith("call_")
    assert "".join(piece.function.arguments for piece in pieces) == call.function.arguments
    assert finish == whole.finish_reason == ("length" if most else "tool_calls")
    first, second = setup.session.record.turns
    assert first.output_ids == second.output_ids
    if said == CALL:
        assert len(pieces) > 8
    if most is None and said == CALL:
        assert call.function.arguments == ARGUMENTS
        setup.say(said)
        async with setup.openai.chat.completions.stream(**options) as helped:
            grown = [e.arguments_delta async for e in helped if e.type == "tool_calls.function.arguments.delta"]
            (final,) = (await helped.get_final_completion()).choices[0].message.tool_calls or []
        assert len(grown) > 8
        assert "".join(grown) == final.function.arguments == ARGUMENTS
    history += [whole.message, {"role": "tool", "tool_call_id": call.id, "content": "failed"}]
    await setup.openai.chat.completions.create(**options)
    assert setup.session.record.turns[-1].parent is first


@pytest.mark.anyio
@pytest.mark.parametrize(("said", "most", "choice"), CASES)
async def test_messages_stream_a_call_in_pieces(setup: Setup, said: str, most: int | None, choice: Any) -> None:
    kinds: dict[Any, Any] = {None: {"type": "auto"}, "required": {"type": "any"}}
    chosen = choice.get("tool_choice")
    history: list[Any] = [{"role": "user", "content": "1"}]
    options: Any = {
        "model": "any",
        "messages": history,
        "tools": [{"name": "weather", "description": "Look.", "input_schema": SCHEMA}],
        "max_tokens": most or 4000,
        "tool_choice": {"type": "tool", "name": "weather"} if isinstance(chosen, dict) else kinds[chosen],
    }
    setup.say(said)
    whole = await setup.anthropic.messages.create(**options)
    setup.say(said)
    async with setup.anthropic.messages.stream(**options) as stream:
        grown = [event.partial_json async for event in stream if event.type == "input_json"]
        final = await stream.get_final_message()
    (call,), (streamed,) = whole.content, final.content
    assert (call.type, streamed.type) == ("tool_use", "tool_use")
    assert streamed.input == call.input  # type: ignore[union-attr]
    assert final.stop_reason == whole.stop_reason == ("max_tokens" if most else "tool_use")
    if said == CALL:
        assert len(grown) > 8
        assert ARGUMENTS.startswith("".join(grown))
    if most is None and said == CALL:
        assert "".join(grown) == ARGUMENTS
    result = {"type": "tool_result", "tool_use_id": streamed.id, "content": "failed"}  # type: ignore[union-attr]
    history += [{"role": "assistant", "content": final.content}, {"role": "user", "content": [result]}]
    await setup.anthropic.messages.create(**{**options, "max_tokens": 4000})
    assert setup.session.record.turns[-1].parent is setup.session.record.turns[1]


@pytest.mark.anyio
@pytest.mark.parametrize(("said", "most", "choice"), CASES)
async def test_responses_stream_a_call_in_pieces(setup: Setup, said: str, most: int | None, choice: Any) -> None:
    named = {"tool_choice": {"type": "function", "name": "weather"}} if choice.get("tool_choice") == NAMED else choice
    history: list[Any] = [{"role": "user", "content": "1"}]
    tools = [{"type": "function", "strict": None, **TOOL["function"]}]
    options: Any = {"model": "any", "input": history, "tools": tools, "max_output_tokens": most or 4000, **named}
    setup.say(said)
    whole = await setup.openai.responses.create(**options)
    setup.say(said)
    async with setup.openai.responses.stream(**options) as stream:
        events = [event async for event in stream]
    grown = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    (done,) = (event for event in events if event.type == "response.function_call_arguments.done")
    (added,) = (event.item for event in events if event.type == "response.output_item.added")
    (item,), last = whole.output, events[-1]
    assert item.type == added.type == "function_call"
    assert "".join(grown) == done.arguments == item.arguments
    assert last.type == ("response.incomplete" if most else "response.completed")
    assert whole.status == last.response.status
    (final,) = last.response.output
    assert final.type == "function_call"
    assert (final.id, final.call_id, final.arguments) == (added.id, added.call_id, item.arguments)
    if said == CALL:
        assert len(grown) > 8
    output = {"type": "function_call_output", "call_id": item.call_id, "output": "failed"}
    await setup.openai.responses.create(**{**options, "input": [*history, item, output], "max_output_tokens": 4000})
    assert setup.session.record.turns[-1].parent is setup.session.record.turns[0]


@pytest.mark.anyio
@pytest.mark.parametrize(("said", "most", "choice"), CASES)
async def test_generate_content_gives_a_call_whole(setup: Setup, said: str, most: int | None, choice: Any) -> None:
    """A part of it is a whole call."""
    modes: dict[Any, Any] = {None: {"mode": "AUTO"}, "required": {"mode": "ANY"}}
    chosen = choice.get("tool_choice")
    mode = {"mode": "ANY", "allowed_function_names": ["weather"]} if isinstance(chosen, dict) else modes[chosen]
    config: Any = {
        "tools": [{"function_declarations": [{"name": "weather", "parameters_json_schema": SCHEMA}]}],
        "tool_config": {"function_calling_config": mode},
        "automatic_function_calling": {"disable": True},
        "max_output_tokens": most,
    }
    asked: list[Any] = [google.UserContent("1")]
    models = setup.google.models
    setup.say(said)
    whole: Any = await in_thread(lambda: models.generate_content(model="any", contents=asked, config=config))
    setup.say(said)
    pieces: list[Any] = await in_thread(
        lambda: list(models.generate_content_stream(model="any", contents=asked, config=config))
    )
    (call,) = whole.function_calls
    (streamed,) = (one for piece in pieces for one in piece.function_calls or [])
    assert (streamed.name, streamed.args) == (call.name, call.args)
    assert pieces[-1].candidates[0].finish_reason == whole.candidates[0].finish_reason
    result = google.Part.from_function_response(name="weather", response={"error": "failed"})
    asked += [whole.candidates[0].content, google.Content(role="user", parts=[result])]
    more: Any = {**config, "max_output_tokens": 4000}
    await in_thread(lambda: models.generate_content(model="any", contents=asked, config=more))
    assert setup.session.record.turns[-1].parent is not None
