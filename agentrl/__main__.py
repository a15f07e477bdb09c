"""The `agentrl` command. What it imports takes a moment, in which Ctrl-C ends the process without a traceback."""

import gc
import signal
from typing import NoReturn

ALLOCATIONS_A_SEARCH = 50_000
"""How many new objects the garbage collector waits for. At its default of 700 it takes a fifth of the start to search what was just imported."""


def command() -> NoReturn:
    """Run the command of this process, and end the process with its exit code."""
    gc.set_threshold(ALLOCATIONS_A_SEARCH)
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from agentrl.cli.main import main
    from agentrl.system.event_loop import end_process

    signal.signal(signal.SIGINT, before)
    end_process(main())


if __name__ == "__main__":
    command()
