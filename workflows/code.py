"""Write a program, and be judged by its tests.

A task is {"prompt": ..., "tests": [...]} (`agentrl.sandboxes.load_tests` says what tests look like); "language": "cpp" asks for C++.
The reward is 1 when all tests pass, else 0; with "partial": true, the share of tests that pass, of those that a program which does
nothing does not pass. Without it the tests after the first that fails are not run, and the metric `tests_passed` is the share that
passed before. `ungradable` is 1 where a test could not be judged, which is nobody's failure and no pass either: `agentrl vet` shows
beforehand which tasks have such tests.
"""

from __future__ import annotations

from agentrl import Episode, Reward
from agentrl.sandboxes import CPP, PYTHON, Status, Verdict, extract_code, load_tests

TAGS = {"python": ("python", "python3", "py"), "cpp": ("cpp", "c++", "cc", "cxx")}


async def run(episode: Episode) -> Reward:
    """One reply, one verdict."""
    reply = await episode.client.chat.completions.create(
        model=episode.model, messages=[{"role": "user", "content": episode.task["prompt"]}]
    )
    partial = episode.task.get("partial", False)
    # Where all tests must pass, one that fails decides.
    verdict = await judged(episode, reply.choices[0].message.content or "", partial=partial, fail_fast=not partial)
    return reward_of(verdict, partial=partial)


async def judged(
    episode: Episode, text: str, tests: str = "tests", *, fail_fast: bool = False, partial: bool = False
) -> Verdict | None:
    """The verdict on the last program in a reply; None when there is no program in it."""
    language = episode.task.get("language", "python")
    source = extract_code(text, TAGS[language])
    if source is None:
        return None
    chosen = {"python": PYTHON, "cpp": CPP}[language]
    loaded = load_tests(episode.task[tests])
    return await episode.judge(source, loaded, language=chosen, fail_fast=fail_fast, partial=partial)


def reward_of(verdict: Verdict | None, *, partial: bool) -> Reward:
    """The reward of a verdict, with what became of the program as metrics."""
    if verdict is None:
        return Reward(0.0, {"has_code": 0.0})
    value = verdict.fraction if partial else float(verdict.passed)
    ran = verdict.status not in (Status.BUILD_ERROR, Status.RUNTIME_ERROR)
    ungradable = any(result.status is Status.CHECKER_ERROR for result in verdict.results)
    metrics = {"tests_passed": verdict.pass_rate, "ran": float(ran), "ungradable": float(ungradable)}
    return Reward(value, {"has_code": 1.0, **metrics})
