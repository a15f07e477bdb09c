"""Pydantic AI over each of its models: tools, output by tools and by schemas, streams."""

from __future__ import annotations

import json
from typing import Any

from asking import ANSWER, BOTH, ONE, REPORT, THINKING, TWO, URL, hold, order, say, weather
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider


class Report(BaseModel):
    place: str
    degrees: int


def model(key: str, dialect: str) -> Any:
    if dialect == "anthropic":
        from anthropic import AsyncAnthropic

        return AnthropicModel(
            "claude-opus-4-5", provider=AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=URL, api_key=key))
        )
    if dialect == "google":
        return GoogleModel("gemini-3-pro-preview", provider=GoogleProvider(api_key=key, base_url=URL))
    from openai import AsyncOpenAI

    provider = OpenAIProvider(openai_client=AsyncOpenAI(base_url=f"{URL}/v1", api_key=key, max_retries=0))
    return (OpenAIChatModel if dialect == "chat" else OpenAIResponsesModel)("gpt-5.4", provider=provider)


async def converse(key: str, dialect: str, stream: bool, question: str, **options: Any) -> str:
    agent = Agent(model(key, dialect), instructions="Be brief.", tools=[weather], **options)
    if not stream:
        return (await agent.run(question)).output
    async with agent.run_stream(question) as running:
        return await running.get_output()


async def output(key: str, dialect: str, kind: Any, question: str) -> str:
    agent: Any = Agent(model(key, dialect), output_type=kind)
    return order(ANSWER, **(await agent.run(question)).output.model_dump())


async def memory(key: str, dialect: str) -> str:
    agent = Agent(model(key, dialect), system_prompt="Be brief.", tools=[weather])
    first = await agent.run(ONE)
    return (await agent.run(ONE, message_history=first.all_messages())).output


async def thinking(key: str, dialect: str) -> str:
    agent = Agent(model(key, dialect))
    first = await agent.run(THINKING)
    return (await agent.run(THINKING, message_history=first.all_messages())).output


BY_TOOL = say([("final_result", REPORT)])
BY_TEXT = say(json.dumps(REPORT))
talks: dict[str, Any] = {}
for name in ("chat", "responses", "anthropic", "google"):
    talks |= {
        f"{name}_whole": lambda key, name=name: converse(key, name, False, ONE),
        f"{name}_stream": lambda key, name=name: converse(key, name, True, TWO),
        f"{name}_parallel": lambda key, name=name: converse(key, name, False, BOTH),
        f"{name}_output_by_tool": lambda key, name=name: output(key, name, Report, BY_TOOL),
        f"{name}_memory": lambda key, name=name: memory(key, name),
        f"{name}_thinking": lambda key, name=name: thinking(key, name),
        f"{name}_native_output": lambda key, name=name: output(key, name, NativeOutput(Report), BY_TEXT),
    }
talks["chat_prompted_output"] = lambda key: output(key, "chat", PromptedOutput(Report), BY_TEXT)
hold(**talks)
