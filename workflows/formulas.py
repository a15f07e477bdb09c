"""Formulas, compared by the `math-verify` library in processes that can be killed: it may take for ever, or all memory.

    formulas_agree(given, answer) ─► a line of JSON ─► main(), in a process of its own ─► "true" or "false"
                     False ◄─ the end of its output ◄─ its CPU time is used up, or it crashes

A process is started where none is idle, and answers one pair after another. The kernel ends it by signals that it does not handle, also in
the middle of C code; its CPU time is what counts, so that a verdict does not depend on how busy the machine is.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from importlib.util import find_spec

from agentrl.errors import WorkflowError

CPU_TIME_S = 5.0
"""How long a comparison may compute; then the formulas do not agree."""
MEMORY_BYTES = 2**31
MAX_CHARACTERS = 1000

_idle: list[subprocess.Popen[bytes]] = []
_room = threading.BoundedSemaphore(os.cpu_count() or 1)


def can_compare_formulas() -> bool:
    """Return whether the extra `math` is installed."""
    return find_spec("math_verify") is not None


def formulas_agree(given: str, answer: str) -> bool:
    """Return whether two formulas have the same value. It blocks, for a bounded time: call it in a thread.

    Raises:
        WorkflowError: They cannot be compared at all.
    """
    if len(given) + len(answer) > MAX_CHARACTERS:
        return False
    with _room:
        process = _take_process()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps([given, answer]).encode() + b"\n")
        if verdict := process.stdout.readline():
            _idle.append(process)
            return verdict == b"true\n"
        process.communicate()
    if process.returncode > 0:
        command = f"{sys.executable} -m {__name__}"
        raise WorkflowError(
            f"formulas cannot be compared: `{command}` ends with {process.returncode}; run it to see why"
        )
    return False


def _take_process() -> subprocess.Popen[bytes]:
    """Return a process that is idle, or a new one. Its session is its own: Ctrl-C is not for it."""
    with suppress(IndexError):  # none is idle, or another thread has just taken the last one
        while (process := _idle.pop()).poll() is not None:
            process.communicate()
        return process
    pipe, command = subprocess.PIPE, [sys.executable, "-P", "-m", __name__, str(CPU_TIME_S)]
    return subprocess.Popen(  # noqa: S603
        command, bufsize=0, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True
    )


@atexit.register
def _end_processes() -> None:
    while _idle:
        with _idle.pop() as process:
            process.kill()


def main(cpu_time_s: float) -> None:
    """Answer pairs of formulas, until there are no more. The parser makes its tables before the first."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    from math_verify import LatexExtractionConfig, parse, verify

    config = [LatexExtractionConfig()]
    parse(r"\boxed{x^2}", config, parsing_timeout=None)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, cpu_time_s)
        agree = False
        with suppress(Exception):  # a formula that breaks the library is one that is not compared
            given, answer = (parse(f"\\boxed{{{text}}}", config, parsing_timeout=None) for text in json.loads(line))
            agree = verify(answer, given, timeout_seconds=None)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(agree), flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else CPU_TIME_S)
