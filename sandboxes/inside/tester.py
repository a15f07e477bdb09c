"""One run of test code.

Its process never sees the candidate's code: what the tests call is a stand-in, and what comes back is plain data, or a stand-in for an
object on the other side, whose operators are the candidate's.

Its first line in is the job, see `forked_runs`; each later one is "v", the tag of a request and the candidate's answer to it, or "x", the tag
and why there is none, {"why": "...", "exited": true}. Lines out:

    c  a request to the candidate, after its tag        n  how many tests there are
    a  one that decides nothing                         b  a test begins
    k  what the candidate asks of the tests begins      d  it has ended, with its outcome
    m  the tests have looked for a name that it lacks   s  it was skipped
    t  it has spoilt arguments unseen                   f  the end
    u  our own machinery ends the test, and why         q  what a later run is to ask otherwise
    p  a test that is no pass after all, and why        r  whether an answer is the same in this run
    g  the process takes the next job                   l  how many answers were, of questions beside it
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from agentrl.sandboxes.inside.aliases import EVERYWHERE
from agentrl.sandboxes.inside.laid_out import lay_out
from agentrl.sandboxes.inside.module_stand_in import module_stand_in
from agentrl.sandboxes.inside.other_operands import Replay
from agentrl.sandboxes.inside.outcomes import describe, print_error, send_outcome
from agentrl.sandboxes.inside.questions import FirstRun
from agentrl.sandboxes.inside.remote import Remote
from agentrl.sandboxes.inside.special_methods import is_told
from agentrl.sandboxes.inside.wire import TestEndedError, Wire

Run = Callable[[Wire, Remote, dict[str, Any]], None]
"""Runs test code of one kind, and tells the host what comes of it."""


def runner(kind: str) -> Run:
    """Return what runs test code of a kind.

    Its module is imported here and not above: the start of the process is part of every verdict, and each job needs one of the three.
    """
    module = import_module(f"{__package__}.{'assertion' if kind == 'assert' else kind}_run")
    run: Run = module.run
    return run


def load(wire: Wire, job: dict[str, Any]) -> Remote | str:
    """Return the candidate's module, from its answer to being loaded; or why there is none."""
    loaded = wire.receive()
    try:
        if "raised" in loaded:
            classes, text = loaded["raised"]["classes"], loaded["raised"]["text"]
            return f"the program does not load: {str(classes[0])[:200]}: {str(text)[:2000]}"
        kinds = {str(name): str(kind) for name, kind in loaded["names"].items() if is_told(str(name))}
        doc = loaded["doc"] if isinstance(loaded["doc"], str) else None
    except (KeyError, TypeError, IndexError, AttributeError):
        return "the program answers nonsense to being loaded"
    beside = (path.partition("/")[0].partition(".")[0] for path in job.get("files", ()))
    modules = {"tests", "test_solution", *beside}
    code = job["prelude"] + job["code"]
    run = FirstRun() if job["replay"] is None else Replay(wire, job["replay"], job["code"])
    return Remote(wire, kinds, code, modules, job["functions"], run, in_place=job["in_place"], doc=doc)


def run_job(wire: Wire, job: dict[str, Any]) -> None:
    """Run the tests of a job, and tell the host all that comes of them but the end."""
    try:
        remote = load(wire, job)
    except TestEndedError as error:
        remote = str(error)
    if isinstance(remote, str):
        wire.send(b"d", {"name": job["name"], "status": "runtime_error", "message": remote})
        return
    folder = lay_out(job.get("files", {}))
    job["folders"] = [] if folder is None else [folder]
    sys.modules[job["module"]] = module_stand_in(remote, job)
    run = runner(job["kind"])
    if job["kind"] == "assert":
        run(wire, remote, job)
    else:
        try:
            remote.name_classes(job["names"])
        except BaseException as error:
            print_error()
            message = f"what the program says of its classes: {describe(error)}"
            wire.send(b"d", {"name": job["name"], "status": "runtime_error", "message": message})
            return
        outcome_of_file(wire, remote, job, run)
    if remote.spoilt:
        wire.send(b"t")
    revoked = [*remote.aliases.same()]
    if isinstance(remote.run, FirstRun):
        revoked = [*remote.run.revoked, *revoked]
        wire.send(b"q", remote.run.told())
    for test, message in revoked:
        for name in remote.begun if test == EVERYWHERE else [test]:
            wire.send(b"p", {"test": name, "message": message})


def outcome_of_file(wire: Wire, remote: Remote, job: dict[str, Any], run: Run) -> None:
    """Run a file of tests, and tell the host of an exception that goes through its runner."""
    try:
        run(wire, remote, job)
    except BaseException as error:
        print_error()
        send_outcome(wire, remote, job, job["name"], error)
