"""The terminal view: what a user reads of a run, live and in a file."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from rich.console import Console

from agentrl.cli.terminal import SteadyConsole, TerminalView, terminal_view
from agentrl.config import load_config
from agentrl.system.event_loop import run_loop

STEP: dict[str, Any] = {
    "step": 3,
    "reward_mean": 0.625,
    "reward_groups": 7,
    "reward_episodes": 27,
    "reward_failed": 1,
    "reward_dropped": 0,
    "staleness_mean": 1.25,
    "staleness_max": 2.0,
    "train_s": 1.5,
    "wait_s": 0.25,
    "pause_s": 0.004,
    "logprob_mismatch_mean_abs": 3e-7,
    "episodes_failed": 1,
    "truncated_share": 0.25,
    "failed_calls_share": 0.5,
}


def view_on(console: Console) -> TerminalView:
    view = TerminalView(load_config((), {"steps": "10", "run_dir": "runs/x"}), console)
    view.training_started = time.perf_counter() - 30
    view.step = 3
    return view


def test_a_file_gets_one_line_a_step() -> None:
    file = io.StringIO()
    view = view_on(Console(file=file, width=60))
    view.on_step(STEP)
    (line,) = file.getvalue().splitlines()
    for shown in (
        "step    3",
        "reward 0.625 (n = 7 groups, 0 dropped, 27 episodes, 4% failed)",
        "staleness 1.25 (max 2)",
        "train 1.5 s",
        "pause 4 ms",
        "failed 1  cut off 25%  failed tool calls 50%",
    ):
        assert shown in line


def test_a_closed_terminal_ends_nothing() -> None:
    """Its last lines cannot be written, and the run that writes its checkpoint goes on."""
    ours, theirs = os.openpty()
    with open(theirs, "w") as stream:
        console = SteadyConsole(file=stream)
        os.close(ours)
        for _ in range(2):
            console.print("stopping: finishing the training step in progress")
        assert console.quiet


def test_words_stay_whole_on_a_screen_and_lines_in_a_file() -> None:
    said = "ALARM, step 3: " + "rewards are equal within each of the groups, so nothing is learned " * 3
    for on_screen in (True, False):
        file = io.StringIO()
        view_on(Console(file=file, width=60, force_terminal=on_screen)).say(said)
        lines = file.getvalue().splitlines()
        assert " ".join(" ".join(lines).split()) == said.strip()
        assert all(len(line) <= 60 for line in lines) if on_screen else len(lines) == 1


def test_a_terminal_shows_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, record=True)
    view = view_on(console)
    monkeypatch.setattr("agentrl.run.view.time", SimpleNamespace(perf_counter=lambda: 130.0))
    view.training_started = 100.0
    view.on_step(STEP)
    console.print(view)
    shown = console.export_text()
    for text in ("runs/x", "3 / 10", "0.625", "mean 1.25  max 2", "3.0e-07", "time to go", "1:10"):
        assert text in shown


def test_what_was_not_measured_in_a_step_is_not_shown_of_it() -> None:
    file = io.StringIO()
    view = view_on(Console(file=file, width=60))
    step = {name: value for name, value in STEP.items() if not name.startswith("staleness") and "share" not in name}
    view.on_step({**step, "reward_mean": None, "reward_groups": 0, "reward_episodes": 0, "reward_failed": 0})
    assert "reward – (no group has ended since)  train 1.5 s  wait 0.2 s  pause 4 ms  failed 1\n" in file.getvalue()
    Console(file=io.StringIO(), force_terminal=True, width=100).print(view)


def test_a_run_speaks_to_the_output_of_its_start(capsys: pytest.CaptureFixture[str]) -> None:
    async def redirects(after: anyio.Event, ended: anyio.Event) -> None:
        with io.StringIO() as said, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            await after.wait()
        ended.set()

    async def main(view: TerminalView) -> None:
        first, second, done = anyio.Event(), anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(redirects, first, second)
            await anyio.sleep(0.01)
            tasks.start_soon(redirects, second, done)
            await anyio.sleep(0.01)
            first.set()
            await done.wait()
            assert sys.stdout.closed, "what two redirections that cross each other leave"
            view.on_step(STEP)

    with terminal_view(load_config((), {"run_dir": "runs/x"})) as view:
        run_loop(lambda: main(view))
    print("the end")
    assert [line[:11] for line in capsys.readouterr().out.splitlines()] == ["step    3  ", "the end"]
