"""OpenAI's Agents SDK, over chat and over responses: tools, handoffs, structured output and streams."""

from __future__ import annotations

import json
from typing import Any

import agents
from asking import ANSWER, BOTH, ONE, REPORT, TWO, URL, hold, order, say, weather
from openai import AsyncOpenAI
from pydantic import BaseModel

agents.set_tracing_disabled(True)
TOOL = agents.function_tool(weather)


class Report(BaseModel):
    place: str
    degrees: int


def model(key: str, dialect: str) -> Any:
    client = AsyncOpenAI(base_url=f"{URL}/v1", api_key=key, max_retries=0)
    kind = agents.OpenAIChatCompletionsModel if dialect == "chat" else agents.OpenAIResponsesModel
    return kind(model="gpt-5.4", openai_client=client)


async def converse(key: str, dialect: str, stream: bool, question: str, **options: Any) -> str:
    agent: Any = agents.Agent(
        name="guide", instructions="Be brief.", model=model(key, dialect), tools=[TOOL], **options
    )
    if not stream:
        return str((await agents.Runner.run(agent, question)).final_output)
    running = agents.Runner.run_streamed(agent, question)
    async for _ in running.stream_events():
        pass
    return str(running.final_output)


async def structured(key: str, dialect: str) -> str:
    agent: Any = agents.Agent(name="guide", model=model(key, dialect), output_type=Report)
    report = (await agents.Runner.run(agent, say(json.dumps(REPORT)))).final_output
    return order(ANSWER, **report.model_dump())


async def handoff(key: str) -> str:
    """Two agents: the second goes on with the conversation under a prompt of its own."""
    clerk: Any = agents.Agent(
        name="clerk", instructions="You are a clerk.", model=model(key, "responses"), tools=[TOOL]
    )
    triage: Any = agents.Agent(name="triage", model=model(key, "responses"), handoffs=[clerk])
    question = say([("transfer_to_clerk", {})], [("weather", {"place": "Berlin"})], ANSWER)
    return str((await agents.Runner.run(triage, question)).final_output)


async def memory(key: str) -> str:
    """A second question to what the first left."""
    agent: Any = agents.Agent(name="guide", model=model(key, "chat"), tools=[TOOL])
    first = await agents.Runner.run(agent, ONE)
    asked: Any = [*first.to_input_list(), {"role": "user", "content": ONE}]
    return str((await agents.Runner.run(agent, asked)).final_output)


required = agents.ModelSettings(tool_choice="required", parallel_tool_calls=False, max_tokens=500, metadata={"a": "b"})
hold(
    chat_whole=lambda key: converse(key, "chat", False, ONE),
    chat_stream=lambda key: converse(key, "chat", True, TWO),
    chat_parallel=lambda key: converse(key, "chat", False, BOTH),
    chat_required=lambda key: converse(key, "chat", True, ONE, model_settings=required),
    chat_structured=lambda key: structured(key, "chat"),
    chat_memory=memory,
    responses_whole=lambda key: converse(key, "responses", False, ONE),
    responses_stream=lambda key: converse(key, "responses", True, TWO),
    responses_parallel=lambda key: converse(key, "responses", True, BOTH),
    responses_required=lambda key: converse(key, "responses", False, ONE, model_settings=required),
    responses_structured=lambda key: structured(key, "responses"),
    responses_handoff=handoff,
)
