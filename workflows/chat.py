r"""One question, one reply, one score.

A task is {"prompt": TEXT} or {"messages": [...]}, which may stand in "prompt" too, and "answer": a text, a number, or a list
of these, each of which is right. "scorer" says how the reply is scored: "exact" (the default: the same text, but for blanks at the ends and letter
case), "contains", "number" (the last number in it), "boxed" (the content of its last \boxed{}, or the line after ####, or
the last number; both by value, as `answers.py` says), "judge" (another model scores it, as `judge.py` says), or
`FILE_OR_MODULE:NAME` of a function (reply, task) -> float | Reward, plain or async, whose "answer" may be anything.
"system" is a system prompt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Annotated, Any, Self

from anyio.to_thread import run_sync as in_thread
from pydantic import BaseModel, Field, JsonValue, model_validator

from agentrl import Episode, Reward
from agentrl.errors import WorkflowError
from agentrl.system.imports import load_object
from agentrl.workflows.answers import alternatives, check_answer, contains, final_answer, is_right, last_number
from agentrl.workflows.judge import judge_of_variables, judged

Scorer = Callable[[str, dict[str, Any]], Any]


class ChatTask(BaseModel):
    """A line of the task file. It may have more keys, as rows of data sets do."""

    prompt: str | list[dict[str, JsonValue]] | None = None
    messages: list[dict[str, JsonValue]] | None = Field(default=None, min_length=1)
    system: str = ""
    answer: JsonValue = None
    scorer: str = "exact"

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.check_prompt()
        try:
            scorer_of(self.scorer)
            if self.scorer == "judge":
                judge_of_variables()
        except WorkflowError as error:
            raise ValueError(str(error)) from error
        if self.scorer in _COMPARES:
            if self.answer is None:
                raise ValueError(f"the field 'answer' is missing, which the scorer {self.scorer!r} needs")
            check = check_answer if self.scorer in ("number", "boxed") else alternatives
            check(self.answer)
        return self

    def check_prompt(self) -> None:
        """Check that there is something to ask.

        Raises:
            ValueError: There is not.
        """
        if self.prompt is None and self.messages is None:
            raise ValueError("it needs 'prompt' or 'messages'; --data.columns.prompt NAME renames a column")


async def run(episode: Episode[Annotated[dict[str, Any], ChatTask]]) -> Reward:
    """Return the score of the reply."""
    reply = await episode.client.chat.completions.create(model=episode.model, messages=conversation(episode.task))
    return await score(reply.choices[0].message.content or "", episode.task)


def conversation(task: dict[str, Any]) -> list[Any]:
    """Return the messages that open the conversation of a task."""
    system = [{"role": "system", "content": task["system"]}] if task.get("system") else []
    asked = task.get("messages") or task["prompt"]
    return [*system, *([{"role": "user", "content": asked}] if isinstance(asked, str) else asked)]


async def score(reply: str, task: dict[str, Any]) -> Reward:
    """Return the reward of a reply, by the task's scorer. A plain function runs in a thread."""
    name = task.get("scorer", "exact")
    scorer = await in_thread(scorer_of, name)
    returned = await in_thread(scorer, reply, task)  # of an async function, a coroutine
    returned = await returned if isinstance(returned, Awaitable) else returned
    return Reward.of(returned, scorer, f"the scorer {name}")


@lru_cache
def scorer_of(name: str) -> Scorer:
    """Return a scorer by its name.

    Raises:
        WorkflowError: There is none.
    """
    if name in _SCORERS:
        return _SCORERS[name]
    if ":" not in name:
        raise WorkflowError(f"there is no scorer {name!r}; it is one of {', '.join(_SCORERS)} or FILE_OR_MODULE:NAME")
    try:
        found: Scorer = load_object(name)
    except (ImportError, AttributeError) as error:
        raise WorkflowError(f"the scorer {name} cannot be loaded: {error}") from error
    return found


def _exact(reply: str, task: dict[str, Any]) -> bool:
    return reply.strip().casefold() in [one.strip().casefold() for one in alternatives(task["answer"])]


_COMPARES: dict[str, Scorer] = {
    "exact": _exact,
    "contains": lambda reply, task: contains(reply, task["answer"]),
    "number": lambda reply, task: is_right(last_number(reply), task["answer"]),
    "boxed": lambda reply, task: is_right(final_answer(reply), task["answer"]),
}
"""Scorers that compare the reply with the answer of the task."""
_SCORERS: dict[str, Scorer] = {**_COMPARES, "judge": judged}
