"""`ServiceEnv`: an agent serves a user, over a database, by rules. What the database is like at the end decides.

    task ─► user.begin(instruction) ─► the user's first message
    agent's message without calls ─► user.answer(...) ─► the user's next message, or the end and the score
    agent's tool calls ─► self.database

The user may be another model (`simulated_user.py`), or a list of lines. As in tau-bench (arXiv 2406.12045), the database that is
wanted is what the task's own actions make of a fresh one; as in tau2-bench (arXiv 2506.07982), the user may have tools too.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal
from typing import Any, Protocol

from agentrl.envs.tool_env import Content, Message, Result, ToolEnv
from agentrl.envs.tools import USER_TOOL_MARK, Tool, tools_of
from agentrl.errors import EpisodeError, one_line

Call = Callable[[dict[str, Any]], Awaitable[Content]]
"""Carries out one call of a tool, `{"name": ..., "arguments": "{...}"}`."""

OF_A_TASK = ("instruction", "database", "actions")
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


class User(Protocol):
    """Who the agent serves."""

    async def begin(self, instruction: str, tools: Sequence[dict[str, Any]], call: Call) -> str:
        """Return what the user says first.

        Args:
            instruction: Who the user is, and what they want. The agent never sees it.
            tools: The user's own tools, in the form of OpenAI's API.
            call: Carries out a call of one of them.
        """
        ...

    async def answer(self, said: str) -> str | None:
        """Return what the user answers to the agent; None: the conversation is over."""
        ...


class ScriptedUser:
    """A user who says the same lines in every conversation: without any, the instruction itself."""

    def __init__(self, lines: Sequence[str] = ()) -> None:
        self._lines = list(lines)
        self._left: list[str] = []

    async def begin(self, instruction: str, tools: Sequence[dict[str, Any]], call: Call) -> str:
        """Return the first line."""
        self._left = self._lines or [instruction]
        return await self.answer("") or instruction

    async def answer(self, said: str) -> str | None:
        """Return the next line, whatever was said; None after the last."""
        if not self._left:
            return None
        line, *self._left = self._left
        return line


class ServiceEnv(ToolEnv):
    """Base class of environments in which the agent serves a user over a database.

    A subclass writes its `rules`, and marks the agent's tools with `@tool` and the user's with `@user_tool`; one with both marks is
    of both. They read and change `self.database`.

        class Library(ServiceEnv):
            rules = "You are the clerk of a library. ..."

            @tool
            def extend(self, book: str) -> str:
                '''Extend the loan of a book by a week.'''
                self.database["loans"][book] += 7
                return "done"

    A task is {"instruction": ..., "database": {...}, "actions": [{"tool": ..., "arguments": {...}}]} and, as needed, "outputs": what
    the agent must have told the user, as texts or numbers. The reward is 1 when the conversation ends with the database that the
    actions make of a fresh one and every output told, and else 0; also 0 for a conversation that is cut after `max_turns`. "user" is who is
    served: a `User`, or a list of the lines that one says; without it the instruction is all that the user says.
    """

    rules: str = ""
    """What the agent is told first, as the system's message."""
    max_turns: int = 30

    def __init__(self) -> None:
        super().__init__()
        self.user: User = ScriptedUser()
        self.database: dict[str, Any] = {}
        self.said: list[str] = []
        """What the agent has told the user."""
        self._wanted: dict[str, Any] = {}
        self._outputs: list[str | float] = []

    @property
    def user_toolset(self) -> Sequence[Tool]:
        """The user's tools; those that the subclass marks, unless it says otherwise."""
        return tools_of(self, USER_TOOL_MARK)

    def random_task(self) -> dict[str, Any]:
        """Return a task drawn with `self.np_random`, for a reset without one."""
        raise NotImplementedError(f"{type(self).__name__} has no tasks of its own; give one as `options` of the reset")

    async def on_reset(self, task: Any) -> list[Message]:
        """Take the task, and return the rules and what the user says first.

        Raises:
            EpisodeError: The task lacks something, its actions cannot be carried out, or it wants nothing of the agent.
        """
        task = dict(task or {})
        missing = [key for key in OF_A_TASK if key not in task]
        if len(missing) == len(OF_A_TASK):
            task = self.random_task() | task
        elif missing:
            raise EpisodeError(
                f"a task of {type(self).__name__} lacks {', '.join(missing)}; it has the keys {sorted(task)}"
            )
        self.said, self._outputs = [], list(task.get("outputs", ()))
        self._wanted = await self._after(task["actions"], task["database"])
        if self._wanted == task["database"] and not self._outputs:
            raise EpisodeError(
                f"the task {one_line(task['instruction'], 100)!r} wants no change of the database and no output: an agent that does "
                "nothing would earn its reward"
            )
        self.database = copy.deepcopy(task["database"])
        schemas = [tool.schema for tool in self.user_toolset]
        user = task.get("user", ())
        self.user = ScriptedUser(user) if isinstance(user, list | tuple) else user
        opening = await self.user.begin(task["instruction"], schemas, self.call_as_user)
        rules: list[Message] = [{"role": "system", "content": self.rules}] if self.rules else []
        return [*rules, {"role": "user", "content": opening}]

    async def on_answer(self, content: str) -> Result:
        """Tell the user; return what they answer, or the reward when they have ended the conversation."""
        self.said.append(content)
        answer = await self.user.answer(content)
        return Result(answer) if answer is not None else Result(reward=self.score(), done=True)

    async def call_as_user(self, function: dict[str, Any]) -> Content:
        """Return the result of a call of the user's; what is wrong with it in words for the user."""
        try:
            result = await self._result_of_call(function, self.user_toolset)
        except Exception as error:
            return f"error: {str(error) or type(error).__name__}"
        return self._shortened(result.content)

    def score(self) -> float:
        """Return 1 when the database is what the task wants and the user was told all outputs, and else 0."""
        right = self.database == self._wanted
        text = "\n".join(self.said)
        told = all(_tells(text, output) for output in self._outputs)
        self.info |= {"database_right": float(right), "outputs_told": float(told)}
        return float(right and told)

    async def _after(self, actions: Sequence[dict[str, Any]], database: dict[str, Any]) -> dict[str, Any]:
        """Return what a task's actions make of a database.

        Raises:
            EpisodeError: One of them fails.
        """
        self.database = copy.deepcopy(database)
        toolset = {tool.name: tool for tool in (*self.toolset, *self.user_toolset)}
        for number, action in enumerate(actions):
            if "tool" not in action:
                raise EpisodeError(
                    f"action {number} of the task has the keys {sorted(action)}; it is written "
                    '{"tool": NAME, "arguments": {...}}'
                )
            call = {"name": action["tool"], "arguments": json.dumps(action.get("arguments", {}))}
            try:
                await self._result_of_call(call, [*toolset.values()])
            except Exception as error:
                raise EpisodeError(
                    f"action {number} of the task, {action['tool']!r}, fails: {one_line(error)}"
                ) from error
        return self.database


def _tells(text: str, output: str | float) -> bool:
    """Return whether a text holds an output: a number in any notation, or words in any case."""
    if isinstance(output, str):
        return output.casefold() in text.casefold()
    numbers = (Decimal(found.replace(",", "")) for found in _NUMBER.findall(text))
    return Decimal(str(output)) in numbers
