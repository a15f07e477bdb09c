"""Objects that are there when a run starts are left out of the search for cycles until it ends, and no longer."""

from __future__ import annotations

import gc
import weakref

from agentrl.system.this_process import settled


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_what_a_run_found_is_let_go_of_after_it() -> None:
    frozen = gc.get_freeze_count()
    cycle = Cycle()
    left = weakref.ref(cycle)
    with settled():
        assert gc.get_freeze_count() > frozen
        del cycle
        gc.collect()
        assert left() is not None
    gc.collect()
    assert left() is None
    assert gc.get_freeze_count() == 0


def test_cycles_made_within_are_found() -> None:
    with settled():
        left = weakref.ref(Cycle())
        gc.collect()
        assert left() is None
