"""Write a program, see which public tests it fails, and try again.

A task is one of `code.py` with "public_tests" besides: those the model is shown when they fail (of MBPP's, the test in its prompt).
"attempts" (3) bounds the replies.
The last program is graded by "tests", which the model never sees.
"""

from __future__ import annotations

from typing import Any

from agentrl import Episode, Reward
from agentrl.errors import ConfigError
from agentrl.sandboxes import Verdict
from agentrl.workflows.code import gradable_task, graded, prompt_of, reward_of

SHOWN_FAILURES = 3


async def run(episode: Episode) -> Reward:
    """Let the model reply until the public tests pass or the attempts are used up, and return the verdict of all tests.

    Raises:
        ConfigError: The task has no public tests, no others or no prompt.
    """
    task = gradable_task(episode)
    if not task.public_tests:
        raise ConfigError(f"{task.name} has no public_tests; workflows/code.py needs none")
    messages: list[Any] = [{"role": "user", "content": prompt_of(task)}]
    text, attempts = "", 0
    while attempts < episode.task.get("attempts", 3):
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
    verdict = await graded(episode, task, text, task.tests, partial=task.partial)
    reward = reward_of(verdict, partial=task.partial)
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
