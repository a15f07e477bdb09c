"""The engine and the call log as a worker process has them: an engine that follows the main process's, and replies that this one keeps.

run(episode) ─► proxy ─► FollowingEngine ─HTTP─► servers
                  │             ▲ └── what it has taken over, counted, and found lost ──► main process
                  │             └──── what has changed ──────────────────────────────────◄
                  └► WorkerCallLog ── replies, at once ──► the store
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import anyio
from anyio.abc import TaskGroup

from agentrl.engine.client.fleet_state import FleetState, LossReport
from agentrl.engine.client.following_engine import FollowingEngine, following_engine
from agentrl.errors import EngineError
from agentrl.record.recorded_choice import Key, RecordedCalls, RecordedChoice
from agentrl.rollout.worker_channel import (
    GONE,
    Answer,
    Channel,
    Done,
    EpisodeEnded,
    Failed,
    FrameTooLargeError,
    Keep,
    Run,
)
from agentrl.store.outcome import Outcome
from agentrl.store.rows import CallRow, choice_of, pack, row_of


@dataclass(eq=False)
class MainEngine:
    """The main process's engine, followed. Open it with `main_engine`."""

    channel: Channel
    engine: FollowingEngine
    losses: anyio.abc.ObjectReceiveStream[LossReport]

    async def take(self, state: FleetState, tasks: TaskGroup) -> None:
        """Take over what has changed, and say so; again, when the replies have ended that had to."""
        self.engine.take(state)
        await self.report()
        if self.engine.ending:
            tasks.start_soon(self._report_end)

    async def report(self) -> None:
        """Say what has been taken over, and counted."""
        with suppress(*GONE):
            await self.channel.send(self.engine.report())

    async def _report_end(self) -> None:
        await self.engine.until_ended()
        await self.report()

    async def report_losses(self) -> None:
        """Tell the main process which servers are found lost, until cancelled."""
        with suppress(*GONE):
            async for loss in self.losses:
                await self.channel.send(loss)


@asynccontextmanager
async def main_engine(channel: Channel, state: FleetState) -> AsyncIterator[MainEngine]:
    """Follow the main process's engine for the length of the context."""
    found, losses = anyio.create_memory_object_stream[LossReport](float("inf"))
    with found, losses:
        async with following_engine(state, found.send_nowait) as engine:
            yield MainEngine(channel, engine, losses)


@dataclass(eq=False)
class KeptReplies:
    """The replies of all episodes of a worker, on their way to the main process."""

    channel: Channel
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _waiting: dict[int, tuple[anyio.Event, list[Answer]]] = field(default_factory=dict)

    async def keep(self, episode: int, reply: CallRow) -> None:
        """Have a reply kept. Returns when it is safe.

        Raises:
            EngineError: It could not be sent, or kept.
        """
        call = next(self._numbers)
        answered, answers = self._waiting[call] = anyio.Event(), []
        try:
            await self.channel.send(Keep(call, episode, reply))
            await answered.wait()
        except FrameTooLargeError as error:
            raise EngineError(f"the reply cannot be sent to the main process: {error}") from error
        except GONE as error:
            raise EngineError("the main process is gone") from error
        finally:
            del self._waiting[call]
        (answer,) = answers
        if isinstance(answer, Failed):
            raise EngineError(answer.error)

    def on_answer(self, answer: Answer) -> None:
        """Hand an answer to whoever waits for it."""
        for call in answer.calls if isinstance(answer, Done) else [answer.call]:
            if call in self._waiting:
                answered, answers = self._waiting[call]
                answers.append(answer)
                answered.set()


@dataclass(eq=False)
class WorkerCallLog(RecordedCalls):
    """One episode's calls, kept by the main process. It is `agentrl.proxy.CallLog`."""

    replies: KeptReplies | None = None
    episode: int = 0
    kept: set[Key] = field(default_factory=set)
    """The replies that the main process has."""

    @classmethod
    def of(cls, replies: KeptReplies, frame: Run) -> WorkerCallLog:
        """Return the call log of an episode that the main process sent."""
        recorded = [choice for call in frame.recorded if (choice := choice_of(call)) is not None]
        return cls(recorded, replies=replies, episode=frame.episode, kept={call.key for call in frame.recorded})

    async def keep(self, choice: RecordedChoice) -> None:
        """Keep a reply. Returns when it is safe."""
        assert self.replies is not None
        await self.replies.keep(self.episode, row_of(choice))
        self.kept.add(choice.key)

    def ended(self, outcome: Outcome) -> EpisodeEnded:
        """Return what tells the main process of the episode's outcome, but for what it has."""
        return EpisodeEnded(self.episode, replace(outcome, record=pack(outcome.record, self.kept)))
