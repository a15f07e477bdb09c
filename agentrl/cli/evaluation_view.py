"""An evaluation in the terminal: how far it is, and then its figures.

Progress is written to standard error: a bar where that is a terminal, a line now and then where it is a file. Figures are the last
thing on standard output.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from agentrl.cli.terminal import SteadyConsole, print_table, say_line
from agentrl.evaluation.figures import Evaluation
from agentrl.evaluation.progress import EvaluationView
from agentrl.system.exit_code import as_typed_here


class TerminalEvaluation(EvaluationView):
    """A view that shows a bar on a terminal, and writes lines elsewhere.

    Args:
        console: where it is shown.
        counted: the name of what is counted.
        failure: the word for one of them that failed.
    """

    def __init__(self, console: Console, counted: str = "episodes", failure: str = "failed") -> None:
        super().__init__(partial(say_line, console), not console.is_terminal, counted, failure)
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        disabled = not console.is_terminal
        self.bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=disabled)
        self._task = self.bar.add_task("starting", total=None)

    def begin(self, total: int, ended: int) -> None:
        """Show that the model is there and the first episodes begin."""
        super().begin(total, ended)
        self.bar.reset(self._task, total=total, completed=ended, description=self.words)

    def on_end(self, *, failed: bool) -> None:
        """Show that one has ended."""
        super().on_end(failed=failed)
        self.bar.update(self._task, completed=self.ended, description=self.words)


@contextmanager
def evaluation_view(*words: str) -> Iterator[TerminalEvaluation]:
    """Yield a view on standard error, of what these words say; its bar is gone when the context ends."""
    view = TerminalEvaluation(SteadyConsole(file=sys.stderr), *words)
    with view.bar:
        yield view


def show_evaluation(result: Evaluation, *, per_task: bool = False) -> None:
    """Print the figures of an evaluation; above them its first failure and, with `per_task`, its tasks, the hardest first."""
    if per_task:
        hardest = sorted(result.per_task, key=lambda row: (row.mean_reward, row.task))
        print_table(
            ("task", "id or text", "passed", "mean reward", "failed"),
            [
                (row.task, row.name, f"{row.passed} of {row.samples}", f"{row.mean_reward:.3f}", row.failed)
                for row in hardest
            ],
            title="tasks, the hardest first",
            more="tasks more; --json shows all",
        )
    if result.first_error:
        print(f"the first failure:\n{result.first_error}")
    if path := result.directory:
        kept = "the episodes are kept"
        if not any(episode.tokens for episode in result.episodes):
            kept += " without what was said: the model was elsewhere, or never asked"
        print(as_typed_here(f"{kept}: agentrl episodes {path} lists them, agentrl view {path} shows them"))
    print_table((), result.to_table().items())
