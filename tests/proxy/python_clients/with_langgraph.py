"""LangGraph's agents over LangChain's models of each dialect."""

from __future__ import annotations

import json
from typing import Any

from asking import ANSWER, BOTH, ONE, REPORT, THINKING, TWO, URL, hold, order, say, weather
from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_google_genai import ChatGoogleGenerativeAI
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import BaseModel

TOOL = tool(weather)


class Report(BaseModel):
    """A report of the weather."""

    place: str
    degrees: int


def model(key: str, dialect: str, **options: Any) -> Any:
    if dialect == "anthropic":
        return ChatAnthropic(model_name="claude-opus-5", base_url=URL, api_key=key, max_retries=0, **options)  # type: ignore[arg-type]
    if dialect == "google":
        return ChatGoogleGenerativeAI(model="gemini-3-pro", base_url=URL, api_key=key, max_retries=0, **options)  # type: ignore[arg-type]
    return ChatOpenAI(
        model="gpt-5.4",
        base_url=f"{URL}/v1",
        api_key=key,  # type: ignore[arg-type]
        max_retries=0,
        use_responses_api=dialect == "responses",
        **options,
    )


def text_of(message: Any) -> str:
    return str(message.text if isinstance(message.text, str) else message.text())


def converse(key: str, dialect: str, stream: bool, question: str, **options: Any) -> str:
    agent = create_agent(model(key, dialect, **options), [TOOL], system_prompt="Be brief.")
    asked: Any = {"messages": [{"role": "user", "content": question}]}
    if not stream:
        return text_of(agent.invoke(asked)["messages"][-1])
    last = ""
    for mode, found in agent.stream(asked, stream_mode=["messages", "values"]):
        if mode == "values":
            last = text_of(found["messages"][-1])
    return last


def graph(key: str) -> str:
    """A graph made by hand, which keeps its threads."""
    bound = model(key, "chat").bind_tools([TOOL], parallel_tool_calls=False)
    made = StateGraph(MessagesState)
    made.add_node("model", lambda state: {"messages": [bound.invoke(state["messages"])]})
    made.add_node("tools", ToolNode([TOOL]))
    made.add_edge(START, "model")
    made.add_conditional_edges("model", tools_condition)
    made.add_edge("tools", "model")
    app = made.compile(checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "1"}}
    for _ in range(2):
        state = app.invoke({"messages": [("user", TWO)]}, thread)
    return text_of(state["messages"][-1])


def structured(key: str, dialect: str, **how: Any) -> str:
    report = model(key, dialect).with_structured_output(Report, **how).invoke(say(json.dumps(REPORT)))
    return order(ANSWER, **report.model_dump())


def structured_by_tool(key: str, dialect: str) -> str:
    asked = say([("Report", REPORT)])
    report = model(key, dialect).with_structured_output(Report, method="function_calling").invoke(asked)
    return order(ANSWER, **report.model_dump())


def response_format(key: str, dialect: str) -> str:
    agent = create_agent(model(key, dialect), [TOOL], response_format=ToolStrategy(Report))
    question = say([("weather", {"place": "Berlin"})], [("Report", REPORT)])
    state = agent.invoke({"messages": [{"role": "user", "content": question}]})
    return order(ANSWER, **state["structured_response"].model_dump())


def batch(key: str) -> str:
    replies = model(key, "chat", stop=["!"], n=1, logprobs=True, max_tokens=500).batch([say(ANSWER), say(ANSWER)])
    assert replies[0].response_metadata["logprobs"]["content"]
    return text_of(replies[1])


def thinking(key: str, dialect: str, **options: Any) -> str:
    one = model(key, dialect, **options)
    first = one.invoke([("user", THINKING)])
    return text_of(one.invoke([("user", THINKING), first, ("user", THINKING)]))


budget: Any = {"thinking": {"type": "adaptive"}, "max_tokens": 2000}
hold(
    chat_whole=lambda key: converse(key, "chat", False, ONE),
    chat_stream=lambda key: converse(key, "chat", True, TWO, stream_usage=True),
    chat_parallel=lambda key: converse(key, "chat", False, BOTH),
    chat_graph=graph,
    chat_structured=lambda key: structured(key, "chat"),
    chat_json_mode=lambda key: structured(key, "chat", method="json_mode"),
    chat_structured_by_tool=lambda key: structured_by_tool(key, "chat"),
    chat_response_format=lambda key: response_format(key, "chat"),
    chat_batch=batch,
    responses_whole=lambda key: converse(key, "responses", False, ONE),
    responses_stream=lambda key: converse(key, "responses", True, TWO),
    responses_parallel=lambda key: converse(key, "responses", False, BOTH, store=False),
    responses_structured=lambda key: structured(key, "responses"),
    responses_thinking=lambda key: thinking(key, "responses", reasoning={"effort": "low", "summary": "auto"}),
    anthropic_whole=lambda key: converse(key, "anthropic", False, ONE),
    anthropic_stream=lambda key: converse(key, "anthropic", True, TWO),
    anthropic_parallel=lambda key: converse(key, "anthropic", False, BOTH),
    anthropic_response_format=lambda key: response_format(key, "anthropic"),
    anthropic_structured_by_tool=lambda key: structured_by_tool(key, "anthropic"),
    anthropic_thinking=lambda key: thinking(key, "anthropic", **budget),
    google_whole=lambda key: converse(key, "google", False, ONE),
    google_stream=lambda key: converse(key, "google", True, TWO),
    google_parallel=lambda key: converse(key, "google", False, BOTH),
)
