"""What a user sees of an evaluation: how far it is, and then its figures, which come last."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from agentrl.cli.evaluation_view import TerminalEvaluation, show_evaluation
from agentrl.config import RunConfig
from agentrl.evaluation.figures import summarise
from agentrl.evaluation.progress import print_note
from agentrl.record.end_reason import EndReason
from agentrl.run.view import PrintedView
from agentrl.store.outcome import Outcome


def ended(*, failed: bool) -> Outcome:
    return (
        Outcome(reason=EndReason.ERROR, error="ValueError: bad")
        if failed
        else Outcome(reason=EndReason.FINISHED, reward=1.0)
    )


def test_a_file_gets_a_line_for_each_tenth() -> None:
    file = io.StringIO()
    view = TerminalEvaluation(Console(file=file, width=60))
    view.begin(100, 1)
    for task in range(99):
        view.on_end(failed=task == 7)
    lines = file.getvalue().splitlines()
    assert (lines[0], lines[-1]) == ("10 of 100 episodes, 1 failed", "100 of 100 episodes, 1 failed")
    assert len(lines) == 10


def test_a_terminal_gets_a_bar_that_is_gone_at_the_end_and_no_lines() -> None:
    file = io.StringIO()
    console = Console(file=file, width=100, force_terminal=True, _environ={})
    view = TerminalEvaluation(console)
    with view.bar:
        view.begin(4, 0)
        for task in range(4):
            view.on_end(failed=task == 0)
        view.bar.refresh()
        shown = file.getvalue()
        view.say("a note")
    assert "4/4" in shown
    assert "1 failed" in shown
    assert "of 4 episodes" not in file.getvalue()
    assert "a note" in file.getvalue()
    assert file.getvalue().endswith("\x1b[2K"), "the bar is erased"


def test_figures_come_last_and_tasks_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    result = summarise([[ended(failed=task == 0)] for task in range(40)], ["What is 1 + 1?"] * 40, 1.0)

    def shown(*, per_task: bool) -> str:
        show_evaluation(result, per_task=per_task)
        return capsys.readouterr().out

    plain, table = shown(per_task=False), shown(per_task=True)
    assert "hardest first" not in plain
    assert plain.index("ValueError: bad") < plain.index("mean reward [95 %]")
    assert plain.rstrip().splitlines()[-1].startswith("episodes")
    assert " \n" not in table, "a line that is copied has no blanks at its end"
    assert table.endswith(plain)
    assert "tasks, the hardest first" in table
    assert "What is 1 + 1?" in table
    assert "n = 40 tasks" in plain
    assert "10 tasks more; --json shows all" in table


class Closed(io.StringIO):
    """A stream with no reader any more."""

    tried = ""

    def write(self, text: str) -> int:
        Closed.tried += text
        raise BrokenPipeError


def test_a_printed_view_goes_on_where_its_output_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Closed())
    monkeypatch.setattr(sys, "stdout", Closed())
    print_note("4 of 8 episodes")
    PrintedView(RunConfig()).say("step 1")
    assert "4 of 8 episodes" in Closed.tried
    assert "step 1" in Closed.tried
