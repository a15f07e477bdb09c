"""How fast the viewer's API answers over a million episodes, and what a page that is open costs the run that it shows.

python benchmarks/viewer.py                       a synthetic store: the first answers, each filter, memory, the cost of writing
python benchmarks/viewer.py --live 3              three quickstart runs with a client that asks what the page asks, three without
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import resource
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from agentrl.config import load_config
from agentrl.models import NANO
from agentrl.record.end_reason import EndReason
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.record.trajectory import TokenRecord
from agentrl.run.run_directory import write_config
from agentrl.store.changes import CloseGroup, InsertEpisode, OpenGroup
from agentrl.store.outcome import Outcome
from agentrl.store.rows import pack
from agentrl.store.store import Store

ROOT = Path(__file__).parents[1]
GROUP, BATCH, TASKS = 8, 64, 4000
"""Episodes of a group, groups of a step, and tasks."""
AT_ONCE = 250
"""Groups of one transaction."""
POLL_S = 2.0
"""How often the page asks."""
FIRST = ["runs", "runs/0", "runs/0/metrics?after=-1", "runs/0/rewards?points=600", "runs/0/episodes"]
FILTERS = {
    "a later page": "cursor=500000",
    "task": "task=17",
    "group": "group=777",
    "step": "step=100",
    "failed": "reason=failed",
    "a rare reason": "reason=timeout",
    "a common reason": "reason=finished",
    "reward from 0.9999": "min_reward=0.9999",
    "reward 0.2 to 0.8": "min_reward=0.2&max_reward=0.8",
    "best": "sort=best",
    "worst": "sort=worst",
    "the best of each group": "sort=best&best_of_group=true",
    "best of the finished": "sort=best&reason=finished",
    "the page after the best": "sort=best&cursor=4711",
    "staleness from 3": "min_staleness=3",
    "the best of a step": "sort=best&step=100",
    "text, looked through": "text=no%20such%20text",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1_000_000)
    parser.add_argument("--live", type=int, default=0, metavar="ROUNDS", help="compare runs with and without a client")
    parser.add_argument("--steps", type=int, default=20, help="of each run with --live")
    parser.add_argument("--keep", type=Path, help="directory of the synthetic run, which is used again")
    arguments = parser.parse_args()
    if arguments.live:
        compare(arguments.live, arguments.steps)
        return
    with tempfile.TemporaryDirectory() as scratch:
        run_dir = arguments.keep or Path(scratch) / "run"
        if not run_dir.exists():
            make_run(run_dir, arguments.episodes)
        ask(run_dir)


def make_run(run_dir: Path, episodes: int) -> None:
    """A run that has trained on `episodes` episodes, of one reply of 4 tokens each."""
    run_dir.mkdir(parents=True)
    write_config(load_config((), {}, run_dir=str(run_dir), model={"path": str(NANO)}))
    rng = random.Random(1)
    reply = Generation(output_ids=[20, 21, 22, 23], logprobs=[-0.5] * 4, versions=[VersionSpan(0, 0, 4)], finish="stop")
    record = TokenRecord()
    record.add("call", None, [10, 11, 12, 13], reply, 1.0)
    packed, now, started = pack(record), time.time(), time.perf_counter()
    with Store(run_dir / "store.sqlite") as store:
        store.begin_restart("tasks")
        groups = episodes // GROUP
        for first in range(0, groups, AT_ONCE):
            changes: list[OpenGroup | InsertEpisode | CloseGroup] = []
            for group in range(first, min(groups, first + AT_ONCE)):
                version = max(0, group // BATCH - rng.choice((0, 0, 1, 1, 2)) - (rng.random() < 1e-3))
                changes.append(OpenGroup(group, group // TASKS, group % TASKS, version))
                for index in range(GROUP):
                    draw = rng.random()
                    reason = (
                        EndReason.TIMEOUT if draw < 1e-4 else EndReason.ERROR if draw < 1e-2 else EndReason.FINISHED
                    )
                    reward = rng.choice((0.0, 1.0, rng.random())) if reason == EndReason.FINISHED else 0.0
                    ended = Outcome(
                        reason=reason,
                        reward=reward,
                        metrics={"turns": 1.0},
                        error=None if reason == EndReason.FINISHED else "Traceback: it failed",
                        record=packed,
                        started_at=now + group,
                        duration_s=1.0,
                    )
                    changes.append(InsertEpisode(group, index, 0, ended))
                changes.append(CloseGroup(group))
            store.write(changes)
    took = time.perf_counter() - started
    with closing(sqlite3.connect(run_dir / "store.sqlite")) as db, db:
        db.execute(f"UPDATE groups SET step = id / {BATCH} + 1")
    rows = ({"step": step, "reward_mean": 0.5, "tokens": 1000} for step in range(1, groups // BATCH + 1))
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    size = (run_dir / "store.sqlite").stat().st_size
    print(
        f"{groups * GROUP:,} episodes written in {took:.0f} s, {took / groups / GROUP * 1e6:.0f} µs each; {size / 1e6:,.0f} MB"
    )
    index_cost(run_dir / "store.sqlite")


def index_cost(path: Path) -> None:
    """What an episode's entry in the index that answers filters costs, against that of the group alone."""
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT group_id, reason, reward FROM episodes ORDER BY id").fetchall()
    for columns in ("group_id", "group_id, reason, reward"):
        with tempfile.TemporaryDirectory() as scratch, closing(sqlite3.connect(Path(scratch) / "rows.sqlite")) as db:
            db.execute("CREATE TABLE episodes (id INTEGER PRIMARY KEY, group_id, reason, reward)")
            db.execute(f"CREATE INDEX of ON episodes ({columns})")
            started = time.perf_counter()
            with db:
                db.executemany("INSERT INTO episodes (group_id, reason, reward) VALUES (?, ?, ?)", rows)
            took = time.perf_counter() - started
            size = db.execute("SELECT SUM(pgsize) FROM dbstat WHERE name = 'of'").fetchone()[0] if has_dbstat(db) else 0
        print(
            f"an entry of the index ({columns}), with its row: {took / len(rows) * 1e6:.2f} µs, {size / len(rows):.0f} bytes"
        )


def has_dbstat(db: sqlite3.Connection) -> bool:
    return any("DBSTAT" in option for (option,) in db.execute("PRAGMA compile_options"))


def ask(run_dir: Path) -> None:
    """Print how long each answer takes, and what it costs in CPU: the first, and the mean of five."""
    with viewer_of(run_dir) as (url, process):
        costs = [asked(process.pid, f"{url}api/{path}") for path in FIRST]
        print(f"first answers of the page, all five: {sum(took for took, _ in costs):.2f} s; {memory(process.pid)}")
        for path, cost in zip(FIRST, costs, strict=True):
            print(f"  {path:30} {in_ms(*cost)}")
        for name, query in FILTERS.items():
            again = [asked(process.pid, f"{url}api/runs/0/episodes?{query}") for _ in range(5)]
            print(f"  {name:30} {in_ms(*map(statistics.mean, zip(*again, strict=True)))}", flush=True)
        before, polls = cpu_s(process.pid), 50
        for _ in range(polls):
            poll(url, len(steps_of(run_dir)))
        a_poll_s = (cpu_s(process.pid) - before) / polls
        print(
            f"what the page asks every {POLL_S:.0f} s: {a_poll_s * 1000:.1f} ms of CPU, {a_poll_s / POLL_S:.2%} of a core"
        )
        print(f"afterwards {memory(process.pid)}")


@contextmanager
def viewer_of(run_dir: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    started = time.perf_counter()
    command = [sys.executable, "-m", "agentrl", "view", str(run_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found is not None
            print(f"the address is printed after {time.perf_counter() - started:.1f} s")
            yield found[0], process
        finally:
            process.send_signal(signal.SIGINT)


def asked(process: int, url: str) -> tuple[float, float]:
    """The seconds until an answer is there, and the CPU seconds of the server."""
    started, before = time.perf_counter(), cpu_s(process)
    with urllib.request.urlopen(url, timeout=120) as answer:
        answer.read()
    return time.perf_counter() - started, cpu_s(process) - before


def in_ms(took: float, cpu: float) -> str:
    return f"{took * 1000:7.0f} ms, {cpu * 1000:6.0f} ms of CPU"


def poll(url: str, step: int) -> int:
    """Ask what the page of a run that goes on asks; the newest step."""
    for path in ("runs", f"runs/0/metrics?after={step}", "runs/0/rewards?points=100", "runs/0"):
        with urllib.request.urlopen(f"{url}api/{path}", timeout=60) as answer:
            found = json.load(answer)
        step = max([step, *(row["step"] for row in found.get("steps", ()))])
    return step


def steps_of(run_dir: Path) -> list[str]:
    return (run_dir / "metrics.jsonl").read_text().splitlines()


def cpu_s(process: int) -> float:
    ticks = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def memory(process: int) -> str:
    status = Path(f"/proc/{process}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+)", status)
    return f"{int(found[1]) / 1000:.0f} MB of memory at the most" if found else ""


def compare(rounds: int, steps: int) -> None:
    """Print the episodes a second of runs with a client and without, in turn."""
    speeds: dict[bool, list[float]] = {True: [], False: []}
    costs: dict[bool, list[float]] = {True: [], False: []}
    for round_ in range(rounds):
        for asked in (True, False) if round_ % 2 else (False, True):
            speed, cost = live(steps, asked=asked)
            speeds[asked].append(speed)
            costs[asked].append(cost)
            print(
                f"{'with a client' if asked else 'without'}: {speed:.2f} episodes/s, {cost * 1000:.1f} ms of CPU each",
                flush=True,
            )
    with_client, without = (statistics.median(speeds[asked]) for asked in (True, False))
    print(
        f"medians {with_client:.2f} and {without:.2f} episodes/s: a page that is open leaves {with_client / without:.1%} of the speed"
    )
    dear, cheap = (statistics.median(costs[asked]) * 1000 for asked in (True, False))
    print(f"medians {dear:.1f} and {cheap:.1f} ms of CPU an episode: it takes {dear / cheap - 1:.1%} more")


def live(steps: int, *, asked: bool) -> tuple[float, float]:
    """The episodes a second, and the CPU seconds of all processes an episode, of one quickstart run, whose page a client asks."""
    with tempfile.TemporaryDirectory() as scratch:
        tasks, run_dir = Path(scratch) / "tasks", Path(scratch) / "run"
        subprocess.run(
            [sys.executable, "-m", "agentrl.envs.calculator_env", str(tasks)], check=True, capture_output=True
        )
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = f"train --view --config workflows/quickstart.toml --model {NANO} --run-dir {run_dir} --steps {steps} --eval.stop-at 2"
        keys = f"--tasks {tasks}/train.jsonl --eval.tasks {tasks}/eval.jsonl"
        with subprocess.Popen(
            [sys.executable, "-m", "agentrl", *command.split(), *keys.split()],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        ) as process:
            assert process.stdout is not None
            ended = threading.Event()
            asking = threading.Thread(target=lambda: None)
            for line in process.stdout:
                if asked and not asking.is_alive() and (found := re.search(r"the page is at (\S+)", line)):
                    asking = threading.Thread(target=keep_asking, args=(found[1], ended))
                    asking.start()
                if line.startswith("the run is in"):
                    break
            rest = process.stdout.read()
            ended.set()
        if asking.ident:
            asking.join(timeout=60)
        summary = json.loads(rest)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        episodes = summary["episodes_finished"]
        return episodes / summary["wall_s"], (
            used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
        ) / episodes


def keep_asking(url: str, ended: threading.Event) -> None:
    """Ask what the page of a run that goes on asks, every two seconds."""
    step = -1
    while not ended.wait(POLL_S):
        with contextlib.suppress(OSError):  # it has not begun, or is over
            step = poll(url, step)


if __name__ == "__main__":
    main()
