"""Haystack's agent over chat and responses: tools, a second question, structured output, streams."""

from __future__ import annotations

import json
import os
from typing import Any

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

from asking import ANSWER, BOTH, ONE, REPORT, THINKING, TWO, URL, hold, order, say, weather
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret
from pydantic import BaseModel


class Report(BaseModel):
    place: str
    degrees: int


LOOK = create_tool_from_function(weather)
GENERATORS: Any = {"chat": OpenAIChatGenerator, "responses": OpenAIResponsesChatGenerator}


def generator(key: str, dialect: str, stream: bool = False, **options: Any) -> Any:
    return GENERATORS[dialect](
        api_key=Secret.from_token(key),
        model="gpt-5.4",
        api_base_url=f"{URL}/v1",
        streaming_callback=(lambda chunk: None) if stream else None,
        max_retries=0,
        generation_kwargs=options or None,
    )


def converse(key: str, dialect: str, stream: bool, *questions: str) -> str:
    agent = Agent(chat_generator=generator(key, dialect, stream), tools=[LOOK], system_prompt="Be brief.")
    agent.warm_up()
    messages: list[Any] = []
    for question in questions:
        said: Any = agent.run(messages=[*messages, ChatMessage.from_user(question)])
        messages = [one for one in said["messages"] if one.role != "system"]
    return str(messages[-1].text)


def structured(key: str, dialect: str) -> str:
    wanted = {"response_format": Report} if dialect == "chat" else {"text_format": Report}
    said = generator(key, dialect, **wanted).run([ChatMessage.from_user(say(json.dumps(REPORT)))])
    return order(ANSWER, **json.loads(said["replies"][0].text))


talks: dict[str, Any] = {}
for name in GENERATORS:
    talks |= {
        f"{name}_whole": lambda key, name=name: converse(key, name, False, ONE),
        f"{name}_stream": lambda key, name=name: converse(key, name, True, TWO),
        f"{name}_parallel": lambda key, name=name: converse(key, name, True, BOTH),
        f"{name}_memory": lambda key, name=name: converse(key, name, False, ONE, ONE),
        f"{name}_thinking": lambda key, name=name: converse(key, name, True, THINKING, ONE),
        f"{name}_structured": lambda key, name=name: structured(key, name),
    }
hold(**talks)
