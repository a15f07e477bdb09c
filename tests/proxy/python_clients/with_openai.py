"""OpenAI's own SDK: chat, responses, completions and models, whole and streamed."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
from asking import ANSWER, BOTH, DESCRIPTION, ONE, REPORT, SCHEMA, THINKING, TWO, URL, hold, order, say, weather
from pydantic import BaseModel

CHAT_TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "description": DESCRIPTION, "parameters": SCHEMA, "strict": True},
}
TOOL: Any = {"type": "function", "name": "weather", "description": DESCRIPTION, "parameters": SCHEMA, "strict": True}


class Report(BaseModel):
    place: str
    degrees: int


def client(key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{URL}/v1", api_key=key, max_retries=0)


def chat(key: str, stream: bool, content: Any, **options: Any) -> str:
    """Hold a conversation, running the tools."""
    messages: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": content, "name": "Ada"},
    ]
    for _ in range(4):
        asked: dict[str, Any] = {"model": "gpt-5.4", "messages": messages, "tools": [CHAT_TOOL], **options}
        with client(key) as one:
            if stream:
                with one.chat.completions.stream(**asked, stream_options={"include_usage": True}) as events:
                    for _ in events:
                        pass
                    reply: Any = events.get_final_completion()
            else:
                reply = one.chat.completions.create(**asked)
        assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
        message = reply.choices[0].message
        if not message.tool_calls:
            return str(message.content)
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            done = weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": done})
    return "no answer"


def responses(key: str, stream: bool, content: Any, *, by_id: bool = False, **options: Any) -> str:
    history: list[Any] = [{"role": "user", "content": content}]
    previous: dict[str, Any] = {}
    for _ in range(4):
        asked: dict[str, Any] = {"model": "gpt-5.4", "instructions": "Be brief.", "tools": [TOOL], **options}
        asked |= {"input": history, **previous}
        with client(key) as one:
            if stream:
                with one.responses.stream(**asked) as events:
                    for _ in events:
                        pass
                    reply: Any = events.get_final_response()
            else:
                reply = one.responses.create(**asked)
        calls = [item for item in reply.output if item.type == "function_call"]
        if not calls:
            return str(reply.output_text)
        if by_id:
            previous, history = {"previous_response_id": reply.id}, []
        else:
            history += reply.output
        for call in calls:
            done = weather(**json.loads(call.arguments))
            history.append({"type": "function_call_output", "call_id": call.call_id, "output": done})
    return "no answer"


def chat_parsed(key: str) -> str:
    with client(key) as one:
        reply = one.chat.completions.parse(
            model="gpt-5.4", messages=[{"role": "user", "content": say(json.dumps(REPORT))}], response_format=Report
        )
    report = reply.choices[0].message.parsed
    return order(ANSWER, **(report.model_dump() if report else {}))


def responses_parsed(key: str) -> str:
    with client(key) as one:
        reply = one.responses.parse(model="gpt-5.4", input=say(json.dumps(REPORT)), text_format=Report)
    report = reply.output_parsed
    return order(ANSWER, **(report.model_dump() if report else {}))


def chat_options(key: str) -> str:
    """What changes nothing of the reply, and what ends it, or asks for several."""
    question: Any = [{"role": "user", "content": say(ANSWER + " Or not.")}]
    with client(key) as one:
        stopped = one.chat.completions.create(
            model="gpt-5.4", messages=question, stop=[" Or"], seed=3, user="ada", temperature=1, top_p=1
        )
        many = one.chat.completions.create(
            model="gpt-5.4", messages=question, n=3, logprobs=True, top_logprobs=0, max_completion_tokens=50
        )
        labelled = one.chat.completions.create(
            model="gpt-5.4",
            messages=question,
            store=True,
            metadata={"run": "1"},
            service_tier="auto",
            prompt_cache_key="x",
            safety_identifier="x",
            reasoning_effort="low",
            verbosity="low",
            extra_headers={"x-run": "1"},
        )
        plain = one.chat.completions.create(
            model="gpt-5.4",
            messages=question,
            response_format={"type": "text"},
            frequency_penalty=0,
            presence_penalty=0,
        )
        pieces = list(one.chat.completions.create(model="gpt-5.4", messages=question, n=2, stream=True))
    assert len(many.choices) == 3
    assert many.choices[0].logprobs
    assert many.choices[0].logprobs.content
    assert {choice.index for piece in pieces for choice in piece.choices} == {0, 1}
    assert ANSWER in str(labelled.choices[0].message.content)
    assert ANSWER in str(plain.choices[0].message.content)
    return str(stopped.choices[0].message.content)


def chat_choices(key: str) -> str:
    """Each way to say which tools may be called."""
    choices: list[Any] = [
        "required",
        {"type": "function", "function": {"name": "weather"}},
        {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "weather"}}]},
        },
    ]
    with client(key) as one:
        for choice in choices:
            called = one.chat.completions.create(
                model="gpt-5.4",
                messages=[{"role": "user", "content": [{"type": "text", "text": ONE}]}],
                tools=[CHAT_TOOL],
                tool_choice=choice,
                parallel_tool_calls=False,
            )
            (call,) = called.choices[0].message.tool_calls or []
            assert call.type == "function"
            assert json.loads(call.function.arguments) == {"place": "Berlin"}
        none = one.chat.completions.create(
            model="gpt-5.4", messages=[{"role": "user", "content": say(ANSWER)}], tools=[CHAT_TOOL], tool_choice="none"
        )
    return str(none.choices[0].message.content)


def chat_json(key: str, kind: Literal["json_object", "json_schema"]) -> str:
    form: Any = {"type": kind}
    if kind == "json_schema":
        form["json_schema"] = {"name": "report", "strict": True, "schema": {**SCHEMA, "required": ["place"]}}
    with client(key) as one:
        reply = one.chat.completions.create(
            model="gpt-5.4", messages=[{"role": "user", "content": say('{"place": "Berlin"}')}], response_format=form
        )
    return ANSWER if json.loads(str(reply.choices[0].message.content)) == {"place": "Berlin"} else "no JSON"


def thinking(key: str) -> str:
    with client(key) as one:
        chatted = one.chat.completions.create(model="o4", messages=[{"role": "user", "content": THINKING}])
        reply = one.responses.create(
            model="o4",
            input=THINKING,
            reasoning={"effort": "low", "summary": "auto"},
            include=["reasoning.encrypted_content"],
            store=False,
        )
        history: list[Any] = [
            {"role": "user", "content": THINKING},
            *reply.output,
            {"role": "user", "content": THINKING},
        ]
        again = one.responses.create(model="o4", input=history)
    assert [item.type for item in reply.output] == ["reasoning", "message"], reply.output
    assert again.output_text == ANSWER
    return str(chatted.choices[0].message.content)


def stored(key: str) -> str:
    """What a service keeps of responses."""
    with client(key) as one:
        reply = one.responses.create(
            model="gpt-5.4",
            input=[{"role": "user", "content": [{"type": "input_text", "text": say(ANSWER)}]}],
            truncation="auto",
        )
        found = one.responses.retrieve(reply.id)
        more = one.responses.create(
            model="gpt-5.4", previous_response_id=reply.id, input=say(ANSWER), metadata={"run": "1"}, user="ada"
        )
        one.responses.delete(more.id)
    assert found.output_text == reply.output_text
    return more.output_text


def responses_choices(key: str) -> str:
    choices: list[Any] = [
        "required",
        {"type": "function", "name": "weather"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]},
    ]
    with client(key) as one:
        for choice in choices:
            called = one.responses.create(
                model="gpt-5.4", input=ONE, tools=[TOOL, {"type": "web_search"}], tool_choice=choice, max_tool_calls=3
            )
            assert [item.type for item in called.output] == ["function_call"]
        none = one.responses.create(model="gpt-5.4", input=say(ANSWER), tools=[TOOL], tool_choice="none")
    return none.output_text


def completions(key: str) -> str:
    with client(key) as one:
        whole = one.completions.create(model="text", prompt=say(ANSWER), max_tokens=60, stop=["!"], logprobs=1)
        many = one.completions.create(model="text", prompt=[say(ANSWER), say(ANSWER)], n=2, max_tokens=60, echo=False)
        pieces = list(one.completions.create(model="text", prompt=say(ANSWER), max_tokens=60, stream=True, seed=1))
    assert len(many.choices) == 4
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == whole.choices[0].text
    return whole.choices[0].text


def models(key: str) -> str:
    with client(key) as one:
        (model,) = one.models.list()
        assert one.models.retrieve(model.id).id == model.id
        reply = one.chat.completions.create(model=model.id, messages=[{"role": "user", "content": say(ANSWER)}])
    return str(reply.choices[0].message.content)


async def at_once(key: str) -> str:
    """Several calls of one conversation at the same time, by the asynchronous client."""
    async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=key, max_retries=0) as one:
        stream: Any = await one.chat.completions.create(
            model="gpt-5.4", messages=[{"role": "user", "content": say(ANSWER)}], stream=True
        )
        said = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
        raw = await one.chat.completions.with_raw_response.create(
            model="gpt-5.4", messages=[{"role": "user", "content": say(ANSWER)}]
        )
    assert raw.headers["x-request-id"]
    return "".join(said)


hold(
    chat_whole=lambda key: chat(key, False, ONE),
    chat_stream=lambda key: chat(key, True, ONE),
    chat_two_steps=lambda key: chat(key, True, [{"type": "text", "text": TWO}]),
    chat_parallel=lambda key: chat(key, False, BOTH, parallel_tool_calls=True),
    chat_parsed=chat_parsed,
    chat_json_object=lambda key: chat_json(key, "json_object"),
    chat_json_schema=lambda key: chat_json(key, "json_schema"),
    chat_options=chat_options,
    chat_choices=chat_choices,
    responses_whole=lambda key: responses(key, False, ONE),
    responses_stream=lambda key: responses(key, True, ONE),
    responses_two_steps=lambda key: responses(key, False, TWO, by_id=True),
    responses_parallel=lambda key: responses(key, True, BOTH, by_id=True, parallel_tool_calls=True),
    responses_parsed=responses_parsed,
    responses_choices=responses_choices,
    stored=stored,
    thinking=thinking,
    completions=completions,
    models=models,
    at_once=at_once,
)
