"""The tasks: 2,000 sums, no two alike. They are the same every time, so that an interrupted run goes on where it was."""

from __future__ import annotations

import random
from typing import Any

from agentrl.envs.calculator_env import evaluate


def make() -> list[dict[str, Any]]:
    """All tasks; run.toml holds a share of them out for evaluation."""
    rng = random.Random(0)
    answers: dict[str, str] = {}
    while len(answers) < 2000:
        digits = rng.randint(1, 3)
        terms = [str(rng.randint(10 ** (digits - 1), 10**digits - 1)) for _ in range(rng.randint(2, 4))]
        expression = terms[0] + "".join(f" {rng.choice('+-')} {term}" for term in terms[1:])
        question = f"State the final answer to the following arithmetic problem: {expression} ="
        answers[question] = str(evaluate(expression))
    return [{"question": question, "answer": answer} for question, answer in answers.items()]
