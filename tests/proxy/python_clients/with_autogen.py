"""AutoGen's agents, alone and in a team."""

from __future__ import annotations

import json
from typing import Any

from asking import ANSWER, BOTH, ONE, REPORT, TWO, URL, hold, order, say, weather
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import ModelInfo
from autogen_ext.models.anthropic import AnthropicChatCompletionClient
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel

INFO = ModelInfo(vision=False, function_calling=True, json_output=True, family="unknown", structured_output=True)


class Report(BaseModel):
    place: str
    degrees: int


def model(key: str, dialect: str) -> Any:
    if dialect == "anthropic":
        return AnthropicChatCompletionClient(
            model="claude-opus-4-5", base_url=URL, api_key=key, model_info=INFO, max_retries=0
        )
    return OpenAIChatCompletionClient(
        model="gpt-5.4", base_url=f"{URL}/v1", api_key=key, model_info=INFO, max_retries=0
    )


async def converse(key: str, dialect: str, question: str, **options: Any) -> str:
    client = model(key, dialect)
    agent = AssistantAgent("guide", client, tools=[weather], reflect_on_tool_use=True, max_tool_iterations=3, **options)
    result = await agent.run(task=question)
    await client.close()
    return str(result.messages[-1].to_text())  # type: ignore[union-attr]


async def structured(key: str) -> str:
    client = model(key, "chat")
    agent = AssistantAgent("guide", client, output_content_type=Report)
    result: Any = await agent.run(task=say(json.dumps(REPORT)))
    await client.close()
    return order(ANSWER, **result.messages[-1].content.model_dump())


async def twice(key: str) -> str:
    """An agent keeps its conversation between tasks."""
    client = model(key, "chat")
    agent = AssistantAgent("guide", client, tools=[weather], reflect_on_tool_use=True)
    for _ in range(2):
        result = await agent.run(task=ONE)
    await client.close()
    return str(result.messages[-1].to_text())  # type: ignore[union-attr]


async def team(key: str) -> str:
    client = model(key, "chat")
    agents: Any = [
        AssistantAgent("writer", client, system_message="You write."),
        AssistantAgent("critic", client, system_message="You judge."),
    ]
    result = await RoundRobinGroupChat(agents, termination_condition=MaxMessageTermination(4)).run(task=say(ANSWER))
    await client.close()
    return str(result.messages[-1].to_text())  # type: ignore[union-attr]


hold(
    chat_whole=lambda key: converse(key, "chat", ONE),
    chat_stream=lambda key: converse(key, "chat", TWO, model_client_stream=True),
    chat_parallel=lambda key: converse(key, "chat", BOTH),
    chat_twice=twice,
    chat_structured=structured,
    chat_team=team,
    anthropic_whole=lambda key: converse(key, "anthropic", ONE),
    anthropic_stream=lambda key: converse(key, "anthropic", TWO, model_client_stream=True),
    anthropic_parallel=lambda key: converse(key, "anthropic", BOTH),
)
