"""Two thousand episodes at the same time, each in an environment whose tool waits: memory, event-loop lag, starvation.

    python benchmarks/waiting_environments.py [--episodes 2000] [--steps 5] [--wait-s 1.0]

Two environments: one whose tool waits asynchronously, and one whose tool blocks its thread. The agent's calls are
given, so no model takes part: what is measured is episodes, environments and tools. Memory is the growth of this
process's resident set with all episodes in the middle of a wait; lag is how late a task that sleeps 10 ms wakes up; a
step's delay is what it took beyond the wait.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import anyio
import psutil

from agentrl import Episode
from agentrl.envs import ToolEnv, tool
from agentrl.rollout.run_episode import remote_runner

CALL = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "wait", "arguments": "{}"}}]}


class Waiting(ToolEnv):
    """Its tool waits asynchronously."""

    max_turns = 10_000
    wait_s = 1.0

    async def on_reset(self, task: dict[str, Any] | None) -> str:
        return "Wait."

    @tool
    async def wait(self) -> str:
        """Wait."""
        await anyio.sleep(self.drawn_s())
        return "done"

    def drawn_s(self) -> float:
        """How long this wait is: from half to three halves of the mean."""
        self.info["waited_s"] = self.wait_s * float(self.np_random.uniform(0.5, 1.5))
        return float(self.info["waited_s"])


class Blocking(Waiting):
    """Its tool blocks its thread."""

    @tool
    def wait(self) -> str:  # type: ignore[override]
        """Wait."""
        time.sleep(self.drawn_s())
        return "done"


async def measure(kind: type[Waiting], episodes: int, steps: int) -> None:
    """Print one line of figures."""
    delays: list[float] = []
    lags: list[float] = []
    ends: list[float] = []
    own = psutil.Process()

    async def run(episode: Episode) -> float:
        env = episode.env(kind)
        await env.reset(seed=episode.seed)
        for _ in range(steps):
            begun = time.perf_counter()
            await env.step(CALL)
            delays.append(time.perf_counter() - begun - env.info["waited_s"])
        ends.append(time.perf_counter() - started)
        return 1.0

    async def watch() -> None:
        while True:
            begun = time.perf_counter()
            await anyio.sleep(0.01)
            lags.append(time.perf_counter() - begun - 0.01)

    async with remote_runner(run, base_url="http://127.0.0.1:9/v1", api_key="-", model="-", timeout_s=600) as runner:
        await runner.run({}, 0)  # imports, first threads
        delays.clear()
        ends.clear()
        before = own.memory_info().rss
        peak = threads = 0
        async with anyio.create_task_group() as watching:
            watching.start_soon(watch)
            started = time.perf_counter()
            async with anyio.create_task_group() as group:
                for index in range(episodes):
                    group.start_soon(runner.run, {}, index)
                while len(ends) < episodes:
                    await anyio.sleep(0.2)
                    peak = max(peak, own.memory_info().rss)
                    threads = max(threads, own.num_threads())
            watching.cancel_scope.cancel()
    lag, delay = sorted(lags), sorted(delays)
    print(
        f"{kind.__name__:8s}  {episodes} episodes x {steps} steps of {kind.wait_s:g} s: {max(ends):.2f} s in all, "
        f"first end {min(ends):.2f} s; {(peak - before) / episodes / 1000:.1f} kB an episode, "
        f"{threads} threads; lag p50 {1000 * statistics.median(lag):.1f} ms, p99 {1000 * lag[int(0.99 * len(lag))]:.1f} ms, "
        f"max {1000 * lag[-1]:.0f} ms; a step's delay p50 {1000 * statistics.median(delay):.0f} ms, "
        f"p99 {1000 * delay[int(0.99 * len(delay))]:.0f} ms, max {1000 * delay[-1]:.0f} ms"
    )


async def main() -> None:
    """Both environments in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--wait-s", type=float, default=1.0)
    args = parser.parse_args()
    for kind in (Waiting, Blocking):
        kind.wait_s = args.wait_s
        await measure(kind, args.episodes, args.steps)


if __name__ == "__main__":
    anyio.run(main)
