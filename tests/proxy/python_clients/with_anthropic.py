"""Anthropic's own SDK: messages, whole, streamed and by its own loop over tools, and what stands beside them."""

from __future__ import annotations

import json
from typing import Any

import anthropic
from anthropic import beta_tool
from asking import ANSWER, BOTH, DESCRIPTION, ONE, REPORT, SCHEMA, THINKING, TWO, URL, hold, order, say, weather
from pydantic import BaseModel

TOOL: Any = {"name": "weather", "description": DESCRIPTION, "input_schema": SCHEMA}


class Report(BaseModel):
    place: str
    degrees: int


def client(key: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=URL, api_key=key, max_retries=0)


def spoken(reply: Any) -> str:
    return "".join(block.text for block in reply.content if block.type == "text")


def converse(key: str, stream: bool, content: Any, **options: Any) -> str:
    messages: list[Any] = [{"role": "user", "content": content}]
    for _ in range(4):
        asked: dict[str, Any] = {
            "model": "claude-opus-5",
            "max_tokens": 500,
            "messages": messages,
            "tools": [TOOL],
            **options,
        }
        with client(key) as one:
            if stream:
                with one.messages.stream(**asked) as events:
                    for _ in events:
                        pass
                    reply: Any = events.get_final_message()
            else:
                reply = one.messages.create(**asked)
        uses = [block for block in reply.content if block.type == "tool_use"]
        if not uses:
            return spoken(reply)
        results = [{"type": "tool_result", "tool_use_id": use.id, "content": weather(**use.input)} for use in uses]
        messages += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": results}]
    return "no answer"


def runner(key: str, stream: bool) -> str:
    with client(key) as one:
        asked: Any = one.beta.messages.tool_runner(
            model="claude-opus-5",
            max_tokens=500,
            messages=[{"role": "user", "content": TWO}],
            tools=[beta_tool(weather)],
            stream=stream,
        )
        return spoken(asked.until_done())


def parsed(key: str) -> str:
    with client(key) as one:
        reply = one.messages.parse(
            model="claude-opus-5",
            max_tokens=500,
            messages=[{"role": "user", "content": say(json.dumps(REPORT))}],
            output_format=Report,
        )
    report = reply.parsed_output
    return order(ANSWER, **(report.model_dump() if report else {}))


def choices(key: str) -> str:
    with client(key) as one:
        for choice in ({"type": "any"}, {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}):
            called: Any = one.messages.create(
                model="claude-opus-5",
                max_tokens=500,
                messages=[{"role": "user", "content": ONE}],
                tools=[TOOL, {"type": "web_search_20250305", "name": "web_search"}],
                tool_choice=choice,  # type: ignore[arg-type]
            )
            assert called.stop_reason == "tool_use"
            assert [block.input for block in called.content if block.type == "tool_use"] == [{"place": "Berlin"}]
        none = one.messages.create(
            model="claude-opus-5",
            max_tokens=500,
            messages=[{"role": "user", "content": say(ANSWER)}],
            tools=[TOOL],
            tool_choice={"type": "none"},
        )
    return spoken(none)


def options(key: str) -> str:
    """Labels, caching and budgets, and what ends a reply."""
    question: Any = [
        {
            "role": "user",
            "content": [{"type": "text", "text": say(ANSWER + " Or not."), "cache_control": {"type": "ephemeral"}}],
        }
    ]
    with client(key) as one:
        stopped = one.messages.create(
            model="claude-opus-5",
            max_tokens=500,
            messages=question,
            stop_sequences=[" Or"],
            extra_body={"temperature": 1, "top_p": 1},
        )
        assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " Or")
        labelled = one.messages.create(
            model="claude-opus-5",
            max_tokens=500,
            messages=question,
            system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            metadata={"user_id": "ada"},
            service_tier="auto",
            thinking={"type": "enabled", "budget_tokens": 1024},
        )
        assert ANSWER in spoken(labelled)
        effort = one.messages.create(
            model="claude-opus-5",
            max_tokens=500,
            messages=question,
            system="Be brief.",
            thinking={"type": "adaptive"},
            output_config={"effort": "low"},
            extra_headers={"anthropic-beta": "context-1m-2025-08-07"},
        )
        assert ANSWER in spoken(effort)
        edited = one.beta.messages.create(
            model="claude-opus-5",
            max_tokens=500,
            messages=question,
            betas=["context-management-2025-06-27"],
            context_management={"edits": [{"type": "clear_tool_uses_20250919"}]},
        )
        assert ANSWER in spoken(edited)
    return spoken(stopped)


def counted(key: str) -> str:
    question: Any = [{"role": "user", "content": ONE}]
    with client(key) as one:
        count = one.messages.count_tokens(model="claude-opus-5", messages=question, tools=[TOOL], system="Be brief.")
        reply = one.messages.create(
            model="claude-opus-5", max_tokens=500, messages=question, tools=[TOOL], system="Be brief."
        )
        assert reply.usage.input_tokens == count.input_tokens, (reply.usage, count)
        beta = one.beta.messages.count_tokens(model="claude-opus-5", messages=question, thinking={"type": "adaptive"})
        assert 0 < beta.input_tokens < count.input_tokens
    return ANSWER


def prefilled(key: str) -> str:
    with client(key) as one:
        reply = one.messages.create(
            model="claude-opus-5",
            max_tokens=500,
            messages=[{"role": "user", "content": say(ANSWER)}, {"role": "assistant", "content": "The answer"}],
        )
    assert not spoken(reply).startswith("The answer")
    return "The answer" + spoken(reply)


def thinking(key: str) -> str:
    messages: list[Any] = [{"role": "user", "content": THINKING}]
    asked: Any = {"model": "claude-opus-5", "max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    with client(key) as one:
        reply = one.messages.create(messages=messages, **asked)
        assert [block.type for block in reply.content] == ["thinking", "text"]
        messages += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": THINKING}]
        with one.messages.stream(messages=messages, **asked) as events:
            kinds = {event.type for event in events}
            assert "thinking" in kinds
            return spoken(events.get_final_message())


def parts(key: str) -> str:
    """Documents, results in parts, and results that are errors."""
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Berlin is a city."}}
    with client(key) as one:
        first: Any = one.messages.create(
            model="claude-opus-5",
            max_tokens=500,
            messages=[{"role": "user", "content": [document, {"type": "text", "text": ONE}]}],
            tools=[TOOL],
        )
        (use,) = [block for block in first.content if block.type == "tool_use"]
        said: list[Any] = [{"type": "text", "text": "no such place"}]
        result = {"type": "tool_result", "tool_use_id": use.id, "content": said, "is_error": True}
        last = one.messages.create(
            model="claude-opus-5",
            max_tokens=500,
            messages=[
                {"role": "user", "content": [document, {"type": "text", "text": ONE}]},  # type: ignore[list-item]
                {"role": "assistant", "content": [block.model_dump() for block in first.content]},
                {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]},  # type: ignore[list-item]
            ],
            tools=[TOOL],
        )
    return spoken(last)


def models(key: str) -> str:
    with client(key) as one:
        (model,) = one.models.list(limit=20)
        assert one.models.retrieve(model.id).id == model.id
        return spoken(
            one.messages.create(model=model.id, max_tokens=99, messages=[{"role": "user", "content": say(ANSWER)}])
        )


async def asynchronous(key: str) -> str:
    async with anthropic.AsyncAnthropic(base_url=URL, auth_token=key, max_retries=0) as one:
        async with one.beta.messages.stream(
            model="claude-opus-5", max_tokens=99, messages=[{"role": "user", "content": say(ANSWER)}]
        ) as events:
            return "".join([text async for text in events.text_stream])


hold(
    whole=lambda key: converse(key, False, ONE),
    stream=lambda key: converse(key, True, ONE, system="Be brief."),
    two_steps=lambda key: converse(key, True, [{"type": "text", "text": TWO}], cache_control={"type": "ephemeral"}),
    parallel=lambda key: converse(key, False, BOTH),
    runner_whole=lambda key: runner(key, False),
    runner_stream=lambda key: runner(key, True),
    parsed=parsed,
    choices=choices,
    options=options,
    counted=counted,
    prefilled=prefilled,
    thinking=thinking,
    parts=parts,
    models=models,
    asynchronous=asynchronous,
)
