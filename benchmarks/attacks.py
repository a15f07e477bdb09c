"""Every program of tests/sandboxes/grading/adversaries with every kind of test, and every class that wants to pass for nothing with the
test that it wants to pass: who is rewarded, who harms the next, how long the host stalls.

    python benchmarks/attacks.py [--backend docker] [--ordinary] [--seconds 600]

--ordinary starts bubblewrap's sandboxes as an ordinary user, when root runs this
--seconds  tries as many programs as that takes, in an order at random, and says how many those are
"""

from __future__ import annotations

import argparse
import math
import random
import socket
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl.sandboxes import AssertTest, BackendName, SandboxPool, SandboxSpec, Test, grade, open_pool
from tests.real_sandboxes import as_an_ordinary_user
from tests.sandboxes.grading.adversaries import against_the_place, against_the_verdict
from tests.sandboxes.grading.hostile_answers import measured
from tests.sandboxes.grading.trials import CALLS_MAIN, HONEST, LIMITS, all_kinds_of_tests, trial
from tests.sandboxes.inside import (
    candidate_classes,
    consistency_cases,
    first_contact,
    identity_cases,
    lying_objects,
    plain_jokers,
    replay_cases,
    stand_in_cases,
)
from tests.sandboxes.inside.cases import as_test

POOLS = 3


def programs_with_tests(port: int, canary: str) -> list[tuple[str, str, list[Test]]]:
    """Each program that must not be rewarded: its name, its source and its tests."""
    found: list[tuple[str, str, list[Test]]] = []
    for name, source in {**against_the_verdict(), **against_the_place(port=port, canary=canary)}.items():
        found.append((name, source, all_kinds_of_tests()))
    cheats = [candidate_classes.cheats(), lying_objects.lies(), stand_in_cases.cheats(), plain_jokers.cheats()]
    for cases in (*cheats, replay_cases.cheats(), consistency_cases.cheats(), identity_cases.cheats()):
        for name, (source, code) in cases.items():
            found.append((name, source, [as_test(code)]))
    for name, code in first_contact.tests().items():
        found.append((f"equal to the first that it meets: {name}", first_contact.CHEAT, [AssertTest(code=code)]))
    return found


async def main(backend: BackendName, seconds: float) -> None:
    deadline = math.inf
    wrong: list[str] = []
    tried = 0
    with tempfile.NamedTemporaryFile() as canary, socket.create_server(("127.0.0.1", 0)) as listener:
        programs = programs_with_tests(listener.getsockname()[1], canary.name)
        total = len(programs)
        random.shuffle(programs)

        async def try_all(pool: SandboxPool) -> None:
            nonlocal tried
            while programs and time.monotonic() < deadline:
                name, source, tests = programs.pop()
                found = await trial(name, source, tests, pool, partly_right=len(tests) == 1)
                tried += 1
                for line in found:
                    print(line, flush=True)
                wrong.extend(found)

        async with AsyncExitStack() as stack:
            spec = SandboxSpec(limits=LIMITS)
            pools = [await stack.enter_async_context(open_pool(spec, backend=backend, size=2)) for _ in range(POOLS)]
            # A kind of test that cannot run here would reward nobody.
            verdict = await grade(HONEST + CALLS_MAIN, all_kinds_of_tests(), pool=pools[0])
            if not verdict.passed:
                raise SystemExit(f"these tests do not pass with a program that is right: {verdict.results}")
            deadline = time.monotonic() + seconds
            with measured() as cost:
                async with anyio.create_task_group() as group:
                    for pool in pools:
                        group.start_soon(try_all, pool)
    print(f"{tried} of {total} programs with their tests: {len(wrong)} wrong", end=", ")
    print(f"longest stall {1000 * cost.stall_s:.1f} ms of CPU, memory {cost.memory_bytes / 2**20:.1f} MB above idle")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="bubblewrap", choices=["docker", "bubblewrap"])
    parser.add_argument("--ordinary", action="store_true")
    parser.add_argument("--seconds", type=float, default=3600)
    options = parser.parse_args()
    with pytest.MonkeyPatch.context() as patch:
        if options.ordinary:
            as_an_ordinary_user(patch)
        anyio.run(main, options.backend, options.seconds)
