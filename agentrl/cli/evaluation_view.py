"""An evaluation in the terminal: how far it is, and then its figures.

Progress is written to standard error: a bar where that is a terminal, a line now and then where it is a file. Figures are the last
thing on standard output.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from agentrl.cli.terminal import SteadyConsole
from agentrl.evaluation.figures import EvaluatedEpisode, Evaluation
from agentrl.evaluation.progress import PrintedEvaluation
from agentrl.system.exit_code import as_typed_here
from agentrl.system.failure_text import users_part

SHOWN_TASKS = 30
"""Rows of the table of tasks."""


class TerminalEvaluation(PrintedEvaluation):
    """A view that shows a bar on a terminal, and writes lines elsewhere.

    Args:
        console: where it is shown.
    """

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[failed]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bar = self.progress.add_task("starting", total=None, failed="")

    def begin(self, total: int, done: list[EvaluatedEpisode]) -> None:
        """Show that the model is there and the first episodes begin."""
        super().begin(total, done)
        self.progress.reset(self._bar, total=total, completed=len(done), description="episodes")

    def on_episode(self, episode: EvaluatedEpisode) -> None:
        """Show that an episode ended. Rewards are not shown: those of the episodes that end first are no sample of all."""
        super().on_episode(episode)
        failed = f"{self.failed} failed" if self.failed else ""
        self.progress.update(self._bar, completed=len(self.episodes), failed=failed)

    def show_part(self, text: str) -> None:
        """Write how far it is where there is no bar."""
        if not self._console.is_terminal:
            self.say(text)

    def say(self, text: str) -> None:
        """Write a line, above the bar where there is one."""
        _print_lines(self._console, as_typed_here(text))


@contextmanager
def evaluation_view() -> Iterator[TerminalEvaluation]:
    """Yield the view of an evaluation on standard error; its bar is gone when the context ends."""
    view = TerminalEvaluation(SteadyConsole(sys.stderr))
    with view.progress:
        yield view


def show_evaluation(result: Evaluation, console: Console | None = None, *, per_task: bool = False) -> None:
    """Print the figures of an evaluation; above them its first failure and, with `per_task`, its tasks, the hardest first."""
    console = console or Console()
    if per_task:
        _show_tasks(result, console)
    if result.first_error:
        _print_lines(console, f"the first failure:\n{users_part(result.first_error)}")
    if result.directory:
        kept, path = "the episodes are kept", result.directory
        if not result.recorded:
            kept += " without a call of the model, as none was made, or an endpoint elsewhere answered it"
        _print_lines(
            console, as_typed_here(f"{kept}: agentrl episodes {path} lists them, agentrl view {path} shows them")
        )
    figures = Table.grid(padding=(0, 2))
    for name, value in result.to_table().items():
        figures.add_row(escape(name), escape(value))
    console.print(figures, highlight=False)


def _print_lines(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _show_tasks(result: Evaluation, console: Console) -> None:
    columns = "task", "id or prompt", "passed", "mean reward", "failed"
    table = Table(*columns, title="tasks, the hardest first", title_justify="left", box=None, pad_edge=False)
    for row in sorted(result.per_task, key=lambda row: (row.mean_reward, row.task))[:SHOWN_TASKS]:
        passed, reward = f"{row.passed} of {row.samples}", f"{row.mean_reward:.3f}"
        table.add_row(str(row.task), escape(row.name), passed, reward, str(row.failed))
    console.print(table)
    if len(result.per_task) > SHOWN_TASKS:
        console.print(f"{len(result.per_task) - SHOWN_TASKS} tasks more; --json shows all", highlight=False)
