r"""Answer a question with the help of a Python interpreter that keeps its state from call to call.

A task is {"question": ..., "answer": ...}. The reward is 1 when the final answer agrees: the content of the last \boxed{}, or what
follows the last ####, or else the last number.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

from pydantic import BaseModel, Field, JsonValue

from agentrl import Episode, Reward
from agentrl.sandboxes import Floats, python_session

SYSTEM = "Solve the problem. You may run Python with the tool. Put the final answer in \\boxed{}."
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "python",
            "description": "Run Python code. Variables stay from call to call; what is printed, and the value of a last "
            "expression, is returned.",
            "parameters": {
                "type": "object",
                "properties": {"code": {"type": "string", "description": "The code to run."}},
                "required": ["code"],
            },
        },
    }
]
MAX_TURNS = 8
TIMEOUT_S = 10.0


class PythonToolTask(BaseModel):
    """What a line of the task file needs."""

    question: str
    answer: JsonValue
    max_turns: int = Field(default=MAX_TURNS, ge=1)


async def run(episode: Episode[Annotated[dict[str, Any], PythonToolTask]]) -> Reward:
    """Take turns until a reply without a call, and compare its answer."""
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": episode.task["question"]},
    ]
    calls = errors = 0
    text = ""
    async with python_session(await episode.sandbox()) as python:
        for _ in range(episode.task.get("max_turns", MAX_TURNS)):
            reply = await episode.client.chat.completions.create(model=episode.model, messages=messages, tools=TOOLS)
            message = reply.choices[0].message
            text = message.content or ""
            if not message.tool_calls:
                break
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                code = code_of(call)
                if code is None:
                    shown, failed = 'The tool is python, and its arguments are {"code": "..."}.', True
                else:
                    executed = await python.execute(code, timeout_s=TIMEOUT_S)
                    shown, failed = executed.text, executed.raised
                calls, errors = calls + 1, errors + failed
                messages.append({"role": "tool", "tool_call_id": call.id, "content": shown})
    right = agrees(final_answer(text), str(episode.task["answer"]))
    return Reward(float(right), {"tool_calls": float(calls), "tool_errors": float(errors)})


def code_of(call: Any) -> str | None:
    """Return the code of a tool call; None when the call makes no sense."""
    try:
        code = json.loads(call.function.arguments)["code"]
        str(code).encode()  # it may hold half a character, which nothing takes
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return code if call.function.name == "python" and isinstance(code, str) else None


def final_answer(text: str) -> str:
    """Return the answer in a reply; "" without one."""
    start = text.rfind("\\boxed{")
    if start >= 0:
        depth, begin = 1, start + len("\\boxed{")
        for end in range(begin, len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                return text[begin:end].strip()
        return ""
    if "####" in text:
        return text.rpartition("####")[2].strip()
    return last_number(text)


def last_number(text: str) -> str:
    """Return the last number in a text; "" without one."""
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    return numbers[-1] if numbers else ""


def agrees(given: str, answer: str) -> bool:
    """Return whether two answers are the same text, or the same number, whatever the commas, dollar and per cent signs in it."""
    plain = [re.sub(r"[,$%\s]|\\!|\\,", "", value.rpartition("####")[2]) for value in (given, answer)]
    return bool(plain[0]) and not Floats(absolute=1e-6, relative=1e-6)(plain[0], plain[1])
