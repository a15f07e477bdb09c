"""Do everything bad to a run, at random, and prove from its store that it lost nothing and did nothing twice.

    python benchmarks/crash_test.py                       60 disturbances, then an undisturbed run to compare with
    python benchmarks/crash_test.py --dataset stream      the same for tasks whose number nobody knows
    python benchmarks/crash_test.py --roles --workers 2   the same for roles that are adapters of their own, in worker processes
    python benchmarks/crash_test.py --ray --workers 2     workers, server and trainer on the nodes of a Ray cluster, which are killed too

From outside: SIGKILL to the main process, the trainer, an engine, a worker, a raylet, or all of them; all of them with what the store had
not synced (a power cut); Ctrl-C once, and twice; a full disk. Each at a random moment: while the run starts, in the middle of steps, checkpoints and weight
updates. A run that ended is started again with --resume. From inside, all the time: replies of the engine that are unsound, optimizer
steps that run out of memory, weights that find no room (`injected_faults/`), and workflows that do their worst (`hostile_calculator.py`).

After each disturbance, and at the end, `agentrl audit` must find nothing wrong. At the end every task of every epoch must have been trained
on once, or dropped for a reason.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from agentrl.envs.calculator_env import distinct_tasks
from agentrl.models import NANO
from agentrl.run.audit import audit

ROOT = Path(__file__).parents[1]
AGENTRL = [sys.executable, "-m", "agentrl"]
DISTURBANCES = {
    "kill main": 4,
    "kill trainer": 3,
    "kill engine": 2,
    "kill worker": 2,
    "kill all": 2,
    "power cut": 2,
    "ctrl-c": 2,
    "ctrl-c twice": 2,
    "disk full": 1,
}
"""What is done to a run, and how often relative to the others."""
RAYLET = {"kill raylet": 2}
"""With Ray, beside them: SIGKILL to a node, and all that is on it. Another comes in its place."""
IN_START = 0.15
"""Share of the disturbances that come before the first step of a restart."""
RESTART_TIMEOUT_S = 300.0
FULL_DISK_S = 5.0
"""How long a disk stays full."""
DISK = "400m"
ROOM = 4
"""Processes of the run that a node of the cluster takes."""
ROLES = ["wordy", "rare"]
"""Of `hostile_roles.py`."""
GROUP_SIZE, GROUPS = 4, 4


def command(folder: Path, run_dir: Path, args: argparse.Namespace, cluster: Any = None) -> list[str]:
    """Return the words that start the run: small steps, a checkpoint every third."""
    source = f"python:{folder / 'stream.py'}:tasks" if args.dataset == "stream" else str(folder / "train.jsonl")
    settings = {
        "tasks": source,
        "run_dir": run_dir,
        "model.path": NANO,
        "steps": 100_000,
        "data.epochs": args.epochs,
        "rollout.batch_size": GROUP_SIZE * GROUPS,
        "rollout.group_size": GROUP_SIZE,
        "rollout.max_concurrent": 16,
        "rollout.max_tokens": 96,
        "rollout.episode_timeout_s": 60,
        "trainer.optimizer.lr": 5e-5,
        "trainer.checkpoint.every": 3,
        "rollout.workers": args.workers,
    }
    if cluster is not None:
        settings["cluster.address"] = cluster.address
        settings |= {f"cluster.{kind}.resources.room": 1 for kind in ("worker", "server", "rank")}
    if args.roles:
        settings |= {"trainer.lora.rank": 4, "trainer.lora.roles": json.dumps(ROLES)}
    workflow = str(ROOT / "benchmarks" / ("hostile_roles.py" if args.roles else "hostile_calculator.py"))
    return [*AGENTRL, "train", workflow, *[f"--{key}={value}" for key, value in settings.items()]]


def processes(main: psutil.Process, run_dir: Path) -> dict[str, list[psutil.Process]]:
    """Return the processes of a run, by what they are."""
    found: dict[str, list[psutil.Process]] = {"main": [main], "trainer": [], "engine": [], "worker": []}
    for child, words in marked(run_dir):
        for kind, module in (
            ("trainer", "-m agentrl.trainer"),
            ("engine", "-m agentrl.engine"),
            ("worker", "-m agentrl.rollout.worker_process"),
        ):
            if module in words:
                found[kind].append(child)
    found["all"] = [process for kind in ("main", "trainer", "engine", "worker") for process in found[kind]]
    return found


def marked(run_dir: Path) -> Iterator[tuple[psutil.Process, str]]:
    """Yield the processes that a run started, with their command lines: all inherit the variable that names it."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("AGENTRL_CRASH_TEST") == str(run_dir):
                yield process, " ".join(process.cmdline())


def lines(path: Path) -> int:
    """Count the lines of a file; 0 if it is not there."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def disturb(kind: str, main: subprocess.Popen[bytes], run_dir: Path, disk: Path | None, cluster: Any = None) -> bool:
    """Do one thing to a run; False when there was nobody to do it to."""
    if kind == "kill raylet":
        cluster.remove_node(random.choice(cluster.list_all_nodes()[1:]), allow_graceful=False)
        add_node(cluster)
        return True
    if kind == "disk full":
        if disk is None:
            return False
        while not shrink(disk):
            time.sleep(0.01)
        with suppress(subprocess.TimeoutExpired):
            main.wait(FULL_DISK_S)
        subprocess.run(["mount", "-o", f"remount,size={DISK}", str(disk)], check=True)
        return True
    if kind.startswith("ctrl-c"):
        main.send_signal(signal.SIGINT)
        if kind == "ctrl-c twice":
            time.sleep(random.uniform(0.0, 0.3))
            main.send_signal(signal.SIGINT)
        main.wait(RESTART_TIMEOUT_S)
        return True
    try:
        victims = processes(psutil.Process(main.pid), run_dir)[
            "all" if kind == "power cut" else kind.removeprefix("kill ")
        ]
    except (psutil.Error, KeyError):
        return False
    for victim in victims:
        with suppress(ProcessLookupError):
            os.kill(victim.pid, signal.SIGKILL)
    if kind in ("kill main", "kill all", "power cut"):
        main.wait(30)
    if kind == "power cut":
        psutil.wait_procs(victims, 30)
        lose_unsynced(run_dir)
    return bool(victims)


def shrink(disk: Path) -> bool:
    """Leave no room on a disk; False where more was written meanwhile."""
    space = os.statvfs(disk)
    used = max((space.f_blocks - space.f_bfree) * space.f_frsize, 1)  # 0 would set no bound
    return subprocess.run(["mount", "-o", f"remount,size={used}", str(disk)], capture_output=True).returncode == 0


def synced_note(run_dir: Path) -> Path:
    """Where a run's processes note what the store has synced (`injected_faults/`): not on its disk."""
    return run_dir.parent.parent / "synced"


def lose_unsynced(run_dir: Path) -> None:
    """Cut the store's log where SQLite had synced it: behind the last durable transaction, and behind all that may have been copied from it.

    SQLite syncs the log before it copies any of it into the database file, and a reader, or death, may stop it half way. No disk
    holds half a copy without the log: that is no loss of power, that is damage.
    """
    log, index = run_dir / "store.sqlite-wal", run_dir / "store.sqlite-shm"
    if log.exists() and (frames := synced_frames(log, index, synced_note(run_dir))) is not None:
        if frames:
            page_size = int.from_bytes(log.read_bytes()[8:12], "big")
            os.truncate(log, 32 + frames * (24 + page_size))
        else:
            log.unlink()
    index.unlink(missing_ok=True)


def synced_frames(log: Path, index: Path, note: Path) -> int | None:
    """How many frames of a write-ahead log the disk must hold; None for all. See https://sqlite.org/walformat.html."""
    salt = log.read_bytes()[16:24]
    if not salt:
        return 0
    found = index.read_bytes() if index.exists() else b""
    if not found[32:40] == found[80:88] == salt:  # it is being made, or the log has been copied and begins anew
        return None
    (attempted,) = struct.unpack_from("=I", found, 128)
    noted = note.read_bytes() if note.exists() else b""
    durable = struct.unpack_from("=I", noted, 16)[0] if noted[32:40] == salt else 0
    return max(attempted, durable)


def wait_for_moment(delay_s: float, main: subprocess.Popen[bytes], run_dir: Path, latest: int) -> None:
    """Sleep for `delay_s`, but no longer than until the run has made step `latest` or ended.

    However fast the machine is, enough steps are left for the disturbances that are to come.
    """
    until = time.monotonic() + delay_s
    while time.monotonic() < until and lines(run_dir / "metrics.jsonl") < latest and main.poll() is None:
        time.sleep(0.01)


def variables(run_dir: Path, fault_rate: float) -> dict[str, str]:
    """Return what the processes of the run have in their environment: what marks them, and what lets faults come from inside."""
    return {
        "AGENTRL_CRASH_TEST": str(run_dir),
        "AGENTRL_FAULT_LOG": str(run_dir.parent.parent / "faults.log"),
        "AGENTRL_FAULT_RATE": str(fault_rate),
        "AGENTRL_SYNCED_NOTE": str(synced_note(run_dir)),
        "PYTHONPATH": str(ROOT / "benchmarks" / "injected_faults"),
    }


@dataclass
class Course:
    """What a run went through."""

    done: Counter[str] = field(default_factory=Counter)
    """How often each disturbance came."""
    ends: Counter[int] = field(default_factory=Counter)
    """How often the run ended with each exit code."""
    recovery_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By disturbance: from it, or from the start that followed it, to the next step."""


def disturbed(
    first: list[str],
    run_dir: Path,
    count: int,
    steps: int,
    fault_rate: float,
    rng: random.Random,
    disk: Path | None,
    cluster: Any,
) -> Course:
    """Run its `steps` to the end through so many disturbances."""
    course = Course()
    done, ends, kind = course.done, course.ends, ""
    kinds = DISTURBANCES | (RAYLET if cluster else {})
    output = run_dir.parent.parent / "output.log"
    while ends.total() <= 3 * count:
        words = [*AGENTRL, "train", "--resume", str(run_dir)] if (run_dir / "store.sqlite").exists() else first
        with output.open("ab") as log:
            main = subprocess.Popen(
                words, cwd=ROOT, stdout=log, stderr=log, env=os.environ | variables(run_dir, fault_rate)
            )
        begun, before = time.monotonic(), lines(run_dir / "metrics.jsonl")
        while main.poll() is None:
            if done.total() >= count:
                break
            latest = (
                steps * (done.total() + 1) // (count + 2)
            )  # a group that is dropped makes no step: some are left over
            if rng.random() < IN_START:
                wait_for_moment(rng.uniform(0, 8), main, run_dir, latest)
            else:
                while lines(run_dir / "metrics.jsonl") == before and main.poll() is None:
                    if time.monotonic() - begun > RESTART_TIMEOUT_S:
                        raise SystemExit(
                            f"no step within {RESTART_TIMEOUT_S:g} s:\n{output.read_text(errors='replace')[-2000:]}"
                        )
                    time.sleep(0.01)
                if kind and main.poll() is None:
                    course.recovery_s[kind].append(round(time.monotonic() - begun, 1))
                wait_for_moment(rng.uniform(0, 4), main, run_dir, latest)
            begun, before = time.monotonic(), lines(run_dir / "metrics.jsonl")
            kind = rng.choices(list(kinds), list(kinds.values()))[0]
            if main.poll() is None and disturb(kind, main, run_dir, disk, cluster):
                done[kind] += 1
                found = audit(run_dir) if (run_dir / "store.sqlite").exists() else None
                print(
                    f"{done.total():3d}: {kind:12s} after step {before}, {found and found.trained} tasks trained on",
                    flush=True,
                )
                if found and found.violations:
                    raise SystemExit("\n".join(found.violations))
        code = main.wait(RESTART_TIMEOUT_S * 4)
        ends[code] += 1
        if code == 0:
            return course
        at_fault = b"This is a fault of agentrl" in output.read_bytes()
        if at_fault or code not in (1, 130, -signal.SIGKILL, -signal.SIGINT):
            raise SystemExit(f"the run ended with {code}:\n{output.read_text(errors='replace')[-2000:]}")
    raise SystemExit(
        f"the run ended {ends.total()} times, {dict(ends)}, and never came to its end:\n{output.read_text(errors='replace')[-2000:]}"
    )


def evaluated(run_dir: Path, folder: Path) -> tuple[float, float]:
    """Return (mean reward, its standard error) of the newest checkpoint on held-out tasks."""
    checkpoint = max((run_dir / "checkpoints").iterdir())
    words = [*AGENTRL, "eval", "workflows/calculator.py", "--model", str(checkpoint), "--json"]
    done = subprocess.run(
        [*words, "--tasks", str(folder / "eval.jsonl")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    shown = json.loads(done.stdout)
    low, high = shown["mean_reward_95"]
    return shown["mean_reward"], (high - low) / (2 * 1.96)


def main() -> None:
    """Disturb, audit, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--disturbances", type=int, default=60)
    parser.add_argument("--tasks", type=int, default=180)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument(
        "--dataset", choices=["list", "stream"], default="list", help="tasks in a file, or from a generator"
    )
    parser.add_argument(
        "--fault-rate", type=float, default=1.0, help="how often faults come from inside, times the usual"
    )
    parser.add_argument("--roles", action="store_true", help="two roles, each an adapter of its own")
    parser.add_argument(
        "--ray", action="store_true", help="the run's processes on the nodes of a Ray cluster, which are killed too"
    )
    parser.add_argument("--workers", type=int, default=0, help="worker processes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-comparison", action="store_true", help="leave the undisturbed run out")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="agentrl-crash-") as scratch, small_disk(Path(scratch)) as disk:
        report = crash_test(Path(scratch), args, disk)
    print(json.dumps(report, indent=2))


@contextmanager
def ray_cluster(wanted: bool, environment: dict[str, str]) -> Iterator[Any]:
    """A Ray cluster whose nodes have this in their environment: a head without room, and two nodes; None where it is not wanted."""
    if not wanted:
        yield None
        return
    from ray.cluster_utils import Cluster  # of the extra `cluster`, and slow to import

    environment = environment | {"RAY_raylet_start_wait_time_s": f"{RESTART_TIMEOUT_S:g}"}
    os.environ |= environment
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(2):
            add_node(cluster)
        yield cluster
    finally:
        cluster.shutdown()
        for name in environment:
            del os.environ[name]


def add_node(cluster: Any) -> None:
    """Add a node with room for some processes of a run."""
    cluster.add_node(num_cpus=ROOM, resources={"room": ROOM}, object_store_memory=80 * 2**20)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A disk of its own for the run, which can be made full; None where this process may not mount one."""
    disk = folder / "disturbed"
    disk.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(disk)]
    if subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def crash_test(folder: Path, args: argparse.Namespace, disk: Path | None) -> dict[str, Any]:
    """Run the whole test in `folder` and return its figures. Raise SystemExit when anything is lost or doubled."""
    for name, count, seed in (("train", args.tasks, 1), ("eval", 300, 999)):
        tasks = [{"n": n} for n in range(count)] if args.roles else distinct_tasks(count, seed=seed)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    (folder / "stream.py").write_text(
        "import json\nfrom pathlib import Path\n"
        "def tasks():\n    for line in (Path(__file__).parent / 'train.jsonl').open():\n        yield json.loads(line)\n"
    )
    run_dir = folder / "disturbed" / "run"
    started = time.monotonic()
    rng = random.Random(args.seed)
    steps = args.tasks * args.epochs // GROUPS
    with ray_cluster(args.ray, variables(run_dir, args.fault_rate)) as cluster:
        first = command(folder, run_dir, args, cluster)
        course = disturbed(first, run_dir, args.disturbances, steps, args.fault_rate, rng, disk, cluster)
    done = course.done
    if done.total() < args.disturbances:
        raise SystemExit(f"the run ended after {done.total()} disturbances; give it more --tasks or --epochs")
    if alive := [words for _, words in marked(run_dir)]:
        raise SystemExit("processes outlived the run:\n" + "\n".join(alive))
    found = audit(run_dir)
    if found.violations:
        raise SystemExit("\n".join(found.violations))
    expected = args.tasks * args.epochs
    accounted = found.trained + sum(found.dropped.values())
    if not found.tasks == accounted == expected:
        raise SystemExit(f"{expected} tasks were to be handed out, {found.tasks} were, {accounted} came to an end")
    injected = Counter((folder / "faults.log").read_text().splitlines())
    report: dict[str, Any] = {
        "disturbances": dict(done),
        "injected": dict(injected),
        "faults": done.total() + injected.total(),
        "ends": dict(course.ends),
        "recovery_s": {kind: {"median": median(times), "max": max(times)} for kind, times in course.recovery_s.items()},
        "restarts": found.restarts,
        "wall_s": round(time.monotonic() - started),
        "steps": found.batches,
        "tasks": found.tasks,
        "trained": found.trained,
        "dropped": found.dropped,
        "lost": expected - accounted,
        "tokens": found.totals.tokens,
        "tokens_not_generated_again": found.totals.replayed_tokens,
    }
    if not args.no_comparison and not args.roles:
        calm = folder / "calm" / "run"
        calm.parent.mkdir()
        started = time.monotonic()
        subprocess.run(command(folder, calm, args), cwd=ROOT, check=True, stdout=subprocess.DEVNULL, timeout=7200)
        report["undisturbed_wall_s"] = round(time.monotonic() - started)
        (mean, error), (calm_mean, calm_error) = evaluated(run_dir, folder), evaluated(calm, folder)
        report |= {"held_out": mean, "held_out_undisturbed": calm_mean}
        report["difference_in_standard_errors"] = (mean - calm_mean) / math.hypot(error, calm_error)
    return report


if __name__ == "__main__":
    main()
