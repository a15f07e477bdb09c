"""Write a program, and be graded by its tests.

A task is {"prompt": ..., "tests": [...]}, or a row of a data set: `agentrl.sandboxes.load_code_task` lists the forms, and `load_tests`
says what tests look like; "language": "cpp" asks for C++.
The reward is 1 when all tests pass, else 0; with "partial": true, the share of tests that pass, of those that a program which does
nothing does not pass. Without it the tests after the first that fails are not run, and the metric `tests_passed` is the share that
passed before; `trust_outside`, `trust_apart` and `trust_inside` say how it was graded (docs/grading.md). A test that cannot be graded, as one whose checker fails, is the fault of no program: it fails the episode, and pays no 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, PrivateAttr, model_validator

from agentrl import Episode, Reward
from agentrl.errors import ConfigError, EpisodeError, one_line
from agentrl.sandboxes import CodeTask, Status, Test, Verdict, extract_code, load_code_task
from agentrl.sandboxes.grading.trust import Trust, trust_of


class ProgramTask(BaseModel):
    """What a line of the task file needs, in any of the forms of `load_code_task`: something to ask, and tests."""

    model_config = ConfigDict(extra="allow")

    _code: CodeTask = PrivateAttr()

    @property
    def code(self) -> CodeTask:
        """The task, as it is graded."""
        return self._code

    @model_validator(mode="after")
    def _load(self) -> Self:
        try:
            self._code = load_code_task(self.model_extra or {})
            for test in (*self._code.tests, *self._code.public_tests):
                trust_of(test)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        self.check(self._code)
        return self

    def check(self, code: CodeTask) -> None:
        """Check that a model can be asked, and its program be graded.

        Raises:
            ValueError: It cannot.
        """
        if not code.prompt:
            raise ValueError("there is no prompt, and so nothing to ask a model for; give it a 'prompt'")
        if not code.tests:
            raise ValueError("there are no tests, and so nothing to grade a program by; give it some in 'tests'")


async def run(episode: Episode[ProgramTask]) -> Reward:
    """One reply, one verdict."""
    task = episode.task.code
    reply = await episode.client.chat.completions.create(
        model=episode.model, messages=[{"role": "user", "content": task.prompt}]
    )
    text = reply.choices[0].message.content or ""
    # Where all tests must pass, one that fails decides.
    verdict = await graded(episode, task, text, task.tests, partial=task.partial, fail_fast=not task.partial)
    return reward_of(verdict)


async def graded(
    episode: Episode[Any],
    task: CodeTask,
    text: str,
    tests: Sequence[Test],
    *,
    fail_fast: bool = False,
    partial: bool = False,
) -> Verdict | None:
    """Return the verdict on the last program in a reply; None when there is no program in it.

    Args:
        episode: What grades.
        task: The task, which names the language.
        text: The reply.
        tests: What the program must pass.
        fail_fast: Stop at the first test that fails.
        partial: Count what the program passes of the tests, by the baseline of the task if it has one.

    Raises:
        EpisodeError: A test could not be graded, which is no fault of the program's.
    """
    source = extract_code(text, task.language.names)
    if source is None:
        return None
    counted = partial and (task.baseline or True)
    source = task.program(source)
    verdict = await episode.grade(source, tests, language=task.language, fail_fast=fail_fast, partial=counted)
    for result in verdict.results:
        if result.status is Status.CHECKER_ERROR:
            why = f"{result.name} cannot be graded: {one_line(result.message)}"
            raise EpisodeError(f"{why}; mend it or leave the task out (`agentrl vet` finds such tasks)")
    return verdict


def reward_of(verdict: Verdict | None) -> Reward:
    """Return the reward of a verdict, with what became of the program as metrics."""
    if verdict is None:
        return Reward(0.0, {"has_code": 0.0})
    value = float(verdict.passed) if verdict.fraction is None else verdict.fraction
    ran = verdict.status not in (Status.BUILD_ERROR, Status.RUNTIME_ERROR)
    trusts = {f"trust_{trust}": float(trust is verdict.trust) for trust in Trust}
    return Reward(value, {"has_code": 1.0, "tests_passed": verdict.pass_rate, "ran": float(ran), **trusts})
