"""Compares a candidate's answers where that cannot harm the run: short ones at once, all others in a process that can be ended.

A process of the host's, not a sandbox: what runs in it is ours, and reads bytes as data. Its CPU time, its memory and its end are
bounded, so that whoever finds an answer that is slow to compare after all loses that test, and delays nobody else.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import anyio

import agentrl.errors
from agentrl.concurrency.child_process import kill_process, start_process
from agentrl.errors import ConfigError
from agentrl.sandboxes.grading.answers import Expectation, ExpectedOutput, difference
from agentrl.sandboxes.grading.comparison import Comparison, Exact, Floats, Tokens
from agentrl.sandboxes.grading.verdict import Status

SHORT_BYTES = 1 << 14
"""An answer and an expectation up to this length are compared on the event loop, which takes at most a few milliseconds whatever
they are."""
CPU_S = 10
"""Of one comparison. A megabyte takes about half a second."""
MEMORY_BYTES = 256 << 20
MEMORY_PER_BYTE = 64
"""Address space of one comparison: so much, and so much more for each byte of the answer and the expectation."""
PIECE_BYTES = 1 << 16
MAX_SAID_BYTES = 1 << 16
_MAIN = "from agentrl.sandboxes.grading.answers import main; main()"
_processes = anyio.CapacityLimiter(max(2, len(os.sched_getaffinity(0))))


def check_comparison(compare: Comparison) -> None:
    """Check that another process can import a comparison.

    Raises:
        ConfigError: No other process can import it.
    """
    try:
        pickle.dumps(compare)
    except Exception as error:
        raise ConfigError(
            f"compare = {compare!r} cannot be passed to the process that compares ({error}); define it at the top of a module"
        ) from None
    if getattr(compare, "__module__", None) == "__main__":
        raise ConfigError(
            f"compare = {compare!r} is defined in __main__, which the process that compares does not import; "
            "define it at the top of a module"
        )


async def compare_answer(expectation: Expectation, answer: bytes, deadline: float) -> tuple[Status, str]:
    """Return whether an answer is what is expected, and if not, why. `deadline` is a time of the event loop's clock.

    An answer that is too slow or too large to compare is a wrong one. Raises nothing for whatever the candidate answered.
    """
    ours = not isinstance(expectation, ExpectedOutput) or isinstance(expectation.compare, Exact | Tokens | Floats)
    if ours and len(answer) <= SHORT_BYTES and expectation.size <= SHORT_BYTES:
        return _status(difference(expectation, answer))
    with anyio.CancelScope(deadline=deadline):
        async with _processes:
            return await _in_process(expectation, answer, ours=ours)
    return Status.CHECKER_ERROR, "the verdict's deadline was over before the answer was compared"


def _status(said: str) -> tuple[Status, str]:
    return (Status.WRONG_ANSWER, said) if said else (Status.PASSED, "")


async def _in_process(expectation: Expectation, answer: bytes, *, ours: bool) -> tuple[Status, str]:
    pickled = pickle.dumps(expectation)
    memory_bytes = MEMORY_BYTES + MEMORY_PER_BYTE * (len(answer) + len(pickled))
    command = [sys.executable, "-I", *(("-S", "-c", _alone()) if ours else ("-c", _whole()))]
    command += [str(CPU_S), str(memory_bytes), str(len(pickled))]
    process = await start_process(command, stderr=subprocess.DEVNULL)
    assert process.stdin is not None
    assert process.stdout is not None
    said = b""
    try:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # it has ended: its exit code says how
            for data in (pickled, answer):
                for start in range(0, len(data), PIECE_BYTES):  # what a pipe does not take at once would be copied
                    await process.stdin.send(data[start : start + PIECE_BYTES])
            await process.stdin.aclose()
        with suppress(anyio.EndOfStream):
            while len(said) < MAX_SAID_BYTES:
                said += await process.stdout.receive()
        code = await process.wait()
    finally:
        with anyio.CancelScope(shield=True):
            kill_process(process)
            await process.wait()
            with suppress(anyio.BrokenResourceError, OSError):
                await process.aclose()
    if code < 0:
        return Status.WRONG_ANSWER, f"the answer takes more than {CPU_S} s, or too much memory, to compare"
    if code > 0:
        return Status.CHECKER_ERROR, f"the process that compares ended with code {code}"
    result = json.loads(said)
    if "failed" in result:
        return Status.CHECKER_ERROR, f"the comparison failed: {result['failed']}"
    return _status(result["difference"])


def _alone() -> str:
    """Return a program that imports what it needs of ours and not the rest of the package, in a fifth of the time."""
    # The folders of modules that were found: `__path__` may be that of a namespace, where a checkout lies in the working directory.
    names = "agentrl", "agentrl.sandboxes", "agentrl.sandboxes.grading"
    folders = Path(agentrl.errors.__file__).parent, Path(__file__).parents[1], Path(__file__).parent
    packages = dict(zip(names, map(str, folders), strict=True))
    return f"""
import sys, types
for name, path in {packages!r}.items():
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
{_MAIN}
"""


def _whole() -> str:
    """Return a program that imports whatever this process could: the module of a user's own comparison."""
    return f"import sys; sys.path[:] = {sys.path!r}; {_MAIN}"
