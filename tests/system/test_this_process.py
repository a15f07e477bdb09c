"""Too few descriptors slow a run down, and no server is blamed; objects that are there at its start are out of the search for cycles until it ends."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import weakref

import pytest

from agentrl.system.this_process import settled

PROGRAM = """
import json, resource, sys
import anyio
from agentrl.engine.client import EngineLimits
from agentrl.engine.protocol import Sampling
from agentrl.engine.client import sglang_engine
from agentrl.system.this_process import shortages

url, limit, streams = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(32, limit), limit))
said = list(shortages(100))

async def main():
    async with sglang_engine([url], limits=EngineLimits(health_interval_s=0.02, request_timeout_s=60)) as engine:
        if streams:
            engine.fleet.streams = anyio.Semaphore(streams)
        lengths = []
        async def ask(number):
            reply = await engine.generate([1, 2, number % 90], Sampling(max_new_tokens=20), f"s{number}")
            lengths.append(len(reply.output_ids))
        async with anyio.create_task_group() as group:
            for number in range(100):
                group.start_soon(ask, number)
        return [len(lengths), engine.fleet.failures, engine.fleet.last_failure]

print(json.dumps([said, resource.getrlimit(resource.RLIMIT_NOFILE)[0], *anyio.run(main)]))
"""


def run(url: str, limit: int, streams: int) -> list[object]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, url, str(limit), str(streams)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_too_few_descriptors_are_told_and_bound_the_replies_at_the_same_time(server_url: str) -> None:
    (said,), soft, replies, losses, short = run(server_url, 128, 0)  # type: ignore[misc]
    assert "100 episodes at once may need 496 open files, and this process may have 128" in said  # type: ignore[has-type]
    assert (soft, replies, losses, short) == (128, 100, 0, ""), "the soft limit is raised, and everything answered"


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_what_a_run_found_is_let_go_of_after_it() -> None:
    frozen = gc.get_freeze_count()
    cycle = Cycle()
    left = weakref.ref(cycle)
    with settled():
        assert gc.get_freeze_count() > frozen
        del cycle
        gc.collect()
        assert left() is not None
    gc.collect()
    assert left() is None
    assert gc.get_freeze_count() == 0


def test_cycles_made_within_are_found() -> None:
    with settled():
        left = weakref.ref(Cycle())
        gc.collect()
        assert left() is None
