"""`agentrl/Calculator-v0`: chained sums, to be worked out with a calculator tool. Tasks and scoring are reasoning-gym's.

`python -m agentrl.envs.calculator_env DIR` writes `train.jsonl` and `eval.jsonl`; no expression is in both.
"""

from __future__ import annotations

import argparse
import ast
from pathlib import Path
from typing import Any

from agentrl.envs.reasoning import write_task_files
from agentrl.envs.tool_env import ToolEnv
from agentrl.envs.tools import tool, tool_of
from agentrl.errors import ToolCallError
from agentrl.system.imports import module_alone

DIFFICULTY = {"min_terms": 2, "max_terms": 4, "min_digits": 1, "max_digits": 3}

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
    """One chained sum an episode. The task is a reasoning-gym `chain_sum` entry: `question`, `answer`, `metadata`."""

    max_turns = 4

    def on_reset(self, task: dict[str, Any] | None) -> str:
        """Take the task, and return its question.

        Raises:
            ValueError: The task lacks its question or its answer.
        """
        self._dataset = _chain_sums(size=2**31, seed=0)
        self._entry = task or self._dataset[int(self.np_random.integers(2**31))]
        if not {"question", "answer"} <= self._entry.keys():
            raise ValueError(f"a Calculator-v0 task needs 'question' and 'answer', got the keys {sorted(self._entry)}")
        return str(self._entry["question"])

    @tool
    def calculator(self, expression: str) -> str:
        """Evaluate an arithmetic expression."""
        return str(evaluate(expression))

    def on_answer(self, content: str) -> float:
        """Return 1 where the last number of an answer is right, and else 0."""
        return float(self._dataset.score_answer(content.strip(), self._entry))


TOOL = tool_of(CalculatorEnv.calculator).schema


def distinct_tasks(count: int, seed: int) -> list[dict[str, Any]]:
    """Return `count` chain_sum entries with pairwise different expressions."""
    by_expression: dict[str, dict[str, Any]] = {}
    for entry in _chain_sums(size=10 * count, seed=seed):
        by_expression.setdefault(entry["metadata"]["expression"], entry)
        if len(by_expression) == count:
            break
    return list(by_expression.values())


def _chain_sums(size: int, seed: int) -> Any:
    library = module_alone("reasoning_gym.arithmetic.chain_sum")  # the whole takes 30 times as long to load
    return library.ChainSumDataset(library.ChainSumConfig(size=size, seed=seed, **DIFFICULTY))


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
