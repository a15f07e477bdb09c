"""Answer, be told whether that was right, and try again: each reply has a reward of its own.

A task is one of `chat.py` with, as needed, "attempts" (3) and "feedback" (what the model is told after a wrong reply).
Reply k earns the gain of its score over the best one before, so that the episode earns its best score, and a right
answer earns it once. Train it with `trainer.advantage.turn_discount = 0.4`: an early reply then shares in what it leads to
(docs/credit.md).
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from agentrl import Episode, Reward
from agentrl.workflows.chat import ChatTask, conversation, score

FEEDBACK = "That is not right. Think about what is wrong, and answer again."


class SelfCorrectTask(ChatTask):
    """What a line of the task file needs."""

    attempts: int = Field(default=3, ge=1)
    feedback: str = FEEDBACK


async def run(episode: Episode[Annotated[dict[str, Any], SelfCorrectTask]]) -> Reward:
    """Return the best score of all replies."""
    task = episode.task
    messages: list[Any] = conversation(task)
    best, attempts = 0.0, 0
    while attempts < task.get("attempts", 3) and best < 1:
        if attempts:
            messages.append({"role": "user", "content": task.get("feedback", FEEDBACK)})
        reply = await episode.client.chat.completions.create(model=episode.model, messages=messages)
        message = reply.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        value = (await score(message.content or "", task)).value
        episode.reward(reply.id, max(0.0, value - best))
        best, attempts = max(best, value), attempts + 1
    return Reward(best, {"attempts": float(attempts)})
