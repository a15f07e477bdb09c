"""An environment in the Environments Hub's format, with a tool and two rewards: it knows nothing of agentrl."""

import verifiers as vf
from datasets import Dataset

CAPITALS = {"France": "Paris", "Italy": "Rome"}


def lookup(country: str) -> str:
    """Look up the capital of a country.

    Args:
        country: Its English name.
    """
    return CAPITALS[country]


def load_environment(max_turns: int = 4) -> vf.Environment:
    rows = [{"question": f"What is the capital of {c}?", "answer": a} for c, a in CAPITALS.items()]

    async def right(completion: vf.Messages, answer: str) -> float:
        return float(answer in str(completion[-1].get("content")))

    async def brief(completion: vf.Messages) -> float:
        return float(len(str(completion[-1].get("content"))) < 20)

    rubric = vf.Rubric(funcs=[right, brief], weights=[1.0, 0.5])
    return vf.ToolEnv(dataset=Dataset.from_list(rows), tools=[lookup], rubric=rubric, max_turns=max_turns)
