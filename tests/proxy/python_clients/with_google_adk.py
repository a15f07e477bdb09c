"""Google's ADK: an agent with tools, a second question in its session, a sub-agent, structured output, streams."""

from __future__ import annotations

import json
import os
from typing import Any

from asking import ANSWER, BOTH, ONE, REPORT, THINKING, TWO, URL, hold, order, say, weather
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.google_llm import Gemini
from google.adk.runners import InMemoryRunner
from google.genai import types
from pydantic import BaseModel


class Report(BaseModel):
    place: str
    degrees: int


def agent(**options: Any) -> LlmAgent:
    return LlmAgent(model=Gemini(model="gemini-3-pro-preview", base_url=URL), **{"name": "helper", **options})


async def ask(key: str, agent: LlmAgent, *questions: str, stream: bool = False) -> str:
    os.environ["GOOGLE_API_KEY"] = key
    runner = InMemoryRunner(agent=agent, app_name="sky")
    session = await runner.session_service.create_session(app_name="sky", user_id="me")
    mode = RunConfig(streaming_mode=StreamingMode.SSE if stream else StreamingMode.NONE)
    said = ""
    for question in questions:
        asked = types.Content(role="user", parts=[types.Part(text=question)])
        async for event in runner.run_async(user_id="me", session_id=session.id, new_message=asked, run_config=mode):
            if event.is_final_response() and not event.partial and event.content is not None:
                said = "".join(part.text or "" for part in event.content.parts or [] if not part.thought)
    return said


async def converse(key: str, *questions: str, stream: bool = False) -> str:
    return await ask(key, agent(instruction="Be brief.", tools=[weather]), *questions, stream=stream)


async def handed_over(key: str) -> str:
    sub_agent = agent(name="sky", description="Knows the weather.", instruction="You look.", tools=[weather])
    whole = agent(instruction="Hand over what is about the sky.", sub_agents=[sub_agent])
    return await ask(key, whole, "Is it sunny?")


async def structured(key: str) -> str:
    return order(ANSWER, **json.loads(await ask(key, agent(output_schema=Report), say(json.dumps(REPORT)))))


hold(
    whole=lambda key: converse(key, ONE),
    stream=lambda key: converse(key, ONE, stream=True),
    two_steps=lambda key: converse(key, TWO),
    parallel=lambda key: converse(key, BOTH),
    parallel_stream=lambda key: converse(key, BOTH, stream=True),
    memory=lambda key: converse(key, ONE, ONE),
    thinking=lambda key: converse(key, THINKING, ONE),
    structured=structured,
    handed_over=handed_over,
)
