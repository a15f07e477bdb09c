"""Show an evaluation while it goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

SHOWN_PARTS = 10
"""Lines that say how far an evaluation is."""


@dataclass
class EvaluationView:
    """How far an evaluation is, for an observer to show. The evaluation sets `directory`, and calls `begin`, `on_end` and `say`."""

    say: Callable[[str], None] = lambda _: None
    """Shows a line that a user should read, and each time that another part is done how far it is."""
    says_progress: bool = True
    """Whether it is told in lines how far it is."""
    counted: str = "episodes"
    failure: str = "failed"
    total: int = 0
    """Episodes that it has, those of an earlier start included."""
    ended: int = 0
    """How many of them have ended."""
    failed: int = 0
    """How many of this start have failed."""
    directory: Path | None = None
    """Where they are kept; None until it is there."""

    def begin(self, total: int, ended: int) -> None:
        """Note how many there are, and how many an earlier start has run."""
        self.total, self.ended = total, ended

    def on_end(self, *, failed: bool) -> None:
        """Note that one has ended. No reward is shown: the episodes that end first are no sample of all."""
        self.ended += 1
        self.failed += failed
        part, before = (ended * SHOWN_PARTS // self.total for ended in (self.ended, self.ended - 1))
        if self.says_progress and part > before:
            self.say(self.progress)

    @property
    def progress(self) -> str:
        """How many have ended, of how many."""
        return f"{self.ended} of {self.total} {self.words}"

    @property
    def words(self) -> str:
        """The words for what is counted, and for those that failed."""
        return self.counted + (f", {self.failed} {self.failure}" if self.failed else "")


def print_note(text: str) -> None:
    """Print a line to standard error."""
    print_line(text, sys.stderr)


def print_line(text: str, file: TextIO | None = None) -> None:
    """Print a line, by default to standard output, where there is somebody to read it."""
    with suppress(OSError):
        print(text, file=file, flush=True)
