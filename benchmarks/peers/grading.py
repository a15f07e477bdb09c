"""Verdicts on programs, right, wrong and hostile, by agentrl's grader and by others: `python benchmarks/peers/grading.py`.

HumanEval's problems whose tests are all `assert candidate(data) == data` are put as calls of a function, which every grader knows. The programs
are each problem's own solution, the same with one test wrong, and, for a few problems, what a model may try instead. Each grader has two
seconds a test where it can be told, and as many verdicts at once as this machine has cores:

    verl             `prime_code.compute_score`: its 5 s are fixed; where a test fails, it tries up to ten of them again, alone
    livecodebench    `check_correctness` of its own tester
    open-instruct    `get_successful_tests_fast`, what the API does that its code verifier calls
    agentrl/…        `grade`, in plain processes (unsafe), bubblewrap and Docker

verdicts/s a core: of right and wrong programs, in rounds, in turn. The others run programs in forks of the grader, with functions of `os` set to
None: what that holds is in the last columns. The data is HumanEval.jsonl.gz; `--data` says where.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

GRADERS = {
    "verl": "verl",
    "livecodebench": "livecodebench",
    "open-instruct": "open-instruct",
    "agentrl/UNSAFE_no_isolation": "agentrl",
    "agentrl/bubblewrap": "agentrl",
    "agentrl/docker": "agentrl",
}
"""Graders, each with the name of its environment."""
TIMEOUT_S = 2
CORES = len(os.sched_getaffinity(0))
ORDINARY = ("right", "one test wrong")
ONE_WRONG = """{solution}
_right_ = {name}
def {name}(*args):
    return None if repr(list(args)) == {last!r} else _right_(*args)
"""
CAUGHT = "def {name}(*args):\n    while True:\n        try:\n            while True: pass\n        except BaseException: pass\n"
EQUAL = "class Same:\n    def __eq__(self, other): return True\ndef {name}(*args): return Same()\n"
FRAMES = """import sys, posix
def {name}(*args):
    frame = sys._getframe(1)
    while frame:
        seen = frame.f_locals
        if "gt_out" in seen: return seen["gt_out"]
        if "in_outs" in seen and "index" in seen: return seen["in_outs"]["outputs"][seen["index"]]
        if "result_array" in seen:
            seen["result_array"][seen["index"]] = 1
            posix._exit(0)
        frame = frame.f_back
"""
WRONG = {
    "returns None": "def {name}(*args): return None",
    "loops": "def {name}(*args):\n    while True: pass",
    "loops, catches all": CAUGHT,
    "exits when loaded": "raise SystemExit(0)",
    "exits in a call": "def {name}(*args): __import__('os')._exit(0)",
    "prints for ever": "def {name}(*args):\n    while True: print('x' * 1000)",
    "equal to everything": EQUAL,
    "reads the frames": FRAMES,
}
"""Programs that no grader should pass. The last looks for the answers, or the verdict, in the variables of each of the others."""
HARMFUL = {
    "writes a file": "open({canary!r}, 'w').close()\n{solution}",
    "leaves a process": "import posix\nposix.system('sleep {sleep_s} > /dev/null 2>&1 &')\n{solution}",
}
"""Right programs that do something else beside."""


@dataclass(frozen=True)
class Case:
    """A program, with calls of its function: the arguments and the value of each."""

    kind: str
    source: str
    function: str
    calls: list[tuple[list[Any], Any]]

    @property
    def should_pass(self) -> bool:
        return self.kind == "right"


def calls_of(test: str) -> list[tuple[list[Any], Any]] | None:
    """Return the calls of HumanEval's test code, if plain data that JSON keeps as it is describes them all."""
    found = []
    [check] = [node for node in ast.parse(test).body if isinstance(node, ast.FunctionDef)]
    for node in check.body:
        match node:
            case ast.Assert(
                test=ast.Compare(
                    left=ast.Call(func=ast.Name(id="candidate"), args=args, keywords=[]),
                    ops=[ast.Eq()],
                    comparators=[value],
                )
            ):
                try:
                    call = ([ast.literal_eval(arg) for arg in args], ast.literal_eval(value))
                except ValueError:
                    return None
            case _:
                return None
        # In verl a dictionary's keys, and a list of one item, stand for something else.
        if (
            json.loads(json.dumps(call)) != [*call]
            or call[1] is None
            or any(isinstance(part, dict) for part in [*call[0], call[1]])
        ):
            return None
        found.append(call)
    return found or None


def cases_of(data: Path, problems: int, canary: str, sleep_s: int, hostile: int) -> list[Case]:
    """Return the programs of so many problems, hostile ones for the first of them."""
    cases = []
    with gzip.open(data, "rt") as lines:
        read = [json.loads(line) for line in lines]
    chosen = [(problem, calls) for problem in read if (calls := calls_of(problem["test"]))][:problems]
    for number, (problem, calls) in enumerate(chosen):
        name, solution = problem["entry_point"], problem["prompt"] + problem["canonical_solution"]
        values = {"name": name, "solution": solution, "canary": canary, "sleep_s": sleep_s, "last": repr(calls[-1][0])}
        programs = {"right": solution, "one test wrong": ONE_WRONG.format(**values)}
        if number < hostile:
            programs |= {kind: source.format(**values) for kind, source in (WRONG | HARMFUL).items()}
        cases += [Case(kind, source, name, calls) for kind, source in programs.items()]
    return cases


def in_outs(case: Case) -> dict[str, Any]:
    """Return the tests as APPS writes them."""
    return {
        "inputs": ["\n".join(map(json.dumps, args)) for args, _ in case.calls],
        "outputs": [json.dumps(value) for _, value in case.calls],
        "fn_name": case.function,
    }


def by_verl(case: Case) -> bool:
    from prime_code import compute_score

    # As its reward managers call it; without `continuous` it raises UnboundLocalError for a program that fails (0.9.1).
    return compute_score(case.source, in_outs(case), continuous=True)[0] == 1


def by_livecodebench(case: Case) -> bool:
    from lcb_runner.evaluation.compute_code_generation_metrics import check_correctness

    try:
        found = check_correctness({"input_output": json.dumps(in_outs(case))}, case.source, TIMEOUT_S, debug=False)[0]
    except IndexError:  # a program that ended its process; `evaluate_generations_by_problem` takes that for a fail
        return False
    return all(result is True for result in found)


def by_open_instruct(case: Case) -> bool:
    from open_instruct.code_utils.code_utils import get_successful_tests_fast

    tests = [f"assert {case.function}(*{args!r}) == {value!r}" for args, value in case.calls]
    return all(get_successful_tests_fast(case.source, tests, float(TIMEOUT_S))[0])


OTHERS: dict[str, Callable[[Case], bool]] = {
    "verl": by_verl,
    "livecodebench": by_livecodebench,
    "open-instruct": by_open_instruct,
}


def timed(name: str, case: Case) -> tuple[bool, float]:
    """Return the verdict of one of the others, and its seconds."""
    started = time.perf_counter()
    passed = OTHERS[name](case)
    return passed, time.perf_counter() - started


def grade_others(name: str, cases: list[Case]) -> tuple[list[tuple[bool, float]], float]:
    """Return the verdicts, each with its seconds, and the seconds of them all."""
    with ProcessPoolExecutor(CORES) as pool:
        list(pool.map(timed, [name] * CORES, cases[:CORES]))  # imports
        started = time.perf_counter()
        return list(pool.map(timed, [name] * len(cases), cases)), time.perf_counter() - started


def grade_ours(backend: str, cases: list[Case]) -> tuple[list[tuple[bool, float]], float]:
    """Return the same of agentrl's."""
    import anyio

    from agentrl.sandboxes import CallTest, Limits, SandboxSpec, grade, open_pool

    found: dict[int, tuple[bool, float]] = {}

    async def main() -> float:
        async with open_pool(SandboxSpec(limits=Limits(timeout_s=TIMEOUT_S)), backend=backend, size=CORES) as pool:

            async def one(number: int) -> None:
                async with places:
                    case, started = cases[number], time.perf_counter()
                    tests = [CallTest(function=case.function, args=args, expected=value) for args, value in case.calls]
                    verdict = await grade(case.source, tests, pool=pool, fail_fast=True)
                    found[number] = (verdict.passed, time.perf_counter() - started)

            async def all_of(numbers: range) -> None:
                async with anyio.create_task_group() as group:
                    for number in numbers:
                        group.start_soon(one, number)

            places = anyio.Semaphore(CORES)
            await all_of(range(min(CORES, len(cases))))  # sandboxes start
            started = time.perf_counter()
            await all_of(range(len(cases)))
            return time.perf_counter() - started

    seconds = anyio.run(main)
    return [found[number] for number in range(len(cases))], seconds


def be_grader(name: str, cases: list[Case]) -> None:
    """Be one of the graders, and print what it found as the last line."""
    graded = grade_others(name, cases) if name in OTHERS else grade_ours(name.removeprefix("agentrl/"), cases)
    print("\n" + json.dumps(graded), flush=True)


def run_grader(name: str, cases: list[Case], folder: str) -> tuple[list[tuple[bool, float]], float]:
    """Run a grader process to its end, in a folder of its own.

    Raises:
        RuntimeError: It failed.
    """
    from installed import interpreter, source

    python = interpreter(GRADERS[name])
    places = {
        "verl": python and next(python.parents[1].glob("lib/python3*/site-packages/verl/utils/reward_score"), ""),
        "livecodebench": source("livecodebench"),
        "open-instruct": source("open-instruct"),
    }
    paths = {"PYTHONPATH": str(places[name])} if name in places else {}
    written = Path(folder) / "cases.json"
    written.write_text(json.dumps([asdict(case) for case in cases]))
    command = [str(python), __file__, "--grader", name, "--cases", str(written)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=os.environ | paths, check=False)
    if ended.returncode:
        raise RuntimeError(f"{name}: {ended.stdout[-2000:]}{ended.stderr[-4000:]}")
    verdicts, seconds = json.loads(ended.stdout.splitlines()[-1])
    return verdicts, seconds


def left_processes(sleep_s: int) -> list[int]:
    """Return the processes that hostile programs have left on this machine, and end them."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cmdline").read_bytes() == f"sleep\0{sleep_s}\0".encode():
                os.kill(int(entry.name), 9)
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def hostile_columns(name: str, cases: list[Case], canary: Path, sleep_s: int, folder: str) -> str:
    """Grade every case once, and return what a table says of it."""
    verdicts, _ = run_grader(name, cases, folder)
    judged = [(case, *verdict) for case, verdict in zip(cases, verdicts, strict=True) if case.kind not in HARMFUL]
    wrong = [case.kind for case, passed, _ in judged if passed is not case.should_pass]
    longest_s = max(seconds for case, _, seconds in judged if case.kind.startswith("loops"))
    wrote, left = canary.exists(), left_processes(sleep_s)
    canary.unlink(missing_ok=True)
    kinds = ", ".join(f"{kind} ×{wrong.count(kind)}" for kind in dict.fromkeys(wrong))
    return (
        f"{len(wrong):>4} of {len(judged):<5} {longest_s:>9.1f} {'yes' if wrote else 'no':>12} "
        f"{'yes' if left else 'no':>15}   {kinds}"
    )


def main(only: list[str], data: Path, problems: int, hostile: int, rounds: int) -> None:
    """Measure each grader in turn, in rounds, and what hostile programs did; print a table."""
    from installed import absent, head, interpreter, spread

    canary, sleep_s = Path.home() / f"written-by-a-program-{os.getpid()}", 10_000 + os.getpid()
    cases = cases_of(data, problems, str(canary), sleep_s, hostile)
    ordinary = [case for case in cases if case.kind in ORDINARY]
    print(head(sorted(set(GRADERS.values()))))
    print(
        f"{len(ordinary)} programs, of which half are right, and {len(cases) - len(ordinary)} hostile ones; rounds: {rounds}\n"
    )
    rates: dict[str, list[float]] = {}
    here = [name for name in only if interpreter(GRADERS[name])]
    for _ in range(rounds):
        for name in here:
            with tempfile.TemporaryDirectory() as folder:
                seconds = run_grader(name, ordinary, folder)[1]
            rates.setdefault(name, []).append(len(ordinary) / seconds / CORES)
            print(f"{name}: {rates[name][-1]:.2f} verdicts/s a core", file=sys.stderr, flush=True)
    print(
        f"{'':28} {'verdicts/s a core':>24} {'wrong verdicts':>13} {'longest, s':>9} {'file written':>12} {'process left':>15}"
    )
    for name in only:
        if name not in here:
            print(absent(GRADERS[name]))
            continue
        with tempfile.TemporaryDirectory() as folder:
            columns = hostile_columns(name, cases, canary, sleep_s, folder)
        print(f"{name:28} {spread(rates[name], 2):>24} {columns}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--hostile", type=int, default=2, help="problems for which there are hostile programs too")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=GRADERS, default=list(GRADERS))
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[3] / "shared/data/HumanEval.jsonl.gz")
    parser.add_argument("--grader", help=argparse.SUPPRESS)
    parser.add_argument("--cases", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.grader:
        be_grader(args.grader, [Case(**case) for case in json.loads(args.cases.read_text())])
    else:
        main(args.only, args.data, args.problems, args.hostile, args.rounds)
