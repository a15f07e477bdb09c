"""Lines between the tests and the host come whole, whatever a test's signals do meanwhile."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest

from agentrl.sandboxes.inside.wire import Wire

SECRET = b"secret"


class AlarmError(Exception):
    pass


@pytest.fixture
def host() -> Iterator[tuple[int, int]]:
    """The host's ends of the pipes of a process that runs tests: where it writes to, and what it reads."""
    kept = [os.dup(number) for number in (0, 1, 2)]
    theirs, to_tests = os.pipe()
    from_tests, ours = os.pipe()
    os.dup2(theirs, 0)
    os.dup2(ours, 1)
    os.close(theirs)
    os.close(ours)
    os.write(to_tests, SECRET + b"\n")
    try:
        yield to_tests, from_tests
    finally:
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.close(to_tests)
        os.close(from_tests)


@pytest.fixture
def wire(host: tuple[int, int]) -> Iterator[Wire]:
    wire = Wire()
    yield wire
    for descriptor in (wire._input, wire._out, wire._turn):
        os.close(descriptor)


@pytest.fixture
def alarms() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise AlarmError

    before = signal.signal(signal.SIGALRM, ring)
    yield
    with suppress(AlarmError):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarms")
def test_an_alarm_that_raises_costs_no_line(host: tuple[int, int], wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes while a line is read, and while one is written."""
    to_tests, from_tests = host
    read, write = os.read, os.write

    def read_at_a_bad_moment(descriptor: int, count: int) -> bytes:
        data = read(descriptor, count)
        signal.raise_signal(signal.SIGALRM)
        return data

    def write_at_a_bad_moment(descriptor: int, data: bytes) -> int:
        written = write(descriptor, bytes(data)[:3])
        signal.raise_signal(signal.SIGALRM)
        return written

    for tag in (b"1", b"2", b"3"):
        write(to_tests, b"v" + tag + b' {"ok": 1}\n')
        with monkeypatch.context() as moment:
            moment.setattr(os, "read", read_at_a_bad_moment)
            with suppress(AlarmError):
                wire.receive(tag)
        wire._waiting.add(tag)
    for tag in (b"2", b"3"):
        write(to_tests, b"v" + tag + b' {"ok": 2}\n')
        assert wire.receive(tag)["ok"] in (1, 2)
    with monkeypatch.context() as moment:
        moment.setattr(os, "write", write_at_a_bad_moment)
        with suppress(AlarmError):
            wire.send(b"m", "whole")
    assert read(from_tests, 100) == b'm"whole"\n'


def test_an_empty_line_is_no_end(host: tuple[int, int], wire: Wire) -> None:
    to_tests, _ = host
    os.write(to_tests, b'\n\nv1 {"ok": 7}\n\n' + SECRET + json.dumps({"kind": "assert"}).encode() + b"\n")
    assert wire.receive(b"1") == {"ok": 7}
    assert wire.receive_job() == {"kind": "assert"}
