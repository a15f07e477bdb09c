"""Runs test code, with the program in another process (`apart`) or in this one (`inside`).

    job ─► program: RemoteProgram, or a plain import ─► asserts, or a file by pytest ─► Report ─► one line to the host

A job is {"nonce", "trust", "framework", "name", "module", "names", "libraries", "imports", "entry_point", "prelude", "code", "timeout_s", "cpu_s", "fail_fast"}. Apart, the
host's next line says which functions the program has, and each later one is an answer of the program's. Files, such as the program's
own when it is inside, lie in the working directory.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from importlib import import_module
from typing import Any

from agentrl.sandboxes.inside.frameworks import FILE, import_framework, run_pytest
from agentrl.sandboxes.inside.guard import Guard
from agentrl.sandboxes.inside.program import private_streams
from agentrl.sandboxes.inside.program_calls import find, functions
from agentrl.sandboxes.inside.remote_program import RemoteProgram, module_of
from agentrl.sandboxes.inside.report import TESTS, Report, line_of


def main() -> None:
    """Run the tests of one job, report, and end."""
    requests, reports = private_streams()
    job = json.loads(requests.readline())
    nonce = job.pop("nonce")
    remote = RemoteProgram(reports, requests) if job["trust"] == "apart" else None
    report = Report(job, remote, reports)
    sys.path.insert(0, os.getcwd())
    if job["framework"] != "assert":
        with open(f"{FILE}.py", "w", encoding="utf-8") as file:
            file.write(job["code"])
    fault, fail_all, send = None, report.fail_all, report.send  # before a program can replace them
    gc.disable()  # nothing that is imported becomes garbage
    try:
        import_framework(job["framework"], job["imports"])
        fault = Guard(job["module"]).fault if remote is None else None
        gc.freeze()  # pytest looks for garbage after each run: not in what was imported
        gc.enable()
        if remote is None:
            report.start_clocks()  # the program is loaded before the first test begins
        else:
            sys.modules[job["module"]] = module_of(remote, job["module"], remote.load(), job["names"])
        (run_asserts if job["framework"] == "assert" else run_pytest)(report)
    except BaseException as error:
        report.end(job["name"], "", error)
    if fault is not None:
        report.start_clocks()
        if (message := fault()) is not None:
            fail_all(message)
    send(nonce)


def run_asserts(report: Report) -> None:
    """Run test code that asserts; with an entry point, call its `check(candidate)`."""
    report.begin()
    job = report.job
    error: BaseException | None = None
    text, path = None, job["entry_point"]
    try:
        program = import_module(job["module"])
        space: dict[str, Any] = {"__name__": "tests"}
        space |= {name: import_module(name) for name in job["libraries"]}
        known = {*vars(program), *functions(program)}
        of_program = {name: find(program, name) for name in job["names"] if name in known}
        space |= of_program if path is None else {}  # MBPP's preludes make objects of the program's classes
        exec(compile(job["prelude"], "<prelude>", "exec", dont_inherit=True), space)
        space |= of_program if path is not None else {}  # HumanEval's begin with the unwritten entry point itself
        exec(compile(job["code"], TESTS, "exec", dont_inherit=True), space)
        if path is not None and "check" not in space:
            error = SyntaxError("the tests define no check(candidate), which is to be called with the entry point")
        elif path is not None:
            space["check"](find(program, path) if report.remote is None else report.remote.function(path))
    except BaseException as raised:
        error = raised
        line = line_of(job["code"], raised.__traceback__)
        text = f"AssertionError: {line}" if type(raised) is AssertionError and not raised.args else None
    report.end(job["name"], "", error, text)
