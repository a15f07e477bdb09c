"""Agno's agents over each of its models: tools, sessions with a history, structured output, streams."""

from __future__ import annotations

import json
from typing import Any

from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.models.anthropic import Claude
from agno.models.google import Gemini
from agno.models.openai import OpenAIChat, OpenAIResponses
from asking import ANSWER, BOTH, ONE, REPORT, THINKING, TWO, URL, hold, order, say, weather
from pydantic import BaseModel


class Report(BaseModel):
    place: str
    degrees: int


def agent(key: str, dialect: str, **options: Any) -> Any:
    models: dict[str, Any] = {
        "chat": lambda: OpenAIChat(id="gpt-5.4", api_key=key, base_url=f"{URL}/v1"),
        "responses": lambda: OpenAIResponses(id="gpt-5.4", api_key=key, base_url=f"{URL}/v1"),
        "anthropic": lambda: Claude(id="claude-opus-4-5", api_key=key, client_params={"base_url": URL}),
        "google": lambda: Gemini(
            id="gemini-3-pro-preview", api_key=key, client_params={"http_options": {"base_url": URL}}
        ),
    }
    return Agent(model=models[dialect](), instructions="Be brief.", telemetry=False, **options)


def converse(key: str, dialect: str, stream: bool, question: str) -> str:
    asked = agent(key, dialect, tools=[weather])
    if not stream:
        return str(asked.run(question).content)
    return "".join(event.content or "" for event in asked.run(question, stream=True) if event.event == "RunContent")


def memory(key: str, dialect: str) -> str:
    asked = agent(key, dialect, tools=[weather], db=InMemoryDb(), add_history_to_context=True)
    asked.run(ONE, session_id="one")
    return str(asked.run(ONE, session_id="one").content)


def structured(key: str, dialect: str) -> str:
    said = agent(key, dialect, output_schema=Report).run(say(json.dumps(REPORT)))
    return order(ANSWER, **said.content.model_dump())


talks: dict[str, Any] = {}
for name in ("chat", "responses", "anthropic", "google"):
    talks |= {
        f"{name}_whole": lambda key, name=name: converse(key, name, False, ONE),
        f"{name}_stream": lambda key, name=name: converse(key, name, True, TWO),
        f"{name}_parallel": lambda key, name=name: converse(key, name, False, BOTH),
        f"{name}_memory": lambda key, name=name: memory(key, name),
        f"{name}_structured": lambda key, name=name: structured(key, name),
        f"{name}_thinking": lambda key, name=name: converse(key, name, True, THINKING),
    }
hold(**talks)
