"""Answer a question with the help of a Python interpreter that keeps its state from call to call.

A task is {"question": ..., "answer": ...} and, as needed, "max_turns" (8). The reward is 1 when the final answer agrees, as with the scorer
"boxed" of `chat.py`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, JsonValue

from agentrl import Episode
from agentrl.envs import ToolEnv, tool
from agentrl.sandboxes import python_session
from agentrl.sandboxes.python_session import PythonSession
from agentrl.workflows.answers import check_answer, final_answer, is_right

SYSTEM = "Solve the problem. You may run Python with the tool. Put the final answer in \\boxed{}."
TIMEOUT_S = 10.0


class PythonToolTask(BaseModel):
    """A line of the task file."""

    question: str
    answer: Annotated[JsonValue, AfterValidator(check_answer)]
    max_turns: int = Field(default=8, ge=1)


class Python(ToolEnv):
    """A question, and an interpreter as a tool."""

    def __init__(self, session: PythonSession, task: PythonToolTask) -> None:
        super().__init__()
        self.session, self.task, self.max_turns = session, task, task.max_turns

    def on_reset(self, task: Any) -> Any:
        """Return the system prompt and the question."""
        return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": self.task.question}]

    @tool
    async def python(self, code: str) -> str:
        """Run Python code. Variables stay from call to call; what is printed, and the value of a last expression, is returned.

        Args:
            code: The code to run.
        """
        return (await self.session.execute(code, timeout_s=TIMEOUT_S)).text

    def on_answer(self, content: str) -> float:
        """Return whether the answer is right."""
        return float(is_right(final_answer(content), self.task.answer))


async def run(episode: Episode[PythonToolTask]) -> float:
    """Take turns until a reply without a call, and return whether its answer is right."""
    async with python_session(await episode.sandbox()) as session:
        return await episode.env(lambda: Python(session, episode.task)).play(episode)
