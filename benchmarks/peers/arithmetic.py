"""The calculator and the reward of `time_to_reward.py`, the same for every system: no lines of its user's code."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

OPERATORS: dict[type, Callable[..., int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.USub: operator.neg,
}


def evaluate(expression: str) -> str:
    """Return the value of an expression of integers, `+`, `-`, `*` and parentheses.

    Raises:
        ValueError: It is anything else.
    """
    try:
        return str(_value(ast.parse(expression.strip(), mode="eval").body))
    except (SyntaxError, KeyError, RecursionError):
        raise ValueError(f"{expression!r} is not an arithmetic expression") from None


def _value(node: Any) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.BinOp():
            return OPERATORS[type(node.op)](_value(node.left), _value(node.right))
        case ast.UnaryOp():
            return OPERATORS[type(node.op)](_value(node.operand))
    raise ValueError("only integers, +, -, * and parentheses are allowed")


def reward(answer: str, right: str) -> float:
    """Return 1 where the last number of an answer is the right one, and else 0."""
    return float(re.findall(r"-?\d+", answer)[-1:] == [right])
