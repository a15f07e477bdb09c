"""The environment: a sum, and a calculator to work it out with."""

from __future__ import annotations

from typing import Any

from agentrl.envs import ToolEnv, tool
from agentrl.envs.calculator_env import evaluate


class Sums(ToolEnv):
    """The agent may call the calculator, and then answers."""

    max_turns = 4

    def on_reset(self, task: dict[str, Any] | None) -> str:
        """Return the question of a task."""
        task = task or {"question": "What is 1 + 1?", "answer": "2"}
        self.expected = task["answer"]
        return str(task["question"])

    @tool
    def calculator(self, expression: str) -> str:
        """Evaluate an arithmetic expression."""
        return str(evaluate(expression))

    def on_answer(self, content: str) -> float:
        """1 for the right number."""
        return float(content.strip() == self.expected)
