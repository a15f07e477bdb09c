"""CPU of the main process for each finished episode, with where it goes: `python benchmarks/main_process_cost.py`.

    sender, a process of its own                          main process, which is measured
    speaks the channel as a worker does: each call   ──►  Worker, WorkerPool, Controller, gate, Store, all as in a run
    is kept as it happens, then the episode's end         (store.sqlite of a scratch directory; batches taken as they come)

An episode is `--turns` calls that sample `--tokens` ids together, random, with random logprobs as engines report them, so that they
compress no better than real ones, after prompts of 100 ids; its messages carry all that a worker's do. The sender makes them before
the clock runs. No model, proxy or workflow runs on either side, as those of workers ask the engine's servers themselves. The figure is
`time.process_time` of the main process, all its threads, between the end of `--warm-up` episodes and of `--episodes` more, which end at the same time as the main process bears it;
the profile is of a second run, CPU by function, as the profiler's own work makes it slower. To compare two trees, run it in each in turn.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import math
import pstats
import random
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, cast

import anyio
from anyio.abc import SocketStream

from agentrl.config import RunConfig
from agentrl.engine.client import EngineLimits, SGLangEngine
from agentrl.engine.client.fleet import Fleet, FleetReplica
from agentrl.engine.client.server import ServedModel
from agentrl.record.end_reason import EndReason
from agentrl.record.recorded_choice import RecordedChoice
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.record.trajectory import TokenRecord, Turn
from agentrl.rollout.controller import Controller
from agentrl.rollout.gate import StalenessGate
from agentrl.rollout.worker_process import EpisodeServer, WorkerCallLog
from agentrl.rollout.workers import protocol
from agentrl.rollout.workers.pool import Worker, WorkerPool
from agentrl.store.outcome import Outcome
from agentrl.store.rows import pack
from agentrl.store.store import Store
from agentrl.system.event_loop import run_loop
from agentrl.system.this_process import settled
from agentrl.tasks.curriculum import TaskList

WAITING = "<method 'acquire' of '_thread.lock' objects>"
"""What threads do that have nothing to do, which no thread's clock measures when another ends its profile."""
PROMPT_TOKENS = 100
GROUP_SIZE = 4
TEMPLATES = 32
"""Episodes that differ in their ids; the others repeat them under other names."""
VOCABULARY = 151_936


def sampled(count: int, numbers: random.Random) -> Generation:
    """A reply of `count` tokens, with float32 logprobs."""
    ids = [numbers.randrange(VOCABULARY) for _ in range(count)]
    logprobs = struct.unpack(f"{count}f", struct.pack(f"{count}f", *(-numbers.random() for _ in ids)))
    return Generation(output_ids=ids, logprobs=list(logprobs), versions=[VersionSpan(0, 0, count)], finish="stop")


# The sender.


async def converse(
    server: EpisodeServer, frame: protocol.Run, turns: int, prompts: list[list[int]], replies: list[Generation]
) -> protocol.EpisodeResult:
    """Have each call of an episode committed as it happens; what came of it."""
    log = WorkerCallLog([], server=server, episode=frame.episode, sent=set())
    record, ids = TokenRecord(), list[int]()
    parent: Turn | None = None
    for index in range(turns):
        prompt = prompts[index]
        ids = ids + prompt
        request, completion_id = f"{frame.seed:032x}{index:032x}", f"chatcmpl-{frame.seed:024x}{index:08x}"
        generation = replies[(frame.episode + index) % len(replies)]
        choice = RecordedChoice(request, completion_id, 0, [f"call_{index:024x}"], generation)
        await log.commit(choice)
        parent = Turn(
            completion_id=completion_id,
            parent=parent,
            prompt_ids=prompt,
            output_ids=generation.output_ids,
            logprobs=generation.logprobs,
            versions=generation.versions,
            temperature=1.0,
            request=request,
            tool_call_ids=choice.tool_call_ids,
            tools=True,
            model="nano",
        )
        record.turns.append(parent)
        ids = ids + generation.output_ids
    packed, reward = pack(record, log.sent), float(frame.episode % 2)
    outcome = Outcome(
        reason=EndReason.FINISHED,
        reward=reward,
        metrics={"turns": float(turns), "correct": reward},
        started_at=time.time(),
        duration_s=1.0,
        conversations=1,
    )
    return protocol.EpisodeResult.of(frame.episode, outcome, packed)


async def send(connection: socket.socket, turns: int, tokens: int) -> None:
    """Be the worker, until the main process is gone."""
    channel = protocol.Connection(await SocketStream.from_socket(connection), protocol.TO_WORKER)
    numbers = random.Random(1)
    prompts = [[numbers.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS)] for _ in range(turns)]
    replies = [sampled(tokens, numbers) for _ in range(TEMPLATES)]

    async with anyio.create_task_group() as tasks:
        server: Any = EpisodeServer(channel, None, None, tasks, 0)  # type: ignore[arg-type]  # neither is asked

        async def run(frame: protocol.Run) -> None:
            channel.send(await converse(server, frame, turns, prompts, replies))

        tasks.start_soon(channel.send_all)
        async for frame in channel.frames():
            if isinstance(frame, protocol.Run):
                tasks.start_soon(run, frame)
            else:
                server.take(frame)
        tasks.cancel_scope.cancel()


# The main process.


class Profiles:
    """CPU of each function, in all threads that begin while it is open, and in this one."""

    def __init__(self) -> None:
        self._profiles: list[cProfile.Profile] = []

    def __enter__(self) -> Profiles:
        threading.setprofile(self._begin)
        self._begin(None, "", None)
        return self

    def _begin(self, frame: FrameType | None, event: str, argument: object) -> None:
        sys.setprofile(None)
        profile = cProfile.Profile(time.thread_time)
        self._profiles.append(profile)
        profile.enable()

    def __exit__(self, *error: object) -> None:
        threading.setprofile(None)  # type: ignore[arg-type]

    def rows(self) -> list[tuple[str, int, float]]:
        """(function, calls, its own CPU seconds), the dearest first."""
        found: dict[str, tuple[int, float]] = {}
        for profile in self._profiles:
            for (file, line, name), (_, calls, own, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
                where = name if file == "~" else f"{'/'.join(Path(file).parts[-2:])}:{line} {name}"
                before = found.get(where, (0, 0.0))
                if name != WAITING:
                    found[where] = (before[0] + calls, before[1] + own)
        return sorted(((where, *sums) for where, sums in found.items()), key=lambda row: -row[2])


async def measure(args: argparse.Namespace, profiles: Profiles | None = None) -> tuple[float, float]:
    """(CPU milliseconds of this process, episodes a second of wall time) of a run."""
    values: dict[str, Any] = {
        "workflow": "workflow.py",
        "rollout": {
            "workers": 1,
            "batch_size": GROUP_SIZE * 16,
            "group_size": GROUP_SIZE,
            "max_concurrent": args.concurrent,
            "drop_uniform_groups": False,
        },
    }
    config = RunConfig.model_validate(values)
    episodes = args.warm_up + args.episodes
    tasks = TaskList([[{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(1000)]])
    ours, theirs = socket.socketpair()
    command = [
        sys.executable,
        __file__,
        "--turns",
        str(args.turns),
        "--sender",
        str(theirs.fileno()),
        str(args.tokens // args.turns),
    ]
    with tempfile.TemporaryDirectory(prefix="agentrl-main-process-") as scratch, theirs:
        store = await anyio.to_thread.run_sync(Store, Path(scratch) / "store.sqlite")
        await anyio.to_thread.run_sync(store.begin_restart)
        sender = await anyio.open_process(command, stdout=None, stderr=None, pass_fds=[theirs.fileno()])
        theirs.close()
        async with sender, anyio.create_task_group() as group:
            channel = protocol.Connection(await SocketStream.from_socket(ours), protocol.TO_MAIN)
            engine = SGLangEngine(Fleet([], EngineLimits(), None), ServedModel(), pause_mode="retract")
            worker = Worker("sender", channel, engine, group, FleetReplica("sender"))
            pool = WorkerPool(config, engine, True, Path(scratch), print)
            pool.workers[0] = worker
            group.start_soon(worker.serve, cast(Any, sender), Path(scratch) / "log", 0)
            group.start_soon(channel.send_all)
            runner = pool
            gate = StalenessGate(groups_per_batch=16, max_staleness=args.concurrent, window=1)
            controller = Controller(tasks, config.rollout, 0, runner, store, gate)
            group.start_soon(controller.run)
            marks: list[tuple[int, float, float]] = []
            with settled():
                # Marks are set between batches alone, and it takes two.
                while not marks or marks[-1][0] < max(episodes, marks[0][0] + 1):
                    if await controller.next_batch() is None:
                        break
                    controller.advance()
                    if controller.progress.finished >= args.warm_up:
                        marks.append((controller.progress.finished, time.process_time(), time.perf_counter()))
            if controller.progress.failed:
                raise RuntimeError(controller.last_error)
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await channel.stream.aclose()
                await sender.wait()
        await anyio.to_thread.run_sync(store.close)
    count = marks[-1][0] - marks[0][0]
    return 1000 * (marks[-1][1] - marks[0][1]) / count, count / (marks[-1][2] - marks[0][2])


async def main(args: argparse.Namespace) -> None:
    """Measure, and print."""
    found = [await measure(args) for _ in range(args.rounds)]
    cpu_ms = statistics.median(cpu for cpu, _ in found)
    rows: list[tuple[str, int, float]] = []
    profiled = math.nan
    if args.rows:
        with Profiles() as profiles:
            profiled, _ = await measure(args, profiles)
        rows = profiles.rows()
    if args.json:
        print(json.dumps({"turns": args.turns, "cpu_ms": cpu_ms, "rounds": found}))
        return
    shown = ", ".join(f"{cpu:.2f} ms at {speed:.0f}/s" for cpu, speed in found)
    print(f"{args.tokens} tokens in {args.turns} turns: {cpu_ms:.2f} ms of CPU an episode (rounds: {shown})")
    if rows:
        count = args.episodes + args.warm_up
        print(f"\nwith the profiler: {profiled:.2f} ms; the functions' own CPU an episode")
        print(f"{'µs':>8} {'calls':>7}")
        for where, calls, own in rows[: args.rows]:
            print(f"{1e6 * own / count:>8.1f} {calls / count:>7.1f}  {where}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096, help="sampled tokens of an episode")
    parser.add_argument("--turns", type=int, default=8, help="model calls of an episode")
    parser.add_argument("--concurrent", type=int, default=128, help="episodes at once")
    parser.add_argument("--warm-up", type=int, default=256, help="episodes before the clock runs")
    parser.add_argument("--episodes", type=int, default=512, help="episodes that are measured")
    parser.add_argument("--rounds", type=int, default=3, help="measurements, of which the median is shown")
    parser.add_argument("--rows", type=int, default=30, help="rows of the profile; 0: none")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--sender", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.sender is not None:
        connection, own = arguments.sender
        anyio.run(send, socket.socket(fileno=connection), arguments.turns, own)
    else:
        run_loop(lambda: main(arguments))
