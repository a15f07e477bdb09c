"""The first process of a sandbox: starts programs under limits, bounds their time, reaps what they leave, and resets the place.

It talks to the host over its own stdin and stdout, which no program in the sandbox can reach: it is process 1, which the kernel
shields from signals of its own namespace, and it is not dumpable, so that /proc/1/fd, /proc/1/mem and ptrace are shut too.

    host ── S start, I input, K kill, W write, R read, Z reset ──►  sandbox
         ◄── r ready, o stdout, e stderr, x ended, a answer, f failure ─────────────────────

A program in Python is forked from this interpreter, already warm. A reset kills every other process and empties the writable folders;
this process goes on. It runs with any Python from 3.10 on, so that every image with a Python can be a sandbox.
"""

from __future__ import annotations

import base64
import gc
import json
import math
import os
import selectors
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from agentrl.sandboxes.inside.files import read, wipe, write
from agentrl.sandboxes.inside.frameworks import import_framework
from agentrl.sandboxes.inside.inbox import Payload, frame, read_frame, split_head
from agentrl.sandboxes.inside.processes import (
    MB,
    count_memory_kills,
    install_filter,
    kill_all,
    kill_group,
    lock_down,
    reap,
)
from agentrl.sandboxes.inside.program import run_program, start_program

if TYPE_CHECKING:
    from agentrl.sandboxes.inside.modules import Library

HELD_BYTES = 1 << 18
"""So much output waits for the report of its program, to be sent with it: every message takes the host some of its time."""
NEARLY_ALL = 0.9
"""A program that fails with so much of its memory limit in use has failed for want of memory."""


@dataclass(eq=False)
class Running:
    """A program that was started and has not ended."""

    number: int
    pid: int
    request: dict[str, Any]
    pipes: dict[int, bytes]
    """Read end -> kind of frame."""
    stdin: int | None
    """Write end of the pipe to its input, until that is closed."""
    pending: memoryview
    """Input that the pipe has not taken yet."""
    input_ended: bool
    memory_kills: int
    held: bytearray = field(default_factory=bytearray)
    """Frames of its output that are not sent yet."""
    started: float = field(default_factory=time.monotonic)
    heard: float = math.inf
    """When it has printed something on standard output for the last time; before the first, it may take its time."""
    output: int = 0
    orphans_cpu_s: float = 0.0
    ended_by: str | None = None

    @property
    def due(self) -> float:
        """Return when its time is up: in all, or without another output."""
        return float(min(self.started + self.request["limits"]["timeout_s"], self.heard + self.request["silence_s"]))


class FirstProcess:
    """The loop of the first process, and what it knows of the programs that run."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.folders: list[str] = [path for path in config["folders"] if os.access(path, os.W_OK)]
        self.counted: bool = config["counted"]
        wipe(self.folders)
        self.running: dict[int, Running] = {}
        self.selector = selectors.PollSelector()
        """What is to be called when there is something to read, or room to write, at a descriptor."""
        self.frameworks: set[str] = set()
        """Those that are imported, for all programs that are forked from then on."""
        self.ends, wake = os.pipe()
        """Readable when a child has ended."""
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    # -- the loop ------------------------------------------------------------------------------------------------

    def serve(self) -> dict[str, Any]:
        """Serve the host until it hangs up, which ends the process. In a forked child, return the Python program to run."""
        self.send(frame(b"r", 0, b""))
        self.selector.register(0, selectors.EVENT_READ, self.hear)
        self.selector.register(self.ends, selectors.EVENT_READ, self.collect)
        while True:
            for key, _ in self.selector.select(self.patience_s()):
                # What an event before it has closed is gone from the map.
                if self.selector.get_map().get(key.fd) is key and (program := key.data()) is not None:
                    return dict(program)
            self.end_late_runs()

    def patience_s(self) -> float | None:
        """Return how long to wait for events: until a run's time is up."""
        until = [running.due for running in self.running.values() if not running.ended_by]
        return max(0.0, min(until) - time.monotonic()) if until else None

    def send(self, data: bytes | bytearray) -> None:
        """Send frames to the host."""
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]

    def hear(self) -> dict[str, Any] | None:
        """Take in one frame of the host's. In a forked child, return the Python program to run."""
        if (received := read_frame(0)) is None:
            kill_all()
            os._exit(0)
        return self.handle(*received)

    def handle(self, kind: bytes, number: int, payload: Payload) -> dict[str, Any] | None:
        """Do what one frame of the host's asks for. In a forked child, return the Python program to run."""
        try:
            if kind == b"S":
                return self.start(number, payload)
            if kind in b"IK":
                self.talk(kind, number, payload[:])
                return None
            answer = b""
            if kind == b"W":
                head, data = split_head(payload)
                write(json.loads(head)["path"], data)
            elif kind == b"R":
                answer = read(**json.loads(payload[:]))
            else:
                self.reset()
            self.send(frame(b"a", number, answer))
        except Exception as error:
            self.send(frame(b"f", number, f"{type(error).__name__}: {error}".encode()))
        return None

    def reset(self) -> None:
        """End everything that the sandbox's user had."""
        for running in list(self.running.values()):
            self.forget(running)
        kill_all()
        wipe(self.folders)

    # -- programs ------------------------------------------------------------------------------------------------

    def start(self, number: int, payload: Payload) -> dict[str, Any] | None:
        """Start a program. In a forked child, return the Python program to run."""
        head, data = split_head(payload)
        request = json.loads(head)
        if (files := request["only_files"]) is not None:
            wipe(self.folders)
            for path, length in files:
                write(path, data[:length])
                data = data[length:]
        framework = request.get("framework")
        if framework and framework not in self.frameworks:  # pytest takes longer than most tests
            with suppress(ImportError):  # the runner will say so
                import_framework(framework, [])
            gc.freeze()
            self.frameworks.add(framework)
        (in_r, in_w), (out_r, out_w), (err_r, err_w) = os.pipe(), os.pipe(), os.pipe()
        memory_kills = count_memory_kills()
        pid = os.fork()
        if pid == 0:
            return start_program(request, (in_r, out_w, err_w), counted=self.counted)
        for fd in (in_r, out_w, err_w):
            os.close(fd)
        running = self.running[number] = Running(
            number=number,
            pid=pid,
            request=request,
            pipes={out_r: b"o", err_r: b"e"},
            stdin=in_w,
            pending=data,
            input_ended=not request["interactive"],
            memory_kills=memory_kills,
        )
        for fd in running.pipes:
            os.set_blocking(fd, False)
            self.selector.register(fd, selectors.EVENT_READ, partial(self.drain, running, fd))
        os.set_blocking(in_w, False)
        self.feed(running)
        return None

    def talk(self, kind: bytes, number: int, payload: bytes) -> None:
        """Pass input to a program, or kill it."""
        if (running := self.running.get(number)) is None:
            return
        if kind == b"K":
            self.stop(running, "killed")
        else:
            running.pending = memoryview(bytes(running.pending) + payload)
            self.feed(running)

    def feed(self, running: Running) -> None:
        """Write what waits for a program's input, as far as its pipe takes it."""
        if running.stdin is None:
            return
        try:
            while running.pending:
                running.pending = running.pending[os.write(running.stdin, running.pending) :]
        except BlockingIOError:
            with suppress(KeyError):  # it waits already
                self.selector.register(running.stdin, selectors.EVENT_WRITE, partial(self.feed, running))
            return
        except BrokenPipeError:
            running.pending, running.input_ended = memoryview(b""), True
        if running.input_ended:
            self.close(running.stdin)
            running.stdin = None
        else:
            with suppress(KeyError):
                self.selector.unregister(running.stdin)

    def drain(self, running: Running, fd: int) -> None:
        """Pass on what a pipe holds; stop the program at its output limit."""
        while True:
            try:
                data = os.read(fd, 1 << 16)
            except BlockingIOError:
                return
            room = int(running.request["limits"]["output_mb"] * MB) - running.output
            running.output += len(data)
            if running.pipes[fd] == b"o":
                running.heard = time.monotonic()
            if data and room > 0:
                running.held += frame(running.pipes[fd], running.number, data[:room])
                if running.request["interactive"] or len(running.held) >= HELD_BYTES:
                    self.send(running.held)
                    running.held.clear()
            if len(data) > room:
                self.stop(running, "output_limit")
            if not data or len(data) > room:
                del running.pipes[fd]
                self.close(fd)
                return

    def close(self, fd: int) -> None:
        """Close a descriptor, polled or not."""
        with suppress(KeyError):
            self.selector.unregister(fd)
        os.close(fd)

    # -- their ends ----------------------------------------------------------------------------------------------

    def end_late_runs(self) -> None:
        """Kill the programs whose time is up."""
        now = time.monotonic()
        for running in self.running.values():
            if now >= running.due and not running.ended_by:
                self.stop(running, "timeout")

    def stop(self, running: Running, why: str) -> None:
        """Kill a program, and note why."""
        running.ended_by = running.ended_by or why
        with suppress(ProcessLookupError):  # it may have ended, or not lead its group yet
            os.kill(running.pid, signal.SIGKILL)
        kill_group(running.pid)  # what it has put elsewhere ends with it, in `finish`

    def collect(self) -> None:
        """Reap the children that have ended: programs, and what programs left to this process."""
        os.read(self.ends, 1 << 12)
        programs = {running.pid: running for running in self.running.values()}
        for pid, status, usage in reap():
            cpu_s = usage.ru_utime + usage.ru_stime
            if pid in programs:
                self.finish(programs[pid], os.waitstatus_to_exitcode(status), cpu_s, usage.ru_maxrss * 1024)
            else:
                for running in self.running.values():
                    running.orphans_cpu_s += cpu_s

    def finish(self, running: Running, code: int, cpu_s: float, peak_bytes: int) -> None:
        """Pass on what the program's process wrote before its end, end what it left behind, and report."""
        duration_s = time.monotonic() - running.started
        for fd in list(running.pipes):
            self.drain(running, fd)
        cpu_s += running.orphans_cpu_s
        if len(self.running) == 1:
            cpu_s += kill_all()
        else:
            kill_group(running.pid)
        self.forget(running)
        limits, reason = running.request["limits"], running.ended_by
        if reason is None and limits["cpu_s"] is not None and (cpu_s > limits["cpu_s"] or code == -signal.SIGXCPU):
            reason = "timeout"
        starved = code and peak_bytes > NEARLY_ALL * limits["memory_mb"] * MB
        if reason is None and (starved or count_memory_kills() > running.memory_kills):
            reason = "out_of_memory"
        reason = reason or ("exit" if code >= 0 else "signal")
        report = {
            "exit_code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "end_reason": reason,
            "duration_s": duration_s,
            "cpu_s": cpu_s,
            "peak_memory_bytes": peak_bytes,
        }
        self.send(running.held + frame(b"x", running.number, json.dumps(report).encode()))

    def forget(self, running: Running) -> None:
        """Close what is left of a program here."""
        del self.running[running.number]
        for fd in [*running.pipes, *([] if running.stdin is None else [running.stdin])]:
            self.close(fd)


def main(library: Library) -> None:
    """Serve the host; in a forked child, run a Python program. A hosted sandbox runs one program alone."""
    config = json.loads(sys.argv[1])
    if "program" in config:
        run_program(config["program"], library)
    lock_down(config["uid"])
    os.chdir(config["work"])
    install_filter(base64.b64decode(config["filter"]))  # once for all programs
    compile("def f(x): return [x for x in x]", "", "exec")  # the compiler's own preparations take 2 ms, once
    gc.collect()
    gc.freeze()  # its memory stays shared with that of its children
    run_program(FirstProcess(config).serve(), library)
