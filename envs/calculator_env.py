"""`agentrl/Calculator-v0`: chained sums, to be worked out with a calculator tool. The questions are as those of reasoning-gym's chain_sum.

`python -m agentrl.envs.calculator_env DIR` writes `train.jsonl` and `eval.jsonl`; no expression is in both.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
from pathlib import Path
from typing import Any

from agentrl.envs.reasoning import write_task_files
from agentrl.envs.tool_env import ToolEnv
from agentrl.envs.tools import tool, tool_of
from agentrl.errors import ToolCallError

_ALLOWED = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Constant, ast.Add, ast.Sub, ast.Mult, ast.UAdd, ast.USub)
"""What an expression may consist of, where each constant is an integer."""


def evaluate(expression: str) -> int:
    """Return the value of an expression of integers, `+`, `-`, `*` and parentheses.

    Raises:
        ToolCallError: It is anything else.
    """
    if len(expression) > 200:
        raise ToolCallError("the expression is longer than 200 characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        for node in ast.walk(tree):
            if not isinstance(node, _ALLOWED) or (isinstance(node, ast.Constant) and type(node.value) is not int):
                raise ToolCallError("only integers, +, -, * and parentheses are allowed")
        return int(eval(compile(tree, "<expression>", "eval")))  # noqa: S307
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ToolCallError(f"{expression!r} is not an arithmetic expression") from None


class CalculatorEnv(ToolEnv):
    """One chained sum an episode. The task has a `question` and its `answer`, as an entry of reasoning-gym's `chain_sum` has."""

    max_turns = 4

    def on_reset(self, task: dict[str, Any] | None) -> str:
        """Take the task, or draw one, and return its question.

        Raises:
            ValueError: The task lacks its question or its answer.
        """
        self._task = task or chain_sum(random.Random(int(self.np_random.integers(2**31))))  # noqa: S311
        if not {"question", "answer"} <= self._task.keys():
            raise ValueError(f"a Calculator-v0 task needs 'question' and 'answer', got the keys {sorted(self._task)}")
        return str(self._task["question"])

    @tool
    def calculator(self, expression: str) -> str:
        """Evaluate an arithmetic expression."""
        return str(evaluate(expression))

    def on_answer(self, content: str) -> float:
        """Return 1 where the last number of an answer is right, and else 0."""
        return float(re.findall(r"-?\d+", content.replace(",", ""))[-1:] == [str(self._task["answer"])])


TOOL = tool_of(CalculatorEnv.calculator).schema


def chain_sum(rng: random.Random, min_terms: int = 2, max_terms: int = 4) -> dict[str, Any]:
    """Return a task: a sum of so many terms, which all have as many digits, 1 to 3."""
    count, digits = rng.randint(min_terms, max_terms), rng.randint(1, 3)
    terms = [str(rng.randint(10 ** (digits - 1) if digits > 1 else 0, 10**digits - 1)) for _ in range(count)]
    expression = terms[0] + "".join(f" {rng.choice('+-')} {term}" for term in terms[1:])
    question = f"State the final answer to the following arithmetic problem: {expression} ="
    return {"question": question, "answer": str(evaluate(expression)), "expression": expression}


def distinct_tasks(count: int, seed: int, min_terms: int = 2, max_terms: int = 4) -> list[dict[str, Any]]:
    """Return `count` sums, no two alike."""
    rng = random.Random(seed)  # noqa: S311
    tasks: dict[str, dict[str, Any]] = {}
    while len(tasks) < count:
        task = chain_sum(rng, min_terms, max_terms)
        tasks[task["question"]] = task
    return list(tasks.values())


def main() -> None:
    """Write the task files."""
    parser = argparse.ArgumentParser(prog="python -m agentrl.envs.calculator_env", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--train", type=int, default=4000, help="training tasks")
    parser.add_argument("--eval", type=int, default=200, help="held-out tasks")
    args = parser.parse_args()
    tasks = distinct_tasks(args.train + args.eval, seed=1)
    write_task_files(args.directory, {"eval": tasks[: args.eval], "train": tasks[args.eval :]})


if __name__ == "__main__":
    main()
