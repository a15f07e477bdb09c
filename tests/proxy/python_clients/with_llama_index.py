"""LlamaIndex's models and agents, over chat, responses and messages."""

from __future__ import annotations

import json
from typing import Any

from asking import ANSWER, BOTH, ONE, REPORT, TWO, URL, hold, order, say, weather
from llama_index.core.agent.workflow import FunctionAgent, ReActAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.anthropic import Anthropic
from llama_index.llms.openai import OpenAI, OpenAIResponses
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

TOOL = FunctionTool.from_defaults(weather)


class Report(BaseModel):
    """A report of the weather."""

    place: str
    degrees: int


def model(key: str, dialect: str) -> Any:
    if dialect == "anthropic":
        return Anthropic(model="claude-opus-4-5", base_url=URL, api_key=key, max_retries=0)
    if dialect == "like":
        return OpenAILike(
            model="nano",
            api_base=f"{URL}/v1",
            api_key=key,
            is_chat_model=True,
            is_function_calling_model=True,
            max_retries=0,
        )
    kind = OpenAIResponses if dialect == "responses" else OpenAI
    return kind(model="gpt-4.1", api_base=f"{URL}/v1", api_key=key, max_retries=0)


async def agent(key: str, dialect: str, question: str, *, streaming: bool = True) -> str:
    made = FunctionAgent(tools=[TOOL], llm=model(key, dialect), system_prompt="Be brief.", streaming=streaming)
    return str(await made.run(question))


async def react(key: str) -> str:
    """An agent that writes its calls as text."""
    called = 'Thought: I look.\nAction: weather\nAction Input: {"place": "Berlin"}'
    answered = f"Thought: I can answer without using any more tools.\nAnswer: {ANSWER}"
    made = ReActAgent(tools=[TOOL], llm=model(key, "chat"), streaming=False)
    return str(await made.run(say(called, answered)))


def structured(key: str, dialect: str) -> str:
    report = model(key, dialect).as_structured_llm(Report)
    asked = say([("Report", REPORT)]) if dialect == "like" else say(json.dumps(REPORT))
    raw: Any = report.chat([ChatMessage(role="user", content=asked)]).raw
    return order(ANSWER, **raw.model_dump())


def chat(key: str, dialect: str) -> str:
    one = model(key, dialect)
    first = one.chat([ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content=say(ANSWER))])
    messages = [
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(role="user", content=say(ANSWER)),
        first.message,
        ChatMessage(role="user", content=say(ANSWER)),
    ]
    last = ""
    for piece in one.stream_chat(messages):
        last = str(piece.message.content)
    return last


talks: dict[str, Any] = {}
for name in ("chat", "responses", "anthropic", "like"):
    talks |= {
        f"{name}_agent": lambda key, name=name: agent(key, name, ONE),
        f"{name}_agent_whole": lambda key, name=name: agent(key, name, TWO, streaming=False),
        f"{name}_parallel": lambda key, name=name: agent(key, name, BOTH),
        f"{name}_structured": lambda key, name=name: structured(key, name),
        f"{name}_twice": lambda key, name=name: chat(key, name),
    }
hold(**talks, react=react)
