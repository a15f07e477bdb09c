"""Vetting: a sound task is kept, and each way for a task to be unfit is found and named."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from contextvars import Context
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrl.cli import main as cli
from agentrl.sandboxes import BackendName, SandboxPool
from agentrl.sandboxes.grading.tasks import load_code_task
from agentrl.sandboxes.grading.vet import TaskReport, cheats, each_task, reason, vet_task, vetting_summary

ROOT = Path(__file__).parents[3]
SOUND = {
    "task_id": "sound",
    "code": "def add(a, b): return a + b",
    "test_list": ["assert add(1, 2) == 3", "assert add(3, 3) == 6"],
}
FLAKY = "import random\ndef flip(x): return random.random() < 0.5 and x"


def call(function: str, *pairs: tuple[Any, Any]) -> list[dict[str, Any]]:
    return [{"kind": "call", "function": function, "args": [given], "expected": wanted} for given, wanted in pairs]


DOUBLE, SQUARE, ODD = "def double(x): return 2 * x", "def square(x): return x * x", "def odd(x): return x % 2 == 1"
YES = '#include <iostream>\nint main() { int n; std::cin >> n; std::cout << (n % 2 ? "NO" : "YES"); }'
RAISES = "import pytest\nfrom solution import root\ndef test():\n    with pytest.raises(ValueError): root(-1)\n"
NOTHING = [{"kind": "assert", "code": "square(3)"}]
UNFIT: dict[str, tuple[dict[str, Any], str, str]] = {
    "no reference": ({"tests": call("double", (1, 2), (5, 10))}, "no_reference", "no reference solution"),
    "a wrong reference": ({"tests": call("double", (1, 2), (5, 11)), "solution": DOUBLE}, "reference_fails", "test 2: wrong_answer 10, expected 11"),
    "a reference that fails at times": ({"tests": call("flip", *[(2, 2)] * 3, (7, 7)), "solution": FLAKY}, "flaky", "fails"),
    "one constant": ({"tests": call("odd", (1, True), (3, True)), "solution": ODD}, "cheater", "'returns True' gets 1"),
    "doing nothing": ({"tests": NOTHING, "solution": SQUARE}, "cheater", "'stubs' gets 1"),
    "doing nothing for a fraction": ({"tests": NOTHING, "solution": SQUARE, "partial": True}, "free", "does nothing passes all tests"),
    "one constant for a fraction": (
        {"tests": call("odd", (1, True), (3, True), (2, False)), "solution": ODD, "partial": True}, "cheater", "'returns True' gets 0.67",
    ),
    "an echo": ({"tests": [{"kind": "io", "stdin": "4", "stdout": "4"}], "solution": "print(abs(int(input())))"}, "cheater", "'echo' gets 1"),
    "hidden tests that are public": (
        {"tests": call("square", (3, 9), (4, 16)), "public_tests": call("square", (4, 16), (3, 9)), "solution": SQUARE},
        "cheater", "'memoriser of public tests' gets 1",
    ),
    "what any exception pleases": (
        {"tests": [{"kind": "file", "code": RAISES}], "solution": "def root(x):\n    if x < 0: raise ValueError('no')\n    return x ** 0.5"},
        "cheater", "'raises ValueError' gets 1",
    ),
    "public tests that are wrong": (
        {"tests": call("double", (1, 2), (2, 4), (-4, -8)), "public_tests": call("double", (1, 5)), "solution": DOUBLE},
        "reference_fails", "public tests, test 4: wrong_answer 2, expected 5",
    ),
    "C++ that prints one word": (
        {"tests": [{"kind": "io", "stdin": "4", "stdout": "YES"}], "language": "cpp", "solution": YES}, "cheater", "'prints YES' gets 1",
    ),
}  # fmt: skip


async def vet(tasks: list[dict[str, Any]], pool: SandboxPool, runs: int) -> list[TaskReport]:
    return await each_task(tasks, lambda index, task: vet_task(task, index, pool=pool, runs=runs), at_once=pool.size)


@pytest.mark.soak
@pytest.mark.anyio
@pytest.mark.timeout(600)
async def test_each_way_to_be_unfit_is_found(pool: SandboxPool) -> None:
    names, tasks = [*UNFIT], [task for task, _, _ in UNFIT.values()]
    reports = await vet([*tasks, SOUND], pool, 5)
    assert [report.index for report in reports] == list(range(len(tasks) + 1))
    for name, report in zip(names, reports, strict=False):
        _, kind, detail = UNFIT[name]
        assert [(fault.kind, detail in fault.detail) for fault in report.faults if fault.kind == kind] == [
            (kind, True)
        ], (name, report)
    assert (reports[-1].faults, reports[-1].tests, dict(reports[-1].rewards)) == ((), 2, {})
    summary = vetting_summary(reports)
    assert (summary["tasks"], summary["kept"]) == (len(tasks) + 1, 1)
    assert summary["cheaters"]["returns True"] >= 1
    assert (reports[names.index("one constant for a fraction")].baseline, reports[-1].baseline) == (
        [0.0, 0.0, 0.0],
        None,
    )
    json.dumps(summary)


UNREADABLE: dict[str, tuple[Any, str, str]] = {
    "no tests": ({"tests": []}, "no_tests", "the task has no tests"),
    "no form": ({"prompt": "p"}, "unreadable", "no tests: a task has"),
    "a wrong type": ({"tests": 3}, "unreadable", "tests = 3 must be a valid list"),
    "what cannot be graded": ({"tests": call("f", (1, 2)), "language": "cpp", "solution": "x = 1"}, "unsupported", "a CallTest calls Python functions"),
    "a reference that is no Python": ({"tests": call("f", (1, 2)), "solution": "def f(:"}, "reference_fails", "SyntaxError"),
    "a reference that does not build": (
        {"tests": [{"kind": "io", "stdin": "", "stdout": ""}], "language": "cpp", "solution": "int main() { return x; }"},
        "reference_fails", "main.cpp:1:21: error: ",
    ),
    "a reference without an encoding": ({"tests": call("f", (1, 2)), "solution": "'\udc80'"}, "reference_fails", "surrogates not allowed"),
}  # fmt: skip


@pytest.mark.anyio
@pytest.mark.timeout(300)
async def test_a_task_that_makes_no_sense_costs_no_other(pool: SandboxPool) -> None:
    """Each is named by its own name, and refused in a line."""
    tasks = [{"name": name, **task} for name, (task, _, _) in UNREADABLE.items()]
    reports = await vet([*tasks, SOUND], pool, 1)
    for (name, (_, kind, detail)), report in zip(UNREADABLE.items(), reports, strict=False):
        assert report.name == name
        assert [(fault.kind, detail in fault.detail) for fault in report.faults[:1]] == [(kind, True)], report
        assert "\n" not in report.faults[0].detail
    assert reports[-1].kept


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("line 1 is '1  2', expected '1 2'", "line 1 is '1  2', expected '1 2'"),
        ('n connect\nTraceback (most recent call last):\n  File "main.py", line 2\nValueError: no\n', "ValueError: no"),
        (
            "ImportError while importing\nTraceback:\nE   ImportError: cannot import name 'add'\nE   more",
            "ImportError: cannot import name 'add'",
        ),
        ("", ""),
        ("x" * 500, "x" * 299 + "…"),
    ],
)
def test_a_refusal_names_the_line_that_says_why(message: str, said: str) -> None:
    assert reason(message) == said


def test_the_cheats_are_made_for_the_task() -> None:
    public = call("add", (1, 2))
    programs = cheats(load_code_task({"tests": call("add", (3, 4)), "public_tests": public}))
    assert {"empty", "stubs", "returns 0", "echo", "equal to everything", "exits when it is called"} <= programs.keys()
    for name, source in programs.items():
        compile(source, name, "exec")
    space: dict[str, Any] = {}
    exec(programs["memoriser of public tests"], space)
    assert (space["add"](1), space["add"](3)) == (2, None)


def run_vet(*words: object, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentrl", "vet", *map(str, words), "--sandbox.backend", "bubblewrap"]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, cwd=ROOT)


@pytest.mark.soak
def test_the_command_writes_what_is_kept_and_what_is_wrong(bubblewrap: BackendName, tmp_path: Path) -> None:
    tasks, kept, report = tmp_path / "tasks.jsonl.gz", tmp_path / "kept.jsonl", tmp_path / "report.json"
    lines = [json.dumps(task) + "\n" for task in (SOUND | {"partial": True}, UNFIT["no reference"][0])]
    tasks.write_bytes(gzip.compress("".join(lines).encode()))
    shown = run_vet(tasks, "--output", kept, "--report", report, "--runs", 1)
    assert shown.returncode == 1, shown.stderr
    assert "2, of which 1 are kept" in shown.stdout
    assert f"the tasks that are kept are in {kept}" in shown.stderr
    # What programs that do nothing pass is written into the task, and not measured again.
    assert json.loads(kept.read_text()) == json.loads(lines[0]) | {"baseline": [0.0, 0.0]}
    assert [fault["kind"] for fault in json.loads(report.read_text())["refused_tasks"][0]["faults"]] == ["no_reference"]
    again = run_vet(kept, "--json", "--runs", 1)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["kept"] == 1
    assert sorted(tmp_path.iterdir()) == [kept, report, tasks]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["{tasks}", "--output", "{tasks}"], "is the task file itself"),
        (["swe:{tasks}", "--output", "{tasks}"], "is the task file itself"),
        (["python:{tasks}:NAME", "--report", "{tasks}"], "is the task file itself"),
        (["{folder}/damaged.jsonl", "--output", "{folder}/jsonl"], "damaged.jsonl, line 2: not valid JSON"),
        (["{tasks}", "--report", "{folder}/no/report"], "cannot be written"),
        (["{tasks}", "--output", "/dev/null"], "cannot be written"),
        (["{tasks}", "--limit", "0"], 'Invalid value "0" for --limit. Must be > 0.'),
        (["{tasks}", "--timeout-s", "-1"], 'Invalid value "-1.0" for --timeout-s. Must be > 0.'),
        (["{tasks}", "--trainer.optimizer.lr", "1"], "Unknown option: --trainer.optimizer.lr"),
        (["{tasks}", "--sandbox.image", "no/image:1"], "image = 'no/image:1' is an image of Docker"),
        (["{folder}/damaged.jsonl"], "damaged.jsonl, line 2: not valid JSON"),
        (["{folder}/damaged.jsonl.gz"], "damaged.jsonl.gz: Compressed file ended before"),
        (["{folder}/none.jsonl"], "cannot read the task file"),
    ],
)
def test_bad_input_is_named_before_anything_starts(
    words: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps(SOUND) + "\n")
    (tmp_path / "damaged.jsonl").write_text(json.dumps(SOUND) + '\n{"torn\n')
    (tmp_path / "damaged.jsonl.gz").write_bytes(gzip.compress(json.dumps(SOUND).encode() * 99)[:-20])
    typed = [word.format(tasks=tasks, folder=tmp_path) for word in words]
    # In a context of its own: in this one an open pool of another test is a library that runs.
    code = Context().run(cli.main, ["vet", *typed, "--sandbox.backend", "bubblewrap"])
    shown = capsys.readouterr()
    assert (code, shown.out) == (2, ""), shown.err
    (said,) = shown.err.splitlines()
    assert line in said


@pytest.mark.soak
@pytest.mark.anyio
async def test_ctrl_c_ends_it_in_order(bubblewrap: BackendName, tmp_path: Path) -> None:
    tasks, kept = tmp_path / "tasks.jsonl", tmp_path / "kept.jsonl"
    tasks.write_text((json.dumps(SOUND) + "\n") * 200)
    command = [sys.executable, "-m", "agentrl", "vet", f"{tasks}", "--output", f"{kept}"]
    command += ["--sandbox.backend", "bubblewrap"]
    async with await anyio.open_process(command, cwd=ROOT, start_new_session=True) as process:
        with anyio.fail_after(60):
            while not children(process.pid):
                await anyio.sleep(0.05)
            sandboxes = children(process.pid)
            await anyio.sleep(1)
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 130
            while any(os.path.exists(f"/proc/{sandbox}") for sandbox in sandboxes):
                await anyio.sleep(0.05)
    assert not kept.exists()


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]
