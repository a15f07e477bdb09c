"""Write a program, and be graded by its tests.

A task is {"prompt": ..., "tests": [...]}, or a row of a data set: `agentrl.sandboxes.load_code_task` lists the forms, and `load_tests`
says what tests look like; "language": "cpp" asks for C++.
The reward is 1 when all tests pass, else 0; with "partial": true and the "baseline" that `agentrl vet --output` measures, the share of
tests that pass, without what a program passes that does nothing. With "attempts": 3 the model is shown the public tests that its program
fails, up to two times, and the last program is graded by "tests", which it never sees.

Without "partial" the tests after the first that fails are not run, and the metric `tests_passed` is the share that passed before; `runs` is 0
for a program that does not build, or crashes;
`trust_outside`, `trust_apart` and `trust_inside` say how it was graded (docs/grading.md). The details of the reward are the `verdict`, test by
test, and the `program`. A test that cannot be graded, as one whose checker
fails, or before the verdict's deadline, is the fault of no program: it fails the episode, and pays no 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentrl import Episode, Reward
from agentrl.config import RunConfig
from agentrl.errors import ConfigError, EpisodeError, SandboxError, one_line
from agentrl.rollout.episode_parts import backend_order, load_backend
from agentrl.sandboxes import CodeTask, Limits, SandboxSpec, Status, Test, Verdict, extract_code, load_code_task
from agentrl.sandboxes.choose import choose_backend
from agentrl.sandboxes.grading.trust import Trust, trust_of

SHOWN_FAILURES = 3


class ProgramTask(BaseModel):
    """The needs of a line of the task file, in any of the forms of `load_code_task`: something to ask, and tests."""

    model_config = ConfigDict(extra="allow")

    attempts: int = Field(default=1, ge=1)
    """How many programs the model may write, of which the last counts."""

    @cached_property
    def code(self) -> CodeTask:
        """The task, as it is graded."""
        return load_code_task(self.model_extra or {})

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            code = self.code
            for test in (*code.tests, *code.public_tests):
                trust_of(test)  # refuses what cannot run apart
        except ConfigError as error:
            raise ValueError(str(error)) from error
        if not code.prompt:
            raise ValueError("there is no prompt, and so nothing to ask a model for; give it a 'prompt'")
        if not code.tests:
            raise ValueError("there are no tests, and so nothing to grade a program by; give it some in 'tests'")
        if self.attempts > 1 and not code.public_tests:
            raise ValueError("there are no public_tests to show between attempts; give it some, or one attempt")
        if code.partial and code.baseline is None:
            raise ValueError("a partial reward needs the 'baseline' that `agentrl vet TASKS --output VETTED` measures")
        return self

    @classmethod
    async def missing(cls, tasks: Sequence[Self], config: RunConfig) -> list[str]:
        """Return why no sandbox can be had here: there is no backend, none that has the image, or too little memory for some task."""
        most = max(int((test.limits or {}).get("memory_mb", 1)) for task in tasks for test in task.code.tests)
        spec = SandboxSpec(image=config.sandbox.image)
        try:
            await choose_backend(await load_backend(config.sandbox.backend), spec, backend_order(config))
            Limits(memory_mb=most).check_within(Limits(memory_mb=config.sandbox.memory_mb))
        except (SandboxError, ConfigError) as error:
            return [str(error)]
        return []


async def run(episode: Episode[ProgramTask]) -> Reward:
    """Return the reward of the model's last program: of its first, or of the one that passes the public tests."""
    task = episode.task.code
    messages: list[Any] = [{"role": "user", "content": task.prompt}]
    for attempt in range(1, episode.task.attempts + 1):
        reply = await episode.client.chat.completions.create(model=episode.model, messages=messages)
        program = extract_code(reply.choices[0].message.content or "", task.language.names)
        if attempt == episode.task.attempts:
            break
        public = await graded(episode, task, program, task.public_tests)
        if public is not None and public.passed:
            break
        shown = reply.choices[0].message.model_dump(exclude_none=True)
        messages += [shown, {"role": "user", "content": feedback(public)}]
    episode.log(attempts=attempt)
    # Where all tests must pass, one that fails decides.
    options = {"partial": task.baseline} if task.partial else {"fail_fast": True}
    return reward_of(program, await graded(episode, task, program, task.tests, **options))


async def graded(
    episode: Episode[Any], task: CodeTask, program: str | None, tests: Sequence[Test], **options: Any
) -> Verdict | None:
    """Return the verdict on a program, with options of `Episode.grade`; None where there is no program.

    Raises:
        EpisodeError: A test could not be graded, which is no fault of the program's.
    """
    if program is None:
        return None
    verdict = await episode.grade(task.program(program), tests, language=task.language, **options)
    if verdict.fault is not None:
        why = f"{verdict.fault.name} cannot be graded: {one_line(verdict.fault.message)}"
        raise EpisodeError(f"{why}; mend it or leave the task out (`agentrl vet` finds such tasks)")
    return verdict


def reward_of(program: str | None, verdict: Verdict | None) -> Reward:
    """Return the reward of a program, with what became of it as metrics, and with what the verdict said as details."""
    if verdict is None:
        return Reward(0.0, {"has_code": 0.0}, {"program": None})
    runs = verdict.status not in (Status.BUILD_ERROR, Status.RUNTIME_ERROR)
    trusts = {f"trust_{trust}": float(trust is verdict.trust) for trust in Trust}
    metrics = {"has_code": 1.0, "tests_passed": verdict.pass_rate, "runs": float(runs), **trusts}
    return Reward(verdict.reward, metrics, {"verdict": verdict.to_json(), "program": program})


def feedback(verdict: Verdict | None) -> str:
    """Return what the model is told of the public tests."""
    if verdict is None:
        return "There is no program in your reply. Write it in one fenced code block."
    if verdict.status is Status.BUILD_ERROR:
        return f"The program does not build:\n{verdict.build_output}"
    failed = [result for result in verdict.results if not result.passed]
    lines = [f"- {result.name}: {result.status}. {result.message}".rstrip() for result in failed[:SHOWN_FAILURES]]
    return "\n".join([f"{len(failed)} of {len(verdict.results)} tests fail. Try again.", *lines])
