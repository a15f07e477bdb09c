"""One worker process as the main process sees it: the episodes in it, and how it was lost.

A worker is lost when its process ends, which it also does by itself when its event loop is blocked, or when nothing comes from it any more.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from agentrl.engine.client.followers import Follower
from agentrl.engine.client.sglang import SGLangEngine
from agentrl.errors import WorkerLostError
from agentrl.record.recorded_choice import Key
from agentrl.rollout.workers import protocol
from agentrl.store.call_log import EpisodeCallLog
from agentrl.store.outcome import Outcome
from agentrl.store.rows import CallRow
from agentrl.system.child_process import STATUS_TIMEOUT_S, Child, end_of_log, how_ended
from agentrl.system.failure_text import is_library
from agentrl.system.tasks import in_thread

LOG_TAIL_CHARACTERS = 4096


@dataclass(eq=False)
class RunningEpisode:
    """An episode in a worker. `calls` are its replies so far, and `call_log` puts new ones into the store."""

    calls: dict[Key, CallRow]
    call_log: EpisodeCallLog | None
    outcome: asyncio.Future[Outcome] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


@dataclass(eq=False)
class Worker:
    """A running worker. `WorkerPool` opens it."""

    name: str
    connection: protocol.Connection[protocol.ToMain]
    engine: SGLangEngine
    tasks: TaskGroup
    follower: Follower | None = None
    """The worker as the engine knows it, from when it takes episodes."""
    started: anyio.Event = field(default_factory=anyio.Event)
    lost: anyio.Event = field(default_factory=anyio.Event)
    reason: str = ""
    """The reason why it was lost."""
    metrics: dict[str, float] = field(default_factory=dict)
    episodes: dict[int, RunningEpisode] = field(default_factory=dict)
    _heard: bool = True

    async def run(self, frame: protocol.Run, episode: RunningEpisode) -> Outcome:
        """Run an episode.

        Raises:
            WorkerLostError: The worker is lost before the episode has ended.
        """
        self.episodes[frame.episode] = episode
        try:
            self.connection.send(frame)
            return await episode.outcome
        finally:
            del self.episodes[frame.episode]
            if episode.outcome.cancelled():
                self.connection.send(protocol.Cancel(frame.episode))

    def mark_lost(self, reason: str) -> None:
        """Note that the worker is lost, and wake what waits for it."""
        self.reason = self.reason or f"{self.name} {reason}"
        self.lost.set()
        self.started.set()
        for episode in self.episodes.values():
            if not episode.outcome.done():
                episode.outcome.set_exception(WorkerLostError(self.reason))

    async def serve(self, child: Child, log: Path, log_start: int, hang_timeout_s: float) -> None:
        """Do what the worker asks until it is gone, then note why: its log says it, from where it began to write there."""
        with suppress(KeyError):  # it names calls that it never sent
            async for frame in self.connection.frames():
                self._heard = True
                self._take(frame)
        how = "closed its connection, or sent what is no frame"
        with anyio.move_on_after(STATUS_TIMEOUT_S):
            how = how_ended(await child.wait())
        written = await in_thread(end_of_log, log, log_start)
        # As faulthandler begins, with the stacks of all threads after it.
        if re.search(r"^Timeout \(\d", written, re.MULTILINE):
            how = f"was blocked for {hang_timeout_s:g} s (`rollout.hang_timeout_s`) by {_blocking_line(written)}"
        tail = written[-LOG_TAIL_CHARACTERS:].strip()
        self.mark_lost(f"{how}\nthe end of its log {log}:\n{tail}")

    def _take(self, frame: protocol.ToMain) -> None:
        match frame:
            case protocol.SendCall(number, number_of_episode, call):
                committed = partial(self.connection.send, protocol.Committed(number))
                episode = self.episodes.get(number_of_episode)
                if episode is not None:
                    episode.calls[call.key] = call
                if episode is not None and episode.call_log is not None:
                    episode.call_log.enqueue(call, committed)
                else:
                    committed()  # of an episode that has ended, nothing is kept
            case protocol.EpisodeResult() if (episode := self.episodes.get(frame.episode)) is not None:
                if not episode.outcome.done():
                    episode.outcome.set_result(frame.outcome(episode.calls))
            case protocol.Report():
                self.started.set()
                self.metrics = frame.metrics
                if self.follower is not None:
                    self.engine.take_report(self.follower, frame.follower)
            case protocol.ServerLost():
                self.tasks.start_soon(self.engine.fleet.judge, frame.report, self.name)

    async def send_fleet(self) -> None:
        """Tell the worker about the fleet, now and whenever that changes."""
        while True:
            fleet = self.engine.state()
            self.connection.send(protocol.FleetChanged(fleet))
            await self.engine.fleet.followers.next_after(fleet.number)

    async def watch(self, silence_s: float) -> None:
        """Lose the worker when nothing comes from it: its process was stopped, or hangs where it cannot end."""
        while self._heard:
            self._heard = False
            await anyio.sleep(silence_s)
        self.mark_lost(f"sent nothing for {silence_s:g} s")


def _blocking_line(written: str) -> str:
    """Return the innermost line of the user's in the main thread, whose stack faulthandler writes last."""
    frames = re.findall(r'File "(.+)", line (\d+) in (.+)', written.rpartition("Thread ")[2])
    return next((f"{file}:{line} in {name}" for file, line, name in frames if not is_library(file)), "a library")
