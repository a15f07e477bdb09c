"""An evaluation in the terminal: how far it is, and then its figures.

Progress is written to standard error: a bar where that is a terminal, a line every so often where it is a file. Figures are the
last thing on standard output.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from agentrl.cli.terminal import SteadyConsole
from agentrl.evaluation.figures import EvaluatedEpisode, Evaluation
from agentrl.evaluation.progress import EvaluationView
from agentrl.system.failure_text import users_part

LINE_EVERY_S = 10.0
"""Time between two lines of progress in a file."""
SHOWN_TASKS = 30
"""Rows of the table of tasks."""


class TerminalEvaluation(EvaluationView):
    """A view that shows a bar on a terminal, and writes lines elsewhere.

    Args:
        console: where it is shown.
        clock: seconds, of any beginning.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._console, self._clock = console, clock
        self._failed = 0
        self._started = self._line_at = clock()
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
        self._started = self._line_at = self._clock()
        self.progress.reset(self._bar, total=total, completed=len(done), description="episodes")
        if not self._console.is_terminal:
            self.say(f"{len(done)} of {total} episodes")

    def on_episode(self, episode: EvaluatedEpisode) -> None:
        """Show that an episode ended. Rewards are not shown: those of the episodes that end first are no sample of all."""
        super().on_episode(episode)
        self._failed += episode.reason != "finished"
        ended, failed = len(self.episodes), f"{self._failed} failed" if self._failed else ""
        self.progress.update(self._bar, completed=ended, failed=failed)
        now = self._clock()
        if not self._console.is_terminal and (now >= self._line_at + LINE_EVERY_S or ended == self.total):
            self._line_at = now
            self.say(
                f"{ended} of {self.total} episodes, {now - self._started:.0f} s" + (f", {failed}" if failed else "")
            )

    def say(self, text: str) -> None:
        """Write a line, above the bar where there is one."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


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
        console.print(
            f"the first failure:\n{users_part(result.first_error)}", highlight=False, markup=False, soft_wrap=True
        )
    if result.directory:
        kept = f"the episodes are kept: agentrl view {result.directory}, or agentrl.open_run({str(result.directory)!r}).episodes()"
        console.print(kept, highlight=False, markup=False, soft_wrap=True)
    figures = Table.grid(padding=(0, 2))
    for name, value in result.to_table().items():
        figures.add_row(name, value)
    console.print(figures)


def _show_tasks(result: Evaluation, console: Console) -> None:
    table = Table("task", "passed", "mean reward", "failed", title="tasks, the hardest first", title_justify="left")
    for row in sorted(result.per_task, key=lambda row: (row.mean_reward, row.task))[:SHOWN_TASKS]:
        table.add_row(str(row.task), f"{row.passed} of {row.samples}", f"{row.mean_reward:.3f}", str(row.failed))
    console.print(table)
    if len(result.per_task) > SHOWN_TASKS:
        console.print(f"{len(result.per_task) - SHOWN_TASKS} tasks more; --json shows all", highlight=False)
