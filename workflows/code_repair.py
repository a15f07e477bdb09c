"""Write a program, see which public tests it fails, and try again.

A task is one of `code.py` with "public_tests" besides: those the model is shown when they fail (of MBPP's, the test in its prompt).
"attempts" (3) bounds the replies.
The last program is graded by "tests", which the model never sees.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from agentrl import Episode, Reward
from agentrl.sandboxes import CodeTask, Verdict
from agentrl.workflows.code import ProgramTask, graded, reward_of

SHOWN_FAILURES = 3


class RepairTask(ProgramTask):
    """What a line of the task file needs."""

    attempts: int = Field(default=3, ge=1)

    def check(self, code: CodeTask) -> None:
        """Check that there are public tests besides what `code.py` needs.

        Raises:
            ValueError: There are none.
        """
        super().check(code)
        if not code.public_tests:
            raise ValueError(
                "there are no public_tests to show; give it some, or use workflows/code.py, which needs none"
            )


async def run(episode: Episode[RepairTask]) -> Reward:
    """Let the model reply until the public tests pass or the attempts are used up, and return the verdict of all tests."""
    task = episode.task.code
    messages: list[Any] = [{"role": "user", "content": task.prompt}]
    text, attempts = "", 0
    while attempts < episode.task.attempts:
        reply = await episode.client.chat.completions.create(model=episode.model, messages=messages)
        attempts += 1
        text = reply.choices[0].message.content or ""
        public = await graded(episode, task, text, task.public_tests)
        if public is not None and public.passed:
            break
        messages += [
            reply.choices[0].message.model_dump(exclude_none=True),
            {"role": "user", "content": feedback(public)},
        ]
    reward = reward_of(await graded(episode, task, text, task.tests, partial=task.partial))
    return Reward(reward.value, {**reward.metrics, "attempts": float(attempts)})


def feedback(verdict: Verdict | None) -> str:
    """Return what the model is told of its public tests."""
    if verdict is None:
        return "There is no program in your reply. Write it in one fenced code block."
    if verdict.results and verdict.results[0].status == "build_error":
        return f"The program does not build:\n{verdict.build_output}"
    failed = [result for result in verdict.results if not result.passed]
    lines = [f"- {result.name}: {result.status}. {result.message}".rstrip() for result in failed[:SHOWN_FAILURES]]
    return "\n".join([f"{len(failed)} of {len(verdict.results)} tests fail. Try again.", *lines])
