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

from agentrl import Episode, Reward
from agentrl.errors import ConfigError
from agentrl.sandboxes import CPP, PYTHON, CodeTask, Status, Test, Verdict, extract_code, load_code_task
from agentrl.sandboxes.grading.needs import needs

TAGS = {PYTHON: ("python", "python3", "py"), CPP: ("cpp", "c++", "cc", "cxx")}


async def run(episode: Episode) -> Reward:
    """One reply, one verdict."""
    task = gradable_task(episode)
    reply = await episode.client.chat.completions.create(
        model=episode.model, messages=[{"role": "user", "content": prompt_of(task)}]
    )
    text = reply.choices[0].message.content or ""
    # Where all tests must pass, one that fails decides.
    verdict = await graded(episode, task, text, task.tests, partial=task.partial, fail_fast=not task.partial)
    return reward_of(verdict, partial=task.partial)


def gradable_task(episode: Episode) -> CodeTask:
    """Return the task of an episode, before a model is asked.

    Raises:
        ConfigError: It has no tests, or tests that cannot be run.
    """
    task = load_code_task(episode.task)
    if not task.tests:
        raise ConfigError(f"{task.name} has no tests")
    for test in task.tests:
        if (need := needs(test)) is not None:
            raise ConfigError(f"the tests of {task.name} need {need}; agentrl vet finds such tasks")
    return task


def prompt_of(task: CodeTask) -> str:
    """Return what the model is asked.

    Raises:
        ConfigError: The task has no prompt.
    """
    if not task.prompt:
        raise ConfigError(f"{task.name} has no prompt: nothing to ask a model for")
    return task.prompt


async def graded(
    episode: Episode,
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
