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
import sqlite3
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator

from agentrl.errors import AgentRLError, UsageError, one_line

MAX_MESSAGE = 2000
"""Characters of the line that a command ends with."""


def exit_code_of(
    command: Callable[[], int], *, debug: bool = False, in_words: Callable[[str], str] = lambda line: line
) -> int:
    """Run a command.

    Args:
        command: What to run. It returns its exit code.
        debug: Whether its errors are raised as they are.
        in_words: Puts the line that it ends with into the words of its command line.

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
            print(f"agentrl: {in_words(line)}", file=sys.stderr)
    return code


def _report(error: BaseException) -> tuple[int, str]:
    found_in = list(leaves(error))
    # What agentrl raises on purpose says most; beside it, other tasks of the group may have failed because of it.
    known = (AgentRLError, KeyboardInterrupt, BrokenPipeError)
    found = next((leaf for kind in known for leaf in found_in if isinstance(leaf, kind)), found_in[0])
    if isinstance(found, KeyboardInterrupt):
        return 130, "interrupted"
    if isinstance(found, BrokenPipeError):
        # Python flushes standard output once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141, ""
    if isinstance(found, AgentRLError):
        return 2 if isinstance(found, UsageError) else 1, one_line(found, MAX_MESSAGE)
    if isinstance(found, OSError):
        return 1, _of_the_machine(found)
    if isinstance(found, sqlite3.Error):
        return 1, f"the run's store cannot be used: {one_line(found)}; agentrl audit RUN_DIR tells more"
    return 1, _unexpected(error, found)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions in a group, however deep; of any other exception, itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def _of_the_machine(error: OSError) -> str:
    where = f"{one_line(error.filename)}: " if error.filename is not None else ""
    remedy = {errno.ENOSPC: "; make room", errno.EDQUOT: "; make room", errno.EMFILE: "; raise ulimit -n"}
    return where + one_line(error.strerror or error) + remedy.get(error.errno or 0, "")


def _unexpected(error: BaseException, found: BaseException) -> str:
    what = f"{type(found).__name__}: {one_line(found)}"
    try:
        descriptor, path = tempfile.mkstemp(prefix="agentrl-traceback-", suffix=".txt")
        with os.fdopen(descriptor, "w", errors="backslashreplace") as file:
            traceback.print_exception(error, file=file)
    except OSError:
        return f"{what}. This is a fault of agentrl; please report it with what --debug shows"
    return f"{what}. This is a fault of agentrl; please report it with the traceback in {path}"
