"""DSPy's programs: a prediction, a chain of thought and an agent."""

from __future__ import annotations

from typing import Any

import dspy
from asking import URL, hold, weather


def model(key: str, dialect: str) -> Any:
    if dialect == "anthropic":
        return dspy.LM("anthropic/claude-opus-4-5", api_base=f"{URL}/v1", api_key=key, cache=False, num_retries=0)
    kind: Any = {"model_type": "responses"} if dialect == "responses" else {}
    return dspy.LM("openai/nano", api_base=f"{URL}/v1", api_key=key, cache=False, num_retries=0, **kind)


def predict(key: str, dialect: str, made: Any, adapter: Any = None) -> str:
    with dspy.context(lm=model(key, dialect), adapter=adapter or dspy.ChatAdapter()):
        return str(made(question="What is the weather in Berlin?").answer)


def agent(key: str, dialect: str) -> str:
    return predict(key, dialect, dspy.ReAct("question -> answer", tools=[weather], max_iters=3))


def with_history(key: str) -> str:
    made = dspy.Predict("question, history: dspy.History -> answer")
    with dspy.context(lm=model(key, "chat"), adapter=dspy.ChatAdapter()):
        first = made(question="What is the weather?", history=dspy.History(messages=[]))
        history = dspy.History(messages=[{"question": "What is the weather?", "answer": first.answer}])
        return str(made(question="And now?", history=history).answer)


PREDICT = "question -> answer"
hold(
    chat_predict=lambda key: predict(key, "chat", dspy.Predict(PREDICT)),
    chat_thought=lambda key: predict(key, "chat", dspy.ChainOfThought(PREDICT)),
    chat_json=lambda key: predict(key, "chat", dspy.Predict(PREDICT), dspy.JSONAdapter()),
    chat_history=with_history,
    chat_agent=lambda key: agent(key, "chat"),
    responses_predict=lambda key: predict(key, "responses", dspy.Predict(PREDICT)),
    anthropic_agent=lambda key: agent(key, "anthropic"),
)
