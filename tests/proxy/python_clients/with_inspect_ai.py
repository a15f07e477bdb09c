"""inspect_ai's models, with each provider: its own loop over tools, structured output, caches and reasoning."""

from __future__ import annotations

import json
from typing import Any

from asking import ANSWER, BOTH, ONE, REPORT, THINKING, TWO, URL, hold, order, say
from inspect_ai.model import (
    ChatMessage,
    ChatMessageSystem,
    ChatMessageUser,
    GenerateConfig,
    ResponseSchema,
    execute_tools,
    get_model,
)
from inspect_ai.tool import Tool, tool
from inspect_ai.util import json_schema
from pydantic import BaseModel

PROVIDERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "chat": ("openai/gpt-4.1", f"{URL}/v1", {"responses_api": False}),
    "responses": ("openai/gpt-5.4", f"{URL}/v1", {"responses_api": True}),
    "anthropic": ("anthropic/claude-opus-4-5", URL, {}),
    "google": ("google/gemini-3-pro-preview", URL, {}),
}


class Report(BaseModel):
    place: str
    degrees: int


@tool
def weather() -> Tool:
    async def execute(place: str) -> str:
        """The weather of a place.

        Args:
            place: Name of a city.
        """
        return f"sunny in {place}"

    return execute


def model(key: str, provider: str, **options: Any) -> Any:
    name, url, arguments = PROVIDERS[provider]
    config = GenerateConfig(max_retries=0, **options)
    return get_model(name, base_url=url, api_key=key, memoize=False, config=config, **arguments)


async def converse(key: str, provider: str, question: str, **options: Any) -> str:
    async with model(key, provider, **options) as one:
        messages: list[ChatMessage] = [ChatMessageSystem(content="Be brief."), ChatMessageUser(content=question)]
        for _ in range(4):
            output = await one.generate(messages, tools=[weather()])
            messages.append(output.message)
            if not output.message.tool_calls:
                return str(output.completion)
            messages += (await execute_tools(messages, [weather()])).messages
    return "no answer"


async def loop(key: str, provider: str) -> str:
    async with model(key, provider) as one:
        _, output = await one.generate_loop([ChatMessageUser(content=ONE)], tools=[weather()])
        return str(output.completion)


async def structured(key: str, provider: str) -> str:
    schema = ResponseSchema(name="report", json_schema=json_schema(Report))
    async with model(key, provider, response_schema=schema) as one:
        output = await one.generate(say(json.dumps(REPORT)))
    return order(ANSWER, **json.loads(output.completion))


async def forced(key: str, provider: str) -> str:
    async with model(key, provider) as one:
        output = await one.generate(ONE, tools=[weather()], tool_choice="any")
    (call,) = output.message.tool_calls
    return ANSWER if call.arguments == {"place": "Berlin"} else "no call"


async def thinking(key: str, provider: str) -> str:
    async with model(key, provider, reasoning_effort="low") as one:
        messages: list[ChatMessage] = [ChatMessageUser(content=THINKING)]
        messages.append((await one.generate(messages)).message)
        messages.append(ChatMessageUser(content=THINKING))
        return str((await one.generate(messages)).completion)


async def options(key: str) -> str:
    config = {
        "stop_seqs": [" Or"],
        "seed": 1,
        "num_choices": 2,
        "logprobs": True,
        "max_tokens": 200,
        "temperature": 1.0,
    }
    async with model(key, "chat", **config) as one:
        output = await one.generate(say(ANSWER + " Or not."))
    assert len(output.choices) == 2
    return str(output.completion)


talks: dict[str, Any] = {}
for name in PROVIDERS:
    talks |= {
        f"{name}_whole": lambda key, name=name: converse(key, name, ONE),
        f"{name}_two_steps": lambda key, name=name: converse(key, name, TWO),
        f"{name}_parallel": lambda key, name=name: converse(key, name, BOTH),
        f"{name}_loop": lambda key, name=name: loop(key, name),
        f"{name}_structured": lambda key, name=name: structured(key, name),
        f"{name}_forced": lambda key, name=name: forced(key, name),
        f"{name}_thinking": lambda key, name=name: thinking(key, name),
    }
hold(**talks, chat_options=options, anthropic_cached=lambda key: converse(key, "anthropic", TWO, cache_prompt=True))
