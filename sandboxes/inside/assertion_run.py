"""Test code that asserts, run with the names of the program."""

from __future__ import annotations

import builtins
from typing import Any

from agentrl.sandboxes.inside.mirror import LARGEST_MIRRORED
from agentrl.sandboxes.inside.names import checked_name, library_module, shared_names
from agentrl.sandboxes.inside.outcomes import describe, print_error, send_outcome
from agentrl.sandboxes.inside.plain_data import CHANGEABLE
from agentrl.sandboxes.inside.remote import Remote
from agentrl.sandboxes.inside.stand_ins import RemoteFunction
from agentrl.sandboxes.inside.wire import Wire

ATOMS = (int, float, complex, str, bytes, tuple, frozenset)
"""Classes of values that nobody changes."""
TESTS = "<tests>"
"""The file name of test code that asserts."""


def run(wire: Wire, remote: Remote, job: dict[str, Any]) -> None:
    """Run test code that asserts; with an entry point, call its `check(candidate)` as HumanEval does."""
    space = LiveNames(remote)
    entry_point = job["entry_point"]

    def body() -> None:
        first, wanted = checked_name(job), shared_names(job)
        missing = sorted(wanted - remote.kinds.keys())
        if missing:
            raise NameError(f"the candidate defines no {', '.join(missing)}")
        exec(compile(job["prelude"], "<prelude>", "exec", dont_inherit=True), space)
        if first not in dir(builtins):
            modules = {name: library_module(name, job["code"]) for name in wanted}
            for name, module in modules.items():
                if module is None:
                    space.share(name)
                else:
                    space[name] = module
        exec(compile(job["code"], TESTS, "exec", dont_inherit=True), space)
        if entry_point is not None:
            plain = entry_point == first
            space["check"](remote.stand_in(first) if plain else RemoteFunction(remote, None, entry_point))

    remote.begin(job["name"])
    try:
        body()
    except BaseException as error:
        print_error()
        send_outcome(
            wire, remote, job, job["name"], error, describe(error) if str(error) else _assertion(error, job["code"])
        )
    else:
        send_outcome(wire, remote, job, job["name"], None)


class LiveNames(dict[str, Any]):
    """The names of test code that shares them with the program: each of the program's is what it is now."""

    def __init__(self, remote: Remote) -> None:
        super().__init__(__name__="tests")
        self._live: set[str] = set()
        """Those of the program's values that it may set anew."""
        self._shared: set[str] = set()
        """The program's."""
        self._remote = remote

    def share(self, name: str) -> None:
        """Have a name of the program's. A list that is too long to be had anew each time is the test's own copy."""
        value = self._remote.stand_in(name)
        self[name] = value
        self._shared.add(name)
        too_long = type(value) in (*CHANGEABLE, tuple) and len(value) > LARGEST_MIRRORED
        if self._remote.kinds[name] == "value" and not too_long:
            self._live.add(name)

    def __getitem__(self, name: str) -> Any:
        known = super().__getitem__(name)
        if name not in self._live and not (name in self._shared and name in self._remote.live):
            return known
        value = self._remote.stand_in(name)
        if type(value) is type(known) and type(value) in ATOMS and value == known:
            return known  # the same object, as in one process
        self[name] = value
        return value


def _assertion(error: BaseException, code: str) -> str:
    """Return the lines of the test code that an exception without a text comes from."""
    import ast
    import traceback

    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == TESTS]
    tree = ast.parse(code)
    found = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and node.lineno == (lines or [0])[-1]]
    shown = ast.get_source_segment(code, found[-1]) if found else None
    return f"{type(error).__name__}: {shown}"[:2000] if shown else type(error).__name__
