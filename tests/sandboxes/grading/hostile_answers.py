"""Answers that cost whoever reads them more than they are worth, and what they cost the host."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

from agentrl.sandboxes import AssertTest, CallTest, Comparison, IOTest, Test, TestFile

WIDE = list(range(20_000))
"""An expected value so long that its answers are compared in a process of their own."""

_RAW = """
import os
P = 2**61 - 1
def raw(answer):
    '''Write to the host whatever this is, past the program that would encode an answer.'''
    view = memoryview(answer)
    for fd in range(3, 10):
        try:
            while view:
                view = view[os.write(fd, view):]
        except OSError:
            pass
    os._exit(0)
def collide(kind, count):
    return ('{"ok": {"%s": [' % kind + ', '.join('{"int": "%s"}' % hex(k * P) for k in range(1, count)) + ']}}\\n').encode()
"""

ANSWERS = {
    "five million empty lists": r"""b'{"ok": [' + b'[],' * 5_000_000 + b'[]]}\n'""",
    "empty lists, as many as may pass": r"""b'{"ok": [' + b'[],' * 2_600_000 + b'[]]}\n'""",
    "empty lists, fewer than an item a byte": r"""b'{"ok": [' + b'[],' * 80_000 + b'[]]}\n'""",
    "an integer of seven million digits": r"""b'{"ok": ' + b'7' * 7_000_000 + b'}\n'""",
    "a hexadecimal integer of seven million digits": r"""b'{"ok": {"int": "0x' + b'7' * 7_000_000 + b'"}}\n'""",
    "a float of a million digits": r"""b'{"ok": 0.' + b'7' * 1_000_000 + b'}\n'""",
    "100,000 lists in each other": r"""b'{"ok": ' + b'[' * 100_000 + b']' * 100_000 + b'}\n'""",
    "5,000 lists in each other": r"""b'{"ok": ' + b'[' * 5_000 + b']' * 5_000 + b'}\n'""",
    "a million brackets that open": r"""b'{"ok": ' + b'[' * 1_000_000 + b'\n'""",
    "a set of 20,000 integers of one hash": "collide('set', 20_000)",
    "a set of 500 integers of one hash": "collide('set', 500)",
    "a frozenset of 5,000 integers of one hash": "collide('frozenset', 5_000)",
    "a dict of 20,000 keys of one hash": r"""(
        '{"ok": {"dict": [' + ', '.join('[{"int": "%s"}, 1]' % hex(k * P) for k in range(1, 20_000)) + ']}}\n').encode()""",
    "a long range": r"""b'{"ok": {"range": [0, 1000000000000000000, 1]}}\n'""",
    "a string of escapes": r"""b'{"ok": "' + b'\\u00e9' * 1_200_000 + b'"}\n'""",
    "a string of escaped quotes": r"""b'{"ok": "' + b'\\"\\\\' * 1_700_000 + b'"}\n'""",
    "a list of a million million items, each level twice the next": """(
        '{"ok": [{"item": [1, 0, [0, 0]]}' + ''.join(
            ', {"item": [1, %d, [{"item": [1, %d, 0]}, {"item": [1, %d, 0]}]]}' % (k, k - 1, k - 1) for k in range(1, 40)
        ) + ']}\\n').encode()""",
    "a list of two million items, each level twice the next": """(
        '{"ok": [{"shared": [0, [0, 0]]}' + ''.join(
            ', {"shared": [%d, [{"again": %d}, {"again": %d}]]}' % (k, k - 1, k - 1) for k in range(1, 19)
        ) + ']}\\n').encode()""",
    "seven megabytes of spaces": r"""b'{"ok": ' + b' ' * 7_000_000 + b'1}\n'""",
    "seven megabytes that are no UTF-8": r"""b'\xff' * 7_000_000 + b'\n'""",
    "a megabyte of NUL": r"""b'\0' * 1_000_000 + b'\n'""",
    "a line without an end": r"""b'{"ok": [' + b'1,' * 4_500_000""",
    "a million lines": r"""b'\n' * 1_000_000""",
    "an exception with five megabytes to say": r"""b'{"raised": {"classes": ["E"], "text": "' + b'x' * 5_000_000 + b'"}}\n'""",
    "an exception with four megabytes of other letters to say": r"""b'{"raised": {"classes": ["E"], "text": "' + '\u00e9'.encode() * 4_100_000 + b'"}}\n'""",
    "an exception of deep lists": r"""b'{"raised": ' + b'[' * 100_000 + b'\n'""",
    "an exception with half a surrogate pair": r"""b'{"raised": {"classes": ["E\\ud800"], "text": "\\udc00\\u0000"}}\n'""",
}
"""By what it is: the expression of the bytes that the candidate writes to the host for an answer."""

OUTPUTS = {
    "ten million lines": r"""b'\n' * 10_000_000""",
    "words of one letter": r"""b'a ' * 1_900_000""",
    "one word": r"""b'7' * 3_900_000""",
    "spaces": r"""b' ' * 3_900_000""",
    "NUL": r"""b'\0' * 3_900_000""",
    "no UTF-8": r"""b'\xff' * 3_900_000""",
    "halves of surrogate pairs": r"""b'\xed\xa0\x80' * 1_300_000""",
    "long numbers": r"""(b'1' * 399 + b'x ') * 9_000""",
    "digits of another script": r"""'\u0661 '.encode() * 1_300_000""",
}
"""By what it is: the expression of the bytes that a program prints."""


def answering(answer: str) -> str:
    """A candidate that answers a call of `f` with these bytes."""
    return f"{_RAW}\ndef f(*args): raw({dedent(answer)})\n"


def printing(output: str) -> str:
    """A program that prints these bytes."""
    return f"import sys\nsys.stdout.buffer.write({output})\n"


def call_tests() -> dict[str, Test]:
    """Every kind of test that calls a function."""
    return {
        "call": CallTest(function="f", expected=3),
        "call, long": CallTest(function="f", expected=WIDE),
        "call, in place": CallTest(function="f", args=[[1]], expected=[2], argument=0),
        "assert": AssertTest(code="assert f() == 3"),
        "unittest": TestFile(
            framework="unittest",
            code="import unittest, solution\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(solution.f(), 3)",
        ),
    }


def output_tests() -> dict[str, Test]:
    """Every comparison."""
    return {
        "tokens": IOTest(stdout="1 2 3"),
        "exact": IOTest(stdout="1 2 3\n" * 10_000, compare=Comparison(exact=True)),
        "floats": IOTest(stdout="1.5 2 3", compare=Comparison(absolute=1e-6)),
    }


@dataclass
class Cost:
    """What something cost this process."""

    stall_s: float = 0.0
    """The longest step of the event loop, in CPU seconds of its thread: so long nothing else could run."""
    memory_bytes: int = 0
    """Peak resident memory above what it was before."""


@contextmanager
def measured() -> Iterator[Cost]:
    """What the block costs, in an asyncio loop."""
    cost = Cost()
    original = asyncio.Handle._run

    def timed(handle: Any) -> None:
        started = time.thread_time()
        original(handle)
        cost.stall_s = max(cost.stall_s, time.thread_time() - started)

    gc.freeze()  # to look through what other tests have left takes 100 ms, whenever it is due
    Path("/proc/self/clear_refs").write_text("5")  # begins a new peak
    before = _status("VmRSS")
    asyncio.Handle._run = timed  # type: ignore[method-assign]
    try:
        yield cost
    finally:
        asyncio.Handle._run = original  # type: ignore[method-assign]
        gc.unfreeze()
        cost.memory_bytes = max(0, _status("VmHWM") - before)


def _status(name: str, pid: int | str = "self") -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)
