"""Write a program, and be graded by its tests.

A task is {"prompt": ..., "tests": [...]}, or one of HumanEval's, MBPP's or APPS' form: `agentrl.sandboxes.load_code_task` reads it, and
`load_tests` says what tests look like; "language": "cpp" asks for C++.
The reward is 1 when all tests pass, else 0; with "partial": true, the share of tests that pass, of those that a program which does
nothing does not pass. Without it the tests after the first that fails are not run, and the metric `tests_passed` is the share that
passed before. `ungradable` is 1 where a test could not be graded, which is nobody's failure and no pass either: `agentrl vet` shows
beforehand which tasks have such tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, PrivateAttr, model_validator

from agentrl import Episode, Reward
from agentrl.errors import ConfigError
from agentrl.sandboxes import CPP, PYTHON, CodeTask, Status, Test, Verdict, extract_code, load_code_task
from agentrl.sandboxes.grading.trust import trust_of

TAGS = {PYTHON: ("python", "python3", "py"), CPP: ("cpp", "c++", "cc", "cxx")}


class ProgramTask(BaseModel):
    """What a line of the task file needs, in any of the forms of `load_code_task`: something to ask, and tests that can be run."""

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
    return reward_of(verdict, partial=task.partial)


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
        partial: Count what the program passes of the tests.
    """
    source = extract_code(text, TAGS[task.language])
    if source is None:
        return None
    return await episode.grade(source, tests, language=task.language, fail_fast=fail_fast, partial=partial)


def reward_of(verdict: Verdict | None, *, partial: bool) -> Reward:
    """Return the reward of a verdict, with what became of the program as metrics."""
    if verdict is None:
        return Reward(0.0, {"has_code": 0.0})
    value = verdict.fraction if partial else float(verdict.passed)
    ran = verdict.status not in (Status.BUILD_ERROR, Status.RUNTIME_ERROR)
    ungradable = any(result.status is Status.CHECKER_ERROR for result in verdict.results)
    metrics = {"tests_passed": verdict.pass_rate, "ran": float(ran), "ungradable": float(ungradable)}
    return Reward(value, {"has_code": 1.0, **metrics})
