"""Two debaters argue a question and a third decides: three roles in one episode, each with a reward of its own.

A task is {"prompt": ..., "answer": ...} with a scorer of `chat.py`, and as needed "rounds" (2). Each debater earns 1
when the verdict follows it and half as much more when the answer is right; the arbiter earns the score of the verdict.
Every role is trained, and compared with the same role in the other episodes of the group (docs/credit.md). "opponent":
{"base_url": ..., "model": ..., "api_key": ...} plays the second debater with another model, which is not trained.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated, Any

import openai
from anyio.to_thread import run_sync as in_thread
from pydantic import BaseModel, Field

from agentrl import Episode, Reward
from agentrl.workflows.chat import ChatTask, score

ROLES = ("first", "second")
OPENING = "{prompt}\n\nYou are debater {number} of 2. Argue for your answer in a few sentences, then give it on the last line."
REPLY = "The other debater says:\n{said}\n\nAnswer, then give your answer on the last line."
DECISION = (
    "{prompt}\n\nDebater 1 says:\n{first}\n\nDebater 2 says:\n{second}\n\nGive the right answer, and nothing else."
)


class Opponent(BaseModel):
    """Another model."""

    base_url: str
    model: str
    api_key: str = "-"


class DebateTask(ChatTask):
    """What a line of the task file needs."""

    prompt: str
    rounds: int = Field(default=2, ge=1)
    opponent: Opponent | None = None


async def run(episode: Episode[Annotated[dict[str, Any], DebateTask]]) -> Reward:
    """Return the score of the verdict."""
    task = episode.task
    async with AsyncExitStack() as stack:
        speakers = {ROLES[0]: _policy(episode, ROLES[0]), ROLES[1]: await _second(episode, stack)}
        said = await _argue(task, speakers)
    asked = [{"role": "user", "content": DECISION.format(prompt=task["prompt"], **said)}]
    verdict = await _speak(_policy(episode, "arbiter"), asked)
    result = await score(verdict, task)
    episode.role("arbiter").reward(result.value)
    followed = {role: verdict.strip() == _last_line(said[role]) for role in ROLES}
    for role in ROLES[:1] if "opponent" in task else ROLES:
        episode.role(role).reward(followed[role] * (1 + result.value) / 2)
    return Reward(result.value, {f"{role}_followed": float(value) for role, value in followed.items()})


@dataclass(frozen=True)
class Speaker:
    """A model under one role."""

    client: Any
    model: str


def _policy(episode: Episode, role: str) -> Speaker:
    speaker = episode.role(role)
    return Speaker(speaker.client, speaker.model)


async def _second(episode: Episode, stack: AsyncExitStack) -> Speaker:
    opponent = episode.task.get("opponent")
    if opponent is None:
        return _policy(episode, ROLES[1])
    url, key = opponent["base_url"], opponent.get("api_key", "-")
    client = await in_thread(lambda: openai.AsyncOpenAI(base_url=url, api_key=key))
    return Speaker(await stack.enter_async_context(client), opponent["model"])


async def _argue(task: dict[str, Any], speakers: dict[str, Speaker]) -> dict[str, str]:
    """Return what each debater says last."""
    talks: dict[str, list[Any]] = {
        role: [{"role": "user", "content": OPENING.format(prompt=task["prompt"], number=number)}]
        for number, role in enumerate(ROLES, 1)
    }
    said = dict.fromkeys(ROLES, "")
    for turn in range(task.get("rounds", 2)):
        for role in ROLES:
            if turn:
                other = said[ROLES[1 - ROLES.index(role)]]
                talks[role].append({"role": "user", "content": REPLY.format(said=other)})
            said[role] = await _speak(speakers[role], talks[role])
    return said


async def _speak(speaker: Speaker, messages: list[Any]) -> str:
    reply = await speaker.client.chat.completions.create(model=speaker.model, messages=messages)
    message = reply.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    return message.content or ""


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2].strip()
