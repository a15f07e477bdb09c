"""A command in the terminal: Ctrl-C, and a run as a live table where there is a terminal, as plain lines where the output is a file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, TypeVar

import anyio
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table

from agentrl.config import RunConfig
from agentrl.record.end_reason import reasons_text
from agentrl.rollout.alarms import shares_text
from agentrl.run.view import RunView, reward_text
from agentrl.system.event_loop import first_signal, run_loop
from agentrl.system.exit_code import as_typed_here

T = TypeVar("T")

REFRESH_PER_S = 4
SPARKS = "▁▂▃▄▅▆▇█"
CHARTED_STEPS = 60
FILE_WIDTH = 250
"""Columns of a table that is written into a file: a line a row."""
SHOWN_ROWS = 30
"""Rows of a table of which not all are shown."""


def run_until_signal(main: Callable[[], Awaitable[T]]) -> T:
    """Run `main()` in an event loop. The first SIGINT, SIGTERM or SIGHUP ends it in order, as KeyboardInterrupt."""

    async def until_signal() -> T:
        with anyio.CancelScope() as scope, first_signal(scope.cancel):
            return await main()
        raise KeyboardInterrupt

    return run_loop(until_signal)


def until_interrupted(main: Callable[[], Awaitable[None]]) -> int:
    """Run `main()`, which has no end of its own, until a signal; return the exit code."""
    with suppress(KeyboardInterrupt):
        run_until_signal(main)
    return 0


def print_json(values: Any) -> None:
    """Print values as JSON, with six digits of a number."""
    text = json.dumps(values)
    print(json.dumps(json.loads(text, parse_float=lambda digits: float(f"{float(digits):.6g}")), indent=2))


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None, more: str | None = None
) -> None:
    """Print a table to standard output.

    Args:
        columns: Their names; (): it has no head.
        rows: Their values.
        title: Its title.
        more: The words for how many rows there are beyond `SHOWN_ROWS`. None: all are shown.
    """
    console = Console()
    if not console.is_terminal:
        console.width = FILE_WIDTH
    table = Table(
        *columns, title=title, title_justify="left", show_header=bool(columns), box=None, padding=(0, 2, 0, 0)
    )
    texts = [[escape(str(value)) for value in row] for row in rows]
    for text in texts[:SHOWN_ROWS] if more else texts:
        table.add_row(*text)
    with console.capture() as captured:
        console.print(table, highlight=False)
    print(*map(str.rstrip, captured.get().splitlines()), sep="\n")
    if more and len(texts) > SHOWN_ROWS:
        print(f"{len(texts) - SHOWN_ROWS} {more}")


def say_line(console: Console, text: str) -> None:
    """Print a line, above what is shown live: whole in a log, which is searched by line; with whole words on a screen."""
    console.print(as_typed_here(text), highlight=False, markup=False, soft_wrap=not console.is_terminal)


class TerminalView(RunView):
    """A `RunView` that prints."""

    def __init__(self, config: RunConfig, console: Console) -> None:
        super().__init__(config, says_steps=not console.is_terminal)
        self._console = console

    def say(self, text: str) -> None:
        """Print a line above the live table."""
        say_line(self._console, text)

    def __rich__(self) -> Panel:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", justify="right")
        table.add_column()
        table.add_row("phase", self.phase)
        table.add_row("step", f"{self.step} / {self.config.steps}")
        table.add_row("", ProgressBar(total=self.config.steps, completed=self.step, width=40))
        if self.steps:
            last = self.steps[-1]
            rewards = [s["reward_mean"] for s in self.steps[-CHARTED_STEPS:] if s["reward_mean"] is not None]
            table.add_row("reward", f"{reward_text(last)}  {_spark(rewards)}")
            if "staleness_mean" in last:
                table.add_row("staleness", f"mean {last['staleness_mean']:.2f}  max {last['staleness_max']:.0f}")
            if "logprob_mismatch_mean_abs" in last:
                table.add_row("mismatch", f"mean |Δlogprob| {last['logprob_mismatch_mean_abs']:.1e}")
            if shares := shares_text(last):
                table.add_row("replies", shares)
            table.add_row(
                "train",
                f"{last['train_s']:.1f} s  waited {last['wait_s']:.1f} s  pause {last['pause_s'] * 1000:.0f} ms",
            )
        if self.controller is not None:
            p = self.controller.progress
            table.add_row("tokens/s", f"{self.tokens_per_s():,.0f}")
            table.add_row(
                "episodes",
                f"{p.running} running  {p.finished} finished  {p.failed} failed{reasons_text(p.reasons)}  {p.rejected_groups} groups dropped",
            )
            if lost := self.controller.runner.metrics().get("workers_lost", 0):
                table.add_row("workers", f"{lost:.0f} lost and started again")
        to_go = self.seconds_to_go()
        if to_go is not None:
            table.add_row("time to go", f"{int(to_go // 60)}:{int(to_go % 60):02d}")
        return Panel(table, title=f"agentrl  {self.config.run_dir}", title_align="left", width=96)


class SteadyConsole(Console):
    """A console on a stream as it is now: workflows may replace `sys.stdout`, each as if it were alone."""

    def _check_buffer(self) -> None:
        """Write what is to be shown. A terminal that was closed is a broken pipe too."""
        try:
            super()._check_buffer()
        except OSError:
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Go on in silence when the reader of the output is gone: a run is worth more than its output."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


@contextmanager
def terminal_view(config: RunConfig) -> Iterator[TerminalView]:
    """Show a run for the length of the context."""
    console = SteadyConsole(file=sys.stdout)
    view = TerminalView(config, console)
    with Live(view, console=console, refresh_per_second=REFRESH_PER_S) if console.is_terminal else nullcontext():
        yield view


def _spark(values: list[float]) -> str:
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(SPARKS) - 1) / ((high - low) or 1.0)
    return "".join(SPARKS[round((value - low) * scale)] for value in values)
