"""The `agentrl` command. What it imports takes a moment, in which Ctrl-C ends the process without a traceback."""

import gc
import os
import signal
import sys
from typing import NoReturn


def command() -> NoReturn:
    """Run the command of this process, and end the process with its exit code."""
    gc.set_threshold(50_000)  # by default, what was just imported is searched for garbage after every 700 new objects
    sys.path.append(os.getcwd())  # where the user's modules are, as with `python -m`
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from agentrl.cli.main import main
    from agentrl.system.event_loop import end_process

    signal.signal(signal.SIGINT, before)
    end_process(main())


if __name__ == "__main__":
    command()
