"""The process that runs test code: one run after another, each in a process that is forked from this one.

To import pytest takes five times as long as to run a test. This process imports what the tests of a kind need, once, and runs none of
their code itself: no run finds anything of the one before it in its memory. After each it says "g", and takes the next job; or it ends,
where a run has not come to its end, or has left a process.
"""

from __future__ import annotations

import gc
import os
import signal
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

from agentrl.sandboxes.inside.processes import PR_SET_CHILD_SUBREAPER, libc
from agentrl.sandboxes.inside.tester import run_job, runner
from agentrl.sandboxes.inside.wire import Wire


def main() -> None:
    """Run jobs until there are no more, or one has left something behind."""
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what the tests leave running is then this process's, and is seen
    wire = Wire()
    while True:
        job = wire.receive_job()
        if job is None:
            return
        gc.disable()  # nothing that is imported becomes garbage
        import_for(job["kind"])
        # Pytest looks for garbage after each run: what was imported is left out of it, and its pages are not copied for it.
        gc.freeze()
        gc.enable()
        # Shared memory would do, but is refused where nobody counts what is in it.
        look, finished = os.pipe()
        os.set_blocking(look, False)
        try:
            pid = os.fork()
        except OSError:  # so few processes are allowed that this one has to do
            pid = 0
        if pid == 0:
            run(wire, job, finished)
        os.close(finished)
        _, status = os.waitpid(pid, 0)
        if not has_said(look):
            end_as(os.waitstatus_to_exitcode(status))
        os.close(look)
        if has_children():
            return
        wire.forget_answers()
        wire.send(b"g")


def run(wire: Wire, job: dict[str, Any], finished: int) -> NoReturn:
    """Run a job in this process, to its end, and write to `finished` there."""
    with suppress(OSError):
        os.setpgid(0, 0)  # the tests may signal their group
    wire.begin_run()
    run_job(wire, job)
    if wire.reports:
        os.write(finished, b"f")
        wire.send(b"f")
    os._exit(0)


def has_said(end: int) -> bool:
    """Return whether something was written to a pipe."""
    try:
        return bool(os.read(end, 1))
    except BlockingIOError:
        return False


def import_for(kind: str) -> None:
    """Import what runs tests of a kind. Where it is missing, the run says so."""
    if kind == "pytest":
        # Plugins of whatever else is installed take a second to load, and could change what a test means.
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        with suppress(ImportError):
            config = import_module("_pytest.config")
            for plugin in (*config.essential_plugins, *config.default_plugins):
                import_module(f"_pytest.{plugin}")
    runner(kind)


def end_as(code: int) -> None:
    """End as the process of a run has: with its exit code, or by its signal."""
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def has_children() -> bool:
    """Return whether a process is left of those that the tests have started."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
