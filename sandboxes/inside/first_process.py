"""The first process that a user of a sandbox gets: starts programs under limits, watches them, and reaps what they leave.

The pristine process (`pristine.py`) forked it, into namespaces of its own.
It talks to the host over its own stdin and stdout, which no program in the sandbox can reach: it is process 1, which the kernel
shields from signals of its own namespace, and it is not dumpable, so that /proc/1/fd, /proc/1/mem and ptrace are shut too.

    host ── S start, I input, E end of input, K kill, W write, R read, P pack, U unpack, C clear, Z reset ──►  sandbox
         ◄── H hello, r ready, o stdout, e stderr, x ended, a answer, f failure ────────────────────────────

A frame is its kind (1 byte), the number of the request (4) and the length of what follows (4).
A program in Python is forked from this interpreter, already warm. A reset ends this process, and with it everything that its
user had; what the host sends after that is read by the next first process, so none of it may be read here.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from typing import Any

from agentrl.sandboxes.inside.files import pack, read, unpack, wipe, write
from agentrl.sandboxes.inside.inbox import Inbox, Payload, frame, split_head
from agentrl.sandboxes.inside.processes import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    Filter,
    SeenTime,
    install_filter,
    kill_all,
    kill_group,
    libc,
    others,
    proportional_memory,
    resident_memory,
    signal_others,
    statistics,
    waited_cpu,
)
from agentrl.sandboxes.inside.program_start import become, make_stdin
from agentrl.sandboxes.inside.python_program import Program
from agentrl.sandboxes.inside.running import Running
from agentrl.sandboxes.inside.usage import OutOfMemoryKills, Usage

TICK_S = 0.01
"""How often memory and CPU time are looked at."""
RESET = 64
"""The exit code that asks for another first process."""


class FirstProcess:
    """The loop of the first process, and what it knows of the programs that run."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.work: str = config["work"]
        self.folders: list[str] = [path for path in [self.work, *config["scratch"]] if os.path.isdir(path)]
        # RLIMIT_NPROC counts this process too, and the pristine one where they share a user.
        self.own_processes = 1 if os.getuid() != config["pristine_uid"] else 2
        self.filter: Filter | None = None if config["counted"] else config["filter"]
        self.signals: list[int] = config["signals"]
        self.usage: Usage | None = config["usage"]
        self.seen = SeenTime()
        self.memory_base = 0
        self.running: dict[int, Running] = {}
        self.waiting: dict[int, tuple[Payload, float]] = {}
        """Runs that wait for their turn: what was asked for, and when."""
        self.poller = select.poll()
        self.fds: dict[int, Running] = {}
        self.peak = 0
        self.kernel_kills: OutOfMemoryKills = config["kills"]
        self.oom_kills = self.kernel_kills.count()
        self.inbox = Inbox(0)
        self.greeting_ms: float | None = config["greeting_ms"]
        """How long the host's first message may take. An engine that is killed while it starts a sandbox knows nothing of it afterwards."""
        self.outbox = bytearray()
        self.next_look = 0.0

    # -- the loop ------------------------------------------------------------------------------------------------

    def serve(self) -> Program | None:
        """Serve the host until it hangs up, or has never said a word. In a forked child, return the Python program to run."""
        self.send(b"r", 0, json.dumps({"priority": os.getpriority(os.PRIO_PROCESS, 0)}).encode())
        self.poller.register(0, select.POLLIN)
        while True:
            events = self.poller.poll(TICK_S * 1000 if self.running else 0 if self.waiting else self.greeting_ms)
            if not events and self.greeting_ms is not None:
                return None
            for fd, _ in events:
                if fd == 0:
                    if not self.inbox.read():
                        kill_all()
                        return None
                    if (received := self.inbox.next_frame()) is not None:
                        self.greeting_ms = None
                        program = self.handle(*received)
                        if program is not None:
                            return program
                elif (running := self.fds.get(fd)) is not None:
                    self.pump(running, fd)
            if self.running:
                self.watch()
            elif self.waiting:
                number = next(iter(self.waiting))
                program = self.handle(b"S", number, *self.waiting.pop(number))
                if program is not None:
                    return program

    def send(self, kind: bytes, number: int, payload: bytes = b"", *, later: bool = False) -> None:
        """Send a frame: at once, or with the next one or the next look, because every message takes the host some of its time."""
        self.outbox += frame(kind, number, payload)
        if not later or len(self.outbox) >= 1 << 18:
            self.flush()

    def flush(self) -> None:
        """Send what waits to be sent."""
        with memoryview(self.outbox) as view:
            sent = 0
            while sent < len(view):
                sent += os.write(1, view[sent:])
        self.outbox.clear()

    def handle(self, kind: bytes, number: int, payload: Payload, asked_at: float | None = None) -> Program | None:
        """Do what one frame of the host's asks for. In a forked child, return the Python program to run."""
        try:
            if kind == b"S":
                return self.start(number, payload, asked_at)
            if kind in b"IEK":
                self.talk(kind, number, payload[:])
            elif kind == b"W":
                head, data = split_head(payload)
                write(self.work, **json.loads(head), data=data)
                self.send(b"a", number)
            elif kind == b"R":
                self.send(b"a", number, read(self.work, payload[:]))
            elif kind == b"P":
                self.send(b"a", number, pack(self.work, **json.loads(payload[:])))
            elif kind == b"U":
                wipe(self.folders)
                unpack(self.work, payload[:])
                self.send(b"a", number)
            elif kind == b"C":
                wipe(self.folders)
                self.send(b"a", number)
            elif kind == b"Z":
                if os.getpid() != 1:  # there are no namespaces that would end with this process
                    kill_all()
                    wipe(self.folders)
                os._exit(RESET)
        except Exception as error:
            self.send(b"f", number, f"{type(error).__name__}: {error}".encode())
        return None

    # -- programs ------------------------------------------------------------------------------------------------

    def start(self, number: int, payload: Payload, asked_at: float | None) -> Program | None:
        """Start a program, or have it wait for its turn. In a forked child, return the Python program to run."""
        head, data = split_head(payload)
        request = json.loads(head)
        if request.get("in_turn"):
            now = time.monotonic()
            if asked_at is None and (self.running or self.waiting):
                self.waiting[number] = payload, now
                return None
            left_s = request["within_s"] - (now - (asked_at or now))
            request["limits"]["timeout_s"] = min(request["limits"]["timeout_s"], max(0.0, left_s))
        if (files := request["only_files"]) is not None:
            data = self.lay_out(files, data)
        cpu_base = self.cpu_used()
        child_stdin, parent_stdin = make_stdin(interactive=request["interactive"], data=data)
        if not self.running:
            self.peak = 0
            self.next_look = time.monotonic() + TICK_S
            if self.usage is not None:
                self.memory_base = self.usage.memory_bytes(self.folders, 0)
        out_r, out_w = os.pipe()
        err_r, err_w = os.pipe()
        pid = os.fork()
        if pid == 0:
            return become(
                request,
                (child_stdin, out_w, err_w),
                signals=self.signals,
                own_processes=self.own_processes,
                filter_=self.filter,
            )
        for fd in (child_stdin, out_w, err_w):
            os.close(fd)
        pipes = {out_r: b"o", err_r: b"e"}
        running = Running(number, pid, request, pipes=pipes, stdin=parent_stdin, cpu_base=cpu_base)
        self.running[number] = running
        for fd in pipes:
            os.set_blocking(fd, False)
        for fd in (running.pidfd, *pipes):
            self.fds[fd] = running
            self.poller.register(fd, select.POLLIN)
        return None

    def lay_out(self, files: list[tuple[str, int]], data: memoryview) -> memoryview:
        """Have these files alone, whose contents `data` begins with; return what follows them."""
        wipe(self.folders)
        for path, length in files:
            write(self.work, path, 0o644, data[:length])
            data = data[length:]
        return data

    def talk(self, kind: bytes, number: int, payload: bytes) -> None:
        """Pass input to a program, end its input, or kill it."""
        if kind == b"K" and self.waiting.pop(number, None) is not None:
            self.report(number, end_reason="killed")
        running = self.running.get(number)
        if running is None:
            return
        if kind == b"K":
            self.stop(running, "killed")
        else:
            running.pending += payload
            running.input_ended = running.input_ended or kind == b"E"
            self.feed(running)

    def feed(self, running: Running) -> None:
        """Write what waits for a program's input, as far as its pipe takes it."""
        if running.stdin is None:
            return
        try:
            while running.pending:
                running.pending = running.pending[os.write(running.stdin, running.pending) :]
        except BlockingIOError:
            self.fds[running.stdin] = running
            self.poller.register(running.stdin, select.POLLOUT)
            return
        except BrokenPipeError:
            running.pending, running.input_ended = b"", True
        if running.stdin in self.fds:
            del self.fds[running.stdin]
            self.poller.unregister(running.stdin)
        if running.input_ended:
            os.close(running.stdin)
            running.stdin = None

    def pump(self, running: Running, fd: int) -> None:
        """Do what is to be done where a descriptor of a program's is ready."""
        if fd == running.pidfd:
            self.finish(running)
        elif fd == running.stdin:
            self.feed(running)
        else:
            self.drain(running, fd)

    def drain(self, running: Running, fd: int) -> None:
        """Pass on what a pipe holds; stop the program at its output limit."""
        while True:
            try:
                data = os.read(fd, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                self.close_pipe(running, fd)
                return
            room = running.limits["output_bytes"] - running.output
            running.output += len(data)
            if room > 0:
                self.send(running.pipes[fd], running.number, data[:room], later=not running.interactive)
            if len(data) > room:
                self.stop(running, "output_limit")
                self.close_pipe(running, fd)
                return
            if len(data) < 1 << 16:
                return

    def close_pipe(self, running: Running, fd: int) -> None:
        """Close a pipe of a program's output."""
        del running.pipes[fd]
        del self.fds[fd]
        self.poller.unregister(fd)
        os.close(fd)

    def watch(self) -> None:
        """Hold the running programs to memory, CPU time and wall-clock time."""
        now = time.monotonic()
        if now < self.next_look:
            return
        late_s = now - self.next_look
        self.next_look = now + TICK_S
        self.flush()
        self.reap_orphans()
        pids = others()
        found = statistics(pids)
        memory, cpu = resident_memory(found), self.cpu_used(found)
        limit = min(running.limits["memory_bytes"] for running in self.running.values())
        if memory > limit:
            memory = proportional_memory(pids)
        if self.usage is not None:  # it sees what no process's size shows
            known = min(limit, max(self.peak, memory))
            memory = max(memory, self.usage.memory_bytes(self.folders, self.memory_base + known) - self.memory_base)
        self.peak = max(self.peak, memory)
        for running in list(self.running.values()):
            limits = running.limits
            if memory > limits["memory_bytes"]:
                self.stop(running, "out_of_memory")
            elif (limits["cpu_s"] is not None and cpu - running.cpu_base > limits["cpu_s"]) or running.over(
                now, late_s
            ):
                self.stop(running, "timeout")

    def cpu_used(self, found: dict[int, list[bytes]] | None = None) -> float:
        """CPU seconds of everything that ran in this sandbox. `found` is what is known of its processes."""
        if self.usage is not None:
            return self.usage.cpu_s()
        found = statistics(others()) if found is None else found
        return max(waited_cpu(found), self.seen.cpu_s(found))

    def stop(self, running: Running, why: str) -> None:
        """Kill a program, and note why."""
        running.ended_by = running.ended_by or why
        if len(self.running) == 1:
            signal_others(signal.SIGKILL)
        else:
            kill_group(running.pid)

    def reap_orphans(self) -> None:
        """Reap what the programs left to process 1. The programs' own processes are reaped when they are reported."""
        ours = {running.pid for running in self.running.values()}
        try:
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and found.si_pid not in ours:
                os.waitpid(found.si_pid, 0)
        except ChildProcessError:
            pass

    def finish(self, running: Running) -> None:
        """Collect what the program's process wrote before its end, end what it left behind, and report."""
        ended_pid, status, usage = os.wait4(running.pid, os.WNOHANG)
        if not ended_pid:
            return  # the event was for a descriptor that has another owner by now
        duration_s = time.monotonic() - running.started
        oom_kills = self.kernel_kills.count()
        for fd in list(running.pipes):
            self.drain(running, fd)
        if len(self.running) == 1:
            kill_all()
        else:
            kill_group(running.pid)
        for end in [*running.pipes, running.stdin, running.pidfd]:
            if end is not None:
                if self.fds.pop(end, None) is not None:
                    self.poller.unregister(end)
                os.close(end)
        code = os.waitstatus_to_exitcode(status)
        reason = running.ended_by or ("exit" if code >= 0 else "signal")
        if reason == "signal" and code == -signal.SIGKILL and oom_kills > self.oom_kills:
            reason = "out_of_memory"
        if reason == "signal" and code == -signal.SIGXCPU:
            reason = "timeout"
        self.oom_kills = oom_kills
        del self.running[running.number]
        self.report(
            running.number,
            reason,
            code,
            duration_s=duration_s,
            cpu_s=self.cpu_used() - running.cpu_base,
            peak_memory_bytes=max(self.peak, usage.ru_maxrss * 1024),
        )

    def report(
        self,
        number: int,
        end_reason: str,
        code: int | None = None,
        *,
        duration_s: float = 0.0,
        cpu_s: float = 0.0,
        peak_memory_bytes: int = 0,
    ) -> None:
        """Say how a run ended; with the next one's end where one waits, which is soon or a look away."""
        report = {
            "exit_code": code if code is not None and code >= 0 else None,
            "signal": -code if code is not None and code < 0 else None,
            "end_reason": end_reason,
            "duration_s": duration_s,
            "cpu_s": cpu_s,
            "peak_memory_bytes": peak_memory_bytes,
        }
        self.send(b"x", number, json.dumps(report).encode(), later=bool(self.waiting))


def serve(config: dict[str, Any]) -> Program | None:
    """Serve the host; in a forked child, return the Python program to run."""
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.chdir(config["work"])
    if config["counted"]:
        # Once for all programs: to make a filter, and to free it, takes a millisecond. Else this process needs what they may not have:
        # files of memory, for their input.
        install_filter(config["filter"])
    return FirstProcess(config).serve()
