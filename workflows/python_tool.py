"""Answer a question with the help of a Python interpreter that keeps its state from call to call.

A task is {"question": ..., "answer": ...}. The reward is 1 when the final answer agrees, as with the scorer "boxed" of `chat.py`.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from anyio.to_thread import run_sync as in_thread
from pydantic import AfterValidator, BaseModel, Field, JsonValue

from agentrl import Episode, Reward
from agentrl.sandboxes import python_session
from agentrl.workflows.answers import check_answer, final_answer, is_right

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
    answer: Annotated[JsonValue, AfterValidator(check_answer)]
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
    right = await in_thread(is_right, final_answer(text), episode.task["answer"])
    return Reward(float(right), {"tool_calls": float(calls), "tool_errors": float(errors)})


def code_of(call: Any) -> str | None:
    """Return the code of a tool call; None when the call makes no sense."""
    try:
        code = json.loads(call.function.arguments)["code"]
        str(code).encode()  # it may hold half a character, which nothing takes
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return code if call.function.name == "python" and isinstance(code, str) else None
