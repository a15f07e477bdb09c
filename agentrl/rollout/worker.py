"""One worker process as the main process sees it: the episodes in it, the replies that it has kept, and how it was lost.

A worker is lost when its process ends or its event loop is blocked. Then it says whose fault that may be: `suspicion`.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from agentrl import errors
from agentrl.concurrency.background import background_tasks
from agentrl.concurrency.host import Child, Host
from agentrl.concurrency.threads import in_thread
from agentrl.config import RunConfig
from agentrl.engine.client.fleet_state import FleetState, FollowerReport, LossReport
from agentrl.engine.client.followers import Follower
from agentrl.engine.client.sglang import SGLangEngine
from agentrl.errors import ClusterError, UsageError, WorkerError, WorkerLostError, one_line
from agentrl.record.recorded_choice import Key
from agentrl.rollout.worker_channel import (
    GONE,
    Beat,
    Cancel,
    Channel,
    Done,
    EngineChanged,
    EpisodeEnded,
    Failed,
    Frame,
    Keep,
    Ready,
    Refused,
    Run,
    Start,
)
from agentrl.rollout.worker_log import WorkerLog, open_worker_log
from agentrl.store.call_log import EpisodeCallLog
from agentrl.store.outcome import Outcome
from agentrl.store.rows import CallRow, PackedRecord

START_TIMEOUT_S = 300.0
"""Bound of starting a worker, imports of the workflow included."""
NOTICE_TIMEOUT_S = 1.0
"""Bound of telling a worker that nobody waits for an episode any more."""
STACK_TIMEOUT_S = 2.0
"""How long a blocked worker may take to say what blocks it."""
MAX_STEP_S = 1.0
"""Longest time between two beats of a worker, and between two looks at them."""
CERTAIN, POSSIBLE = 2, 1
"""Suspicion of an episode that alone can have lost a worker, and of one of several."""


@dataclass(eq=False)
class EpisodeCalls:
    """The model calls of one attempt, in whichever workers it ran: it goes on in another one when it loses its own."""

    call_log: EpisodeCallLog | None
    calls: dict[Key, CallRow] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.call_log is not None:
            self.calls |= self.call_log.recorded

    def recorded(self) -> list[CallRow]:
        """Return the replies that need not be generated again."""
        return list(self.calls.values())

    def keep(self, call: CallRow, committed: Callable[[], object]) -> None:
        """Keep a reply. `committed` is called when it is safe."""
        self.calls[call.key] = call
        if self.call_log is not None:
            self.call_log.put(call, committed)
        else:
            committed()


@dataclass(eq=False)
class _RunningEpisode:
    calls: EpisodeCalls
    ended: anyio.Event = field(default_factory=anyio.Event)
    outcome: Outcome | None = None


@dataclass(eq=False)
class Worker:
    """A running worker. Open it with `open_worker`."""

    name: str
    channel: Channel
    engine: SGLangEngine
    follower: Follower
    """The worker, as the engine knows it."""
    tasks: TaskGroup
    lost: anyio.Event = field(default_factory=anyio.Event)
    reason: str = ""
    """The reason why it was lost."""
    interrupted: int = 0
    """Episodes that were in it when it was lost."""
    suspicion: dict[int, int] = field(default_factory=dict)
    """By episode: how likely it was that one that the worker was lost."""
    metrics: dict[str, float] = field(default_factory=dict)
    episodes: dict[int, _RunningEpisode] = field(default_factory=dict)
    _safe: list[int] = field(default_factory=list)
    """What the worker asked to keep, is safe, and was not told of yet."""
    _some_safe: anyio.Event = field(default_factory=anyio.Event)
    _silent_s: float = 0.0
    _silenced: anyio.Event = field(default_factory=anyio.Event)
    """Nothing more will come from it."""

    async def run(self, frame: Run, calls: EpisodeCalls) -> Outcome:
        """Run an episode.

        Args:
            frame: The episode as the worker is sent it.
            calls: Its calls of the model so far, to which the new ones are added.

        Raises:
            WorkerLostError: The worker is lost meanwhile.
            FrameTooLargeError: The task is too large to be sent.
        """
        episode = self.episodes[frame.episode] = _RunningEpisode(calls)
        try:
            if self.lost.is_set():
                raise WorkerLostError(self.reason)
            await self._send(frame)
            await episode.ended.wait()
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True), anyio.move_on_after(NOTICE_TIMEOUT_S):
                await self._send(Cancel(frame.episode))
            raise
        finally:
            del self.episodes[frame.episode]
        if episode.outcome is None:
            raise WorkerLostError(self.reason)
        return episode.outcome

    def lose(self, reason: str, guilty: int | None = None) -> None:
        """Note that the worker is lost, by the episode `guilty` where that is known."""
        if self.lost.is_set():
            return
        self.reason = f"{self.name} {reason}"
        suspects = list(self.episodes) if guilty is None else [guilty]
        self.suspicion = dict.fromkeys(suspects, CERTAIN if len(suspects) == 1 else POSSIBLE)
        self.interrupted = len(self.episodes)
        self.lost.set()
        for episode in self.episodes.values():
            episode.ended.set()

    async def serve(self) -> None:
        """Do what the worker asks, until it is gone."""
        while (frame := await self.channel.receive()) is not None:
            self._silent_s = 0.0
            match frame:
                case Beat():
                    self.metrics = frame.metrics
                case EpisodeEnded() if frame.episode in self.episodes:
                    if not self._end(self.episodes[frame.episode], frame.outcome):
                        break
                case Keep() if frame.episode in self.episodes:
                    self.episodes[frame.episode].calls.keep(frame.reply, partial(self._kept, frame.call))
                case Keep():
                    self.tasks.start_soon(self._send, Failed(frame.call, "the episode has ended"))
                case FollowerReport():
                    self.engine.take_report(self.follower, frame)
                case LossReport():
                    self.tasks.start_soon(self.engine.fleet.judge, frame, self.name)

        self._silenced.set()
        await anyio.sleep(STACK_TIMEOUT_S)  # that it ended says more, and is noticed meanwhile
        self.lose("can be understood no more")

    def _end(self, episode: _RunningEpisode, outcome: Outcome) -> bool:
        """Note an episode's outcome; False: it names calls that were not kept, so the worker cannot be understood."""
        assert isinstance(outcome.record, PackedRecord)
        try:
            outcome.record.find(episode.calls.calls)
        except KeyError:
            return False
        episode.outcome = outcome
        episode.ended.set()
        return True

    def _kept(self, call: int) -> None:
        """Note that what the worker asked to keep is safe."""
        self._safe.append(call)
        self._some_safe.set()

    async def tell_kept(self) -> None:
        """Tell the worker what is safe, again and again, all at once of what became so together."""
        while not self.lost.is_set():
            await self._some_safe.wait()
            done, self._safe, self._some_safe = Done(self._safe), [], anyio.Event()
            await self._send(done)

    async def _send(self, frame: Frame) -> None:
        """Send a frame to a worker that may be gone."""
        with suppress(*GONE):
            await self.channel.send(frame)

    async def tell_engine(self, number: int) -> None:
        """Tell the worker what changes in the engine, from the state of this number on."""
        while True:
            await self.engine.fleet.followers.next_after(number)
            state = self.engine.state()
            number = state.number
            await self.tell(state)

    async def tell(self, state: FleetState) -> None:
        """Tell the worker what the engine is now."""
        await self._send(EngineChanged(state))

    async def watch(self, child: Child, hang_timeout_s: float, log: WorkerLog) -> None:
        """Lose the worker when its event loop is blocked, saying where.

        Time is counted in steps of this loop: what holds up the main process is no fault of the worker's.
        """
        step_s = min(MAX_STEP_S, hang_timeout_s / 10)
        while self._silent_s < hang_timeout_s:
            await anyio.sleep(step_s)
            self._silent_s += step_s
        blocked = f"was blocked for {hang_timeout_s:g} s (`rollout.hang_timeout_s`)"
        try:
            await child.write_line("what blocks?")
            episode, where, stack = _stack(await child.read_line(STACK_TIMEOUT_S))
        except WorkerError:  # it runs no Python at all; what it runs is written to the log without any
            child.signal(signal.SIGUSR1)
            await anyio.sleep(STACK_TIMEOUT_S)
            self.lose(f"{blocked}, outside of Python\nthe end of its log {log.path}:\n{await log.tail()}")
        else:
            self.lose(f"{blocked} by {where}\n{stack}", episode)

    async def wait_for_end(self, child: Child, log: WorkerLog) -> None:
        """Lose the worker when its process ends."""
        status = await child.wait()
        with anyio.move_on_after(STACK_TIMEOUT_S):  # what it said before
            await self._silenced.wait()
        how = f"was killed by {_signal_name(-status)}" if status < 0 else f"ended with exit status {status}"
        self.lose(f"{how}\nthe end of its log {log.path}:\n{await log.tail()}")


def _stack(line: str) -> tuple[int | None, str, str]:
    """Return what a blocked worker says of itself: the episode, the place, the traceback.

    Raises:
        WorkerError: It is no such line: whatever runs in a worker can write into its pipes.
    """
    try:
        said = json.loads(line)
        episode, where, traceback = said["episode"], said["where"], said["traceback"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise WorkerError(f"it says {line[:100]!r}") from error
    return episode if isinstance(episode, int) else None, str(where), str(traceback)


def _signal_name(number: int) -> str:
    """Return the name of a signal, or its number: most of those for real time have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@asynccontextmanager
async def open_worker(
    name: str, host: Host, config: RunConfig, engine: SGLangEngine, log: Path, *, training: bool
) -> AsyncIterator[Worker]:
    """Hold a worker process for the length of the context.

    Args:
        name: What messages and logs call it.
        host: Where it runs.
        config: The run that its episodes are of.
        engine: The one whose servers answer their model calls.
        log: The file that it writes to.
        training: Whether what they record is to be trained on.

    Raises:
        WorkerError: It cannot be started.
        UsageError: It meets one itself, such as a workflow that cannot be loaded.
    """
    hang_timeout_s = config.rollout.hang_timeout_s
    async with AsyncExitStack() as stack:
        try:
            own_log = await in_thread(open_worker_log, log)
        except OSError as error:
            reason = one_line(error)
            raise WorkerError(f"the {name} cannot be started: {reason}; make room, or raise ulimit -n") from error
        command = [host.python, "-P", "-m", "agentrl.rollout.worker_process"]
        child = await stack.enter_async_context(
            host.child_process(name, command, log=log, error=WorkerError, stream=True)
        )
        assert child.stream is not None
        channel = Channel(child.stream)
        stack.push_async_callback(channel.stream.aclose)
        state = engine.state()
        start = Start(
            (await _config_on(host, config)).model_dump(mode="json"),
            state,
            sys.path,
            min(MAX_STEP_S, hang_timeout_s / 4),
            training,
        )
        await _start(name, channel, start, own_log)
        tasks = await stack.enter_async_context(background_tasks())
        follower = stack.enter_context(engine.fleet.followers.following(name))
        follower.number = state.number
        worker = Worker(name, channel, engine, follower, tasks)
        if (newer := engine.state()).number > state.number:  # before any episode
            await worker.tell(newer)
        tasks.start_soon(worker.tell_engine, newer.number)
        tasks.start_soon(worker.serve)
        tasks.start_soon(worker.tell_kept)
        tasks.start_soon(worker.watch, child, hang_timeout_s, own_log)
        tasks.start_soon(worker.wait_for_end, child, own_log)
        try:
            yield worker
        finally:
            if worker.lost.is_set():
                child.kill()


async def _config_on(host: Host, config: RunConfig) -> RunConfig:
    """Return the configuration with the paths that a worker's files have on its machine, which has them by then.

    Raises:
        WorkerError: The machine does not take them.
    """
    if host.work is None:
        return config
    try:
        model = await host.bring(Path(config.model.path), weights=False)
    except ClusterError as error:
        raise WorkerError(str(error)) from error
    own = {"model": config.model.model_copy(update={"path": str(model)})}
    return config.model_copy(update={"workflow": str(host.work / Path(config.workflow).name), **own})


async def _start(name: str, channel: Channel, start: Start, log: WorkerLog) -> None:
    answer: Frame | None = None
    with anyio.move_on_after(START_TIMEOUT_S) as bound, suppress(*GONE):
        await channel.send(start)
        answer = await channel.receive()
    if isinstance(answer, Ready):
        return
    if isinstance(answer, Refused):
        kind = getattr(errors, answer.error, WorkerError)
        raise (
            kind(answer.message)
            if issubclass(kind, UsageError)
            else WorkerError(f"the {name} cannot start: {answer.message}")
        )
    why = f"did not start within {START_TIMEOUT_S:g} s" if bound.cancelled_caught else "ended while it started"
    raise WorkerError(f"the {name} {why}; the end of its log {log.path}:\n{await log.tail()}")
