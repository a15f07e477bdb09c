"""End a command: the exit code, and one line on standard error that says what to do.

UsageError                     2     the input cannot be used
AgentRLError, OSError, ...     1     the run, or the machine, failed
KeyboardInterrupt            130
BrokenPipeError              141     nobody reads the output any more, as after `| head`
anything else                  1     a fault of agentrl: its traceback goes to a file
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sqlite3
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from agentrl.errors import AgentRLError, UsageError, one_line

COMMAND = "agentrl" if shutil.which("agentrl") else f"{sys.executable} -m agentrl"
"""The words that start the command line here."""
MAX_MESSAGE = 2000
"""Characters of the line that a command ends with."""
_COMMAND = re.compile(
    r"\bagentrl (?=(?:train|sft|eval|serve|view|runs|episodes|audit|replay|vet|config|init|doctor)\b)"
)


def exit_code_of(command: Callable[[], int], *, debug: bool = False) -> int:
    """Run a command.

    Args:
        command: What to run. It returns its exit code.
        debug: Whether its errors are raised as they are.

    Returns:
        The exit code.
    """
    try:
        code = command()
        sys.stdout.flush()
    except BaseException as error:
        if debug or isinstance(error, SystemExit):
            raise
        code, line = _report(error)
        if line:
            print(f"agentrl: {as_typed_here(line)}", file=sys.stderr)
    return code


def _report(error: BaseException) -> tuple[int, str]:
    """Return the exit code and the line of an error."""
    found_in = list(leaves(error))
    # What agentrl raises on purpose says most; beside it, other tasks of the group may have failed because of it.
    known = (AgentRLError, KeyboardInterrupt, BrokenPipeError)
    found = next((leaf for kind in known for leaf in found_in if isinstance(leaf, kind)), found_in[0])
    match found:
        case KeyboardInterrupt():
            return 130, "interrupted"
        case BrokenPipeError():
            # Python flushes standard output once more when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141, ""
        case AgentRLError():
            return 2 if isinstance(found, UsageError) else 1, one_line(found, MAX_MESSAGE)
        case OSError():
            where = f"{one_line(found.filename)}: " if found.filename is not None else ""
            remedy = "; make room" if found.errno in (errno.ENOSPC, errno.EDQUOT) else ""
            return 1, where + one_line(found.strerror or found) + remedy
        case sqlite3.Error():
            return 1, f"the run's store cannot be used: {one_line(found)}; agentrl audit RUN_DIR tells more"
    with tempfile.NamedTemporaryFile(
        "w", prefix="agentrl-traceback-", suffix=".txt", errors="backslashreplace", delete=False
    ) as file:
        traceback.print_exception(error, file=file)
    what = f"{type(found).__name__}: {one_line(found)}"
    return 1, f"{what}. This is a fault of agentrl; please report it with the traceback in {file.name}"


def as_typed_here(text: str) -> str:
    """Return a message whose commands work here: `agentrl` may not be on the PATH, and agentrl is in a folder of its own."""
    text = text.replace(
        "pip install -e '/path/to/agentrl", f"{sys.executable} -m pip install -e '{Path(__file__).parents[2]}"
    )
    return _COMMAND.sub(f"{COMMAND} ", text)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions in a group, however deep; of any other exception, itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error
