"""LiteLLM, which speaks each dialect behind one function."""

from __future__ import annotations

import json
import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from asking import ANSWER, BOTH, DESCRIPTION, ONE, REPORT, SCHEMA, THINKING, TWO, URL, hold, order, say, weather
from pydantic import BaseModel

TOOL: Any = {"type": "function", "function": {"name": "weather", "description": DESCRIPTION, "parameters": SCHEMA}}
MODELS = {
    "plain": ("openai/gpt-4.1", f"{URL}/v1"),
    "chat": ("openai/gpt-5.4", f"{URL}/v1"),
    "anthropic": ("anthropic/claude-opus-4-5", URL),
    "google": ("gemini/gemini-3-pro-preview", f"{URL}/v1beta"),
    "responses": ("openai/responses/gpt-5.4", f"{URL}/v1"),
}
litellm.drop_params = False


class Report(BaseModel):
    place: str
    degrees: int


def ask(key: str, dialect: str, messages: list[Any], **options: Any) -> Any:
    model, base = MODELS[dialect]
    return litellm.completion(model, messages, api_base=base, api_key=key, max_retries=0, **options)


def converse(key: str, dialect: str, stream: bool, question: str, **options: Any) -> str:
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]
    for _ in range(4):
        reply = ask(key, dialect, messages, tools=[TOOL], stream=stream, **options)
        if stream:
            reply = litellm.stream_chunk_builder(list(reply), messages=messages)
        message = reply.choices[0].message
        if not message.tool_calls:
            return str(message.content)
        messages.append(message.model_dump())
        for call in message.tool_calls:
            done = weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": done})
    return "no answer"


def structured(key: str, dialect: str) -> str:
    asked: list[Any] = [{"role": "user", "content": say(json.dumps(REPORT))}]
    reply = ask(key, dialect, asked, response_format=Report)
    return order(ANSWER, **json.loads(reply.choices[0].message.content))


def required(key: str, dialect: str) -> str:
    reply = ask(key, dialect, [{"role": "user", "content": ONE}], tools=[TOOL], tool_choice="required")
    (call,) = reply.choices[0].message.tool_calls
    return ANSWER if json.loads(call.function.arguments) == {"place": "Berlin"} else "no call"


def thinking(key: str, dialect: str) -> str:
    messages: list[Any] = [{"role": "user", "content": THINKING}]
    first = ask(key, dialect, messages, reasoning_effort="low").choices[0].message
    messages += [first.model_dump(), {"role": "user", "content": THINKING}]
    return str(ask(key, dialect, messages, reasoning_effort="low").choices[0].message.content)


def options(key: str) -> str:
    asked: list[Any] = [{"role": "user", "content": say(ANSWER + " Or not.")}]
    stopped = ask(key, "plain", asked, stop=[" Or"], seed=1, user="ada", max_tokens=300, temperature=1, top_p=1, n=1)
    many = ask(key, "plain", asked, n=2, logprobs=True, max_completion_tokens=300, metadata={"run": "1"})
    assert len(many.choices) == 2
    return str(stopped.choices[0].message.content)


async def asynchronous(key: str) -> str:
    model, base = MODELS["chat"]
    stream: Any = await litellm.acompletion(
        model,
        [{"role": "user", "content": say(ANSWER)}],
        api_base=base,
        api_key=key,
        stream=True,
        stream_options={"include_usage": True},
    )
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


def responses_api(key: str) -> str:
    reply: Any = litellm.responses(
        model="openai/gpt-5.4", input=say(ANSWER), api_base=f"{URL}/v1", api_key=key, store=True
    )
    again: Any = litellm.responses(
        model="openai/gpt-5.4", input=say(ANSWER), previous_response_id=reply.id, api_base=f"{URL}/v1", api_key=key
    )
    return str(again.output[0].content[0].text)


def text_completion(key: str) -> str:
    reply: Any = litellm.text_completion(
        model="text-completion-openai/text", prompt=say(ANSWER), api_base=f"{URL}/v1", api_key=key, max_tokens=50
    )
    return str(reply.choices[0].text)


talks: dict[str, Any] = {}
for name in ("chat", "anthropic", "google", "responses"):
    talks |= {
        f"{name}_whole": lambda key, name=name: converse(key, name, False, ONE),
        f"{name}_stream": lambda key, name=name: converse(key, name, True, TWO),
        f"{name}_parallel": lambda key, name=name: converse(key, name, False, BOTH),
        f"{name}_structured": lambda key, name=name: structured(key, name),
        f"{name}_required": lambda key, name=name: required(key, name),
        f"{name}_thinking": lambda key, name=name: thinking(key, name),
    }
hold(
    **talks,
    options=options,
    asynchronous=asynchronous,
    responses_api=responses_api,
    text_completion=text_completion,
)
