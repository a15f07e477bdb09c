"""Strands' agents, which stream always, over each of its models: tools, a second question, structured output."""

from __future__ import annotations

import json
from typing import Any

from asking import ANSWER, BOTH, ONE, REPORT, THINKING, TWO, URL, hold, order, say, weather
from pydantic import BaseModel
from strands import Agent, tool
from strands.models.anthropic import AnthropicModel
from strands.models.gemini import GeminiModel
from strands.models.openai import OpenAIModel
from strands.models.openai_responses import OpenAIResponsesModel


class Report(BaseModel):
    place: str
    degrees: int


LOOK = tool(weather)


def agent(key: str, dialect: str, **options: Any) -> Agent:
    of_openai: Any = {"api_key": key, "base_url": f"{URL}/v1"}
    models: dict[str, Any] = {
        "chat": lambda: OpenAIModel(client_args=of_openai, model_id="gpt-5.4"),
        "whole": lambda: OpenAIModel(client_args=of_openai, model_id="gpt-5.4", streaming=False),
        "responses": lambda: OpenAIResponsesModel(client_args=of_openai, model_id="gpt-5.4"),
        "anthropic": lambda: AnthropicModel(
            client_args={"api_key": key, "base_url": URL}, model_id="claude-opus-4-5", max_tokens=500
        ),
        "google": lambda: GeminiModel(
            client_args={"api_key": key, "http_options": {"base_url": URL}}, model_id="gemini-3-pro-preview"
        ),
    }
    return Agent(model=models[dialect](), system_prompt="Be brief.", callback_handler=None, **options)


def converse(key: str, dialect: str, *questions: str) -> str:
    asked = agent(key, dialect, tools=[LOOK])
    return [str(asked(question)) for question in questions][-1]


def structured(key: str, dialect: str) -> str:
    said: Any = agent(key, dialect)(say([("Report", REPORT)], ANSWER), structured_output_model=Report)
    return order(ANSWER, **said.structured_output.model_dump())


talks: dict[str, Any] = {}
for name in ("chat", "whole", "responses", "anthropic", "google"):
    talks |= {
        f"{name}_one": lambda key, name=name: converse(key, name, ONE),
        f"{name}_two_steps": lambda key, name=name: converse(key, name, TWO),
        f"{name}_parallel": lambda key, name=name: converse(key, name, BOTH),
        f"{name}_memory": lambda key, name=name: converse(key, name, ONE, ONE),
        f"{name}_thinking": lambda key, name=name: converse(key, name, THINKING, ONE),
        f"{name}_structured": lambda key, name=name: structured(key, name),
    }
talks["chat_parsed"] = lambda key: order(
    ANSWER, **agent(key, "chat").structured_output(Report, say(json.dumps(REPORT))).model_dump()
)
hold(**talks)
