"""State of a process that tests set and a program reads: what they set on their side is set on the candidate's too.

    os.environ, monkeypatch.setenv          what differs from what was there, without pytest's own
    sys.argv                                once it is another than at first
    random.seed, numpy.random.seed          with the arguments of the last call
    decimal.getcontext()                    its precision and rounding
    patch("sys.stdin", StringIO(...))       which the program reads from there
    patch("builtins.input"), ("time.sleep") the function that is there now, which is called back

It goes with the next request, where it has changed, and only if the tests' code names it: looking costs time. Nothing goes the other way.
"""

from __future__ import annotations

import importlib
import io
import os
import random
import sys
from collections.abc import Callable
from typing import Any

PATCHED = {
    "builtins": ("input", "print"),
    "time": ("sleep", "time", "monotonic", "perf_counter"),
    "random": ("random", "randint", "randrange", "choice", "choices", "uniform", "shuffle", "sample"),
    "os": ("getenv", "getcwd", "urandom"),
    "getpass": ("getpass",),
}
"""Functions of Python's that give and take plain data, so that what a test puts in their place can be called back."""
NAMES = {
    "environ": ("environ", "setenv", "delenv", "getenv"),
    "argv": ("argv",),
    "stdin": ("stdin",),
    "decimal": ("getcontext", "localcontext", "setcontext"),
}
"""Words of the tests' code by which each kind of state is set."""


class TestsState:
    """What the tests have set, and what the candidate has been told of it. `encode` gives a value as it is sent."""

    __test__ = False

    def __init__(self, code: str, encode: Callable[[Any], Any]) -> None:
        self._encode = encode
        self._environ = dict(os.environ)
        self._argv = list(sys.argv)
        self._seeds: dict[str, list[Any]] = {}
        self._told: dict[str, Any] = {}
        looks: dict[str, Callable[[], Any]] = {
            "environ": self._changed_environ,
            "argv": lambda: sys.argv[1:] if sys.argv != self._argv else None,
            "decimal": _decimal_context,
            "stdin": lambda: encode(sys.stdin) if isinstance(sys.stdin, io.StringIO) else None,
        }
        self._looks = {name: looks[name] for name, words in NAMES.items() if any(word in code for word in words)}
        self._originals = {
            (module, name): getattr(importlib.import_module(module), name)
            for module, names in PATCHED.items()
            if module in code
            for name in names
            if name in code
        }
        if "seed" in code:
            self._watch("random", random)
            if "numpy" in code:
                try:
                    self._watch("numpy.random", importlib.import_module("numpy.random"))
                except ImportError:  # the tests say so themselves
                    pass
        self._told = self._state()

    def changes(self) -> dict[str, Any]:
        """Return what the next request tells the candidate."""
        if not (self._looks or self._originals or self._seeds):
            return {}
        state = self._state()
        changed = {name: value for name, value in state.items() if value != self._told.get(name)}
        self._told = state
        if self._seeds:
            changed["seeds"], self._seeds = self._seeds, {}
        return {"state": changed} if changed else {}

    def forget(self) -> None:
        """Tell all of it again: there is a new process."""
        self._told = {}

    def _state(self) -> dict[str, Any]:
        state = {name: look() for name, look in self._looks.items()}
        for (module, name), original in self._originals.items():
            there = getattr(sys.modules[module], name, original)
            state[f"{module}.{name}"] = None if there is original or not callable(there) else self._encode(there)
        return state

    def _changed_environ(self) -> dict[str, str | None]:
        names = self._environ.keys() | os.environ.keys()
        changed = {name: os.environ.get(name) for name in names if os.environ.get(name) != self._environ.get(name)}
        # pytest names the test that runs, and with it what it expects.
        return {name: value for name, value in changed.items() if not name.startswith("PYTEST")}

    def _watch(self, name: str, module: Any) -> None:
        seed = module.seed

        def noted(*args: Any, **kwargs: Any) -> Any:
            self._seeds[name] = [self._encode([*args, *kwargs.values()])]
            return seed(*args, **kwargs)

        module.seed = noted


def _decimal_context() -> list[Any]:
    import decimal

    context = decimal.getcontext()
    return [context.prec, context.rounding]


class CandidatesState:
    """The same on the candidate's side. `decode` gives a value that was sent."""

    def __init__(self, decode: Callable[[Any], Any]) -> None:
        self._decode = decode
        self._environ = dict(os.environ)
        self._stdin = sys.stdin
        self._originals: dict[str, Any] = {}

    def set(self, state: dict[str, Any]) -> None:
        """Set what a request tells."""
        for name, value in state.items():
            if name == "environ":
                wanted = {**self._environ, **value}
                os.environ.clear()
                os.environ.update({key: text for key, text in wanted.items() if text is not None})
            elif name == "argv":
                sys.argv[1:] = [] if value is None else value
            elif name == "stdin":
                sys.stdin = self._stdin if value is None else self._decode(value)
            elif name == "decimal":
                import decimal

                decimal.getcontext().prec, decimal.getcontext().rounding = value
            elif name == "seeds":
                for module, (arguments,) in value.items():
                    importlib.import_module(module).seed(*self._decode(arguments))
            else:
                module, _, function = name.rpartition(".")
                home = importlib.import_module(module)
                original = self._originals.setdefault(name, getattr(home, function))
                setattr(home, function, original if value is None else self._decode(value))
