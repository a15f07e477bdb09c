"""Programs that do nothing, and partial verdicts, in which what they pass counts for nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from textwrap import dedent

from agentrl.concurrency.threads import in_thread
from agentrl.errors import ConfigError
from agentrl.sandboxes.checked_fields import check_argument
from agentrl.sandboxes.grading.grade import grade
from agentrl.sandboxes.grading.partial_credit import Baseline, baseline_of
from agentrl.sandboxes.grading.program_names import Wanted, names_of_program
from agentrl.sandboxes.grading.tests import CPP, PYTHON, IOTest, Language, Test
from agentrl.sandboxes.grading.verdict import Verdict
from agentrl.sandboxes.pool import SandboxPool
from agentrl.sandboxes.seams import Limits

_NOTHING = dedent("""
    def _nothing(*args, **kwargs):
        {body}

    class _Any(type):
        def __getattr__(cls, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return _nothing

    class _Nothing(metaclass=_Any):
        def __init__(self, *args, **kwargs):
            {construct}

        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return _nothing
""")


def do_nothing_programs(tests: Sequence[Test], language: Language = PYTHON) -> dict[str, str]:
    """Return the programs that count as doing nothing for `tests`, by name.

    These are the empty program; and in Python for tests that call, one that defines each name that they want, functions and methods
    returning None, values being None; and the same with functions, methods and constructors that raise NotImplementedError.
    """
    if language == CPP:
        return {"empty": "int main() {}\n"}
    if language != PYTHON or all(isinstance(test, IOTest) for test in tests):
        return {"empty": ""}
    names = names_of_program(tests)
    return {
        "empty": "",
        "stubs": stubs(names, "return None"),
        "stubs that raise": stubs(names, "raise NotImplementedError"),
    }


def stubs(names: dict[str, Wanted], body: str, *, value: str = "None") -> str:
    """Return a program that defines each name: functions and methods have the given body, and values are `value`."""
    lines = [_NOTHING.format(body=body, construct="pass" if body.startswith("return") else body)]
    for name, wanted in names.items():
        lines.append(
            {
                Wanted.FUNCTION: f"{name} = _nothing",
                Wanted.CLASS: f"class {name}(_Nothing): pass",
                Wanted.EXCEPTION: f"class {name}(Exception): pass",
                Wanted.VALUE: f"{name} = {value}",
            }[wanted]
        )
    return "\n".join(lines) + "\n"


async def grade_partial(
    source: str,
    tests: Sequence[Test],
    *,
    pool: SandboxPool,
    language: Language = PYTHON,
    limits: Limits | None = None,
    deadline_s: float | None = None,
) -> Verdict:
    """Run a program against all its tests, as `grade` does, for a verdict that has a `fraction`.

    What programs that do nothing pass is measured first, once for the same tests in the same pool, and is no part of `deadline_s`.

    Raises:
        ConfigError: The tests make no sense, or programs that do nothing pass all of them.
        SandboxError: None could be had within the pool's `wait_timeout_s`, or none can be started.
    """
    baseline = await measured_baseline(tests, pool=pool, language=language, limits=limits)
    if not baseline.earnable:
        raise ConfigError(
            f"a program that does nothing passes all {baseline.free_count} tests of this task, so that no partial reward can be "
            "earned; mend its tests or leave it out (`agentrl vet` finds such tasks)"
        )
    verdict = await grade(source, tests, pool=pool, language=language, limits=limits, deadline_s=deadline_s)
    return verdict.with_baseline(baseline)


async def measured_baseline(
    tests: Sequence[Test], *, pool: SandboxPool, language: Language = PYTHON, limits: Limits | None = None
) -> Baseline:
    """Return what programs that do nothing pass of `tests`. Measured once for the same tests; raises as `grade` does."""
    check_argument("pool", pool, SandboxPool)
    check_argument("tests", tests, Sequence[Test])

    async def measure() -> Baseline:
        verdicts = [
            await grade(source, tests, pool=pool, language=language, limits=limits)
            for source in do_nothing_programs(tests, language).values()
        ]
        return baseline_of(verdict.results for verdict in verdicts)

    baseline: Baseline = await pool.baselines.get(await in_thread(_digest, tests, language, limits), measure)
    return baseline


def _digest(tests: Sequence[Test], language: Language, limits: Limits | None) -> bytes:
    # The repr of these dataclasses holds all of their content, and is the same for the same content.
    return hashlib.sha256(repr((list(tests), language, limits)).encode(errors="surrogatepass")).digest()
