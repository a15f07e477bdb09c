"""The engine and the call log as a worker process has them: both are the main process's, asked over the channel."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio

from agentrl.engine.protocol import OnProgress, PartialGeneration, PauseMode, Sampling
from agentrl.errors import EngineError
from agentrl.proxy import RecordedCalls
from agentrl.record.recorded_choice import RecordedChoice
from agentrl.record.tokens import Generation, ImageSpan
from agentrl.rollout.outcome import Outcome
from agentrl.rollout.packed_record import Key, StoredCall, pack
from agentrl.rollout.worker_channel import (
    GONE,
    Answer,
    CancelCall,
    Channel,
    Done,
    EndSession,
    EngineState,
    EpisodeEnded,
    Failed,
    Frame,
    FrameTooLargeError,
    Generate,
    Generated,
    Health,
    Keep,
    Progress,
    Run,
)

NOTICE_TIMEOUT_S = 1.0
"""Bound of telling the main process what it need not answer."""


@dataclass(eq=False)
class _Waiting:
    on_progress: OnProgress | None
    answered: anyio.Event = field(default_factory=anyio.Event)
    answer: Answer | None = None
    ids: list[int] = field(default_factory=list)


class MainEngine:
    """The main process's engine. It is `agentrl.engine.protocol.Engine`; weights are updated in the main process alone."""

    def __init__(self, channel: Channel, state: EngineState) -> None:
        self.state = state
        self._channel = channel
        self._numbers = itertools.count()
        self._waiting: dict[int, _Waiting] = {}
        self._ended_sessions: list[str] = []
        self.partials: dict[int, tuple[int, RecordedChoice]] = {}
        """By the identity of a partial generation: the episode that it belongs to, and which reply it will be."""

    @property
    def version(self) -> int:
        """The weight version that serves new tokens."""
        return self.state.version

    @property
    def has_grammar(self) -> bool:
        """Whether it can hold a reply to a JSON schema."""
        return self.state.has_grammar

    @property
    def takes_images(self) -> bool:
        """Whether the model that it serves sees images."""
        return self.state.takes_images

    @property
    def vocabulary(self) -> int | None:
        """Ids that the served model knows."""
        return self.state.vocabulary

    async def generate(
        self,
        input_ids: list[int],
        sampling: Sampling,
        session: str,
        on_progress: OnProgress | None = None,
        *,
        images: Sequence[ImageSpan] = (),
        partial: PartialGeneration | None = None,
        adapter: str = "",
    ) -> Generation:
        """Return one uninterrupted reply; see `Engine.generate`. The partial generation is the main process's: this one only says whose it is.

        Raises:
            EngineError: It has no partial generation of an episode of this worker, or the main process could not answer it.
        """
        if partial is None or id(partial) not in self.partials:
            raise EngineError("a worker generates for its episodes only")
        episode, choice = self.partials[id(partial)]
        call, start = next(self._numbers), partial.start
        frame = Generate(
            call, episode, choice, input_ids, sampling, session, list(images), start, on_progress is not None, adapter
        )
        answer = await self._ask(call, frame, on_progress)
        assert isinstance(answer, Generated)
        return answer.generation

    async def keep(self, episode: int, reply: StoredCall) -> None:
        """Keep a whole reply. Returns when it is safe."""
        call = next(self._numbers)
        await self._ask(call, Keep(call, episode, reply))

    async def health(self) -> None:
        """Return when every server answers; raise EngineError when one does not."""
        call = next(self._numbers)
        await self._ask(call, Health(call))

    def end_session(self, session: str) -> None:
        """Forget a session: no more calls of it will come."""
        self._ended_sessions.append(session)

    async def tell_ended_sessions(self) -> None:
        """Tell the main process which sessions have ended."""
        while self._ended_sessions:
            await self._channel.send(EndSession(self._ended_sessions.pop()))

    async def update_weights(self, checkpoint: Path, version: int) -> float:
        """Refuse: this is for the main process to do.

        Raises:
            EngineError: Always.
        """
        raise EngineError("the main process updates the weights")

    async def pause(self, mode: PauseMode) -> None:
        """Refuse: this is for the main process to do.

        Raises:
            EngineError: Always.
        """
        raise EngineError("the main process pauses the engine")

    async def resume(self) -> None:
        """Refuse: this is for the main process to do.

        Raises:
            EngineError: Always.
        """
        raise EngineError("the main process resumes the engine")

    def on_answer(self, answer: Answer) -> None:
        """Hand an answer to whoever waits for it."""
        for call in answer.calls if isinstance(answer, Done) else (answer.call,):
            waiting = self._waiting.get(call)
            if waiting is not None:
                waiting.answer = answer
                waiting.answered.set()

    def on_progress(self, progress: Progress) -> None:
        """Hand what a growing reply has to whoever waits for it."""
        waiting = self._waiting.get(progress.call)
        if waiting is not None and waiting.on_progress is not None:
            waiting.ids = waiting.ids[: progress.kept] + progress.ids
            waiting.on_progress(waiting.ids)

    async def _ask(self, call: int, frame: Frame, on_progress: OnProgress | None = None) -> Answer:
        waiting = self._waiting[call] = _Waiting(on_progress)
        try:
            await self._channel.send(frame)
            await waiting.answered.wait()
        except FrameTooLargeError as error:
            raise EngineError(f"the request cannot be sent to the main process: {error}") from error
        except GONE as error:
            raise EngineError("the main process is gone") from error
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True), anyio.move_on_after(NOTICE_TIMEOUT_S), suppress(*GONE):
                await self._channel.send(CancelCall(call))
            raise
        finally:
            del self._waiting[call]
        assert waiting.answer is not None
        if isinstance(waiting.answer, Failed):
            raise EngineError(waiting.answer.error)
        return waiting.answer


@dataclass(eq=False)
class WorkerCallLog(RecordedCalls):
    """One episode's calls, kept by the main process. It is `agentrl.proxy.CallLog`."""

    engine: MainEngine | None = None
    episode: int = 0
    kept: dict[Key, StoredCall] = field(default_factory=dict)
    """The replies that the main process has, as it has them."""

    @classmethod
    def of(cls, engine: MainEngine, frame: Run) -> WorkerCallLog:
        """Return the call log of an episode that the main process sent."""
        recorded = [choice for call in frame.recorded if (choice := call.choice()) is not None]
        return cls(recorded, engine=engine, episode=frame.episode, kept={call.key: call for call in frame.recorded})

    async def keep(self, choice: RecordedChoice) -> None:
        """Keep a whole reply. Returns when it is safe."""
        assert self.engine is not None
        call = StoredCall.of(choice)
        await self.engine.keep(self.episode, call)
        self.kept[call.key] = call

    def ended(self, outcome: Outcome) -> EpisodeEnded:
        """Return what tells the main process of the episode's outcome, but for what it has."""
        record = pack(outcome.record, self.kept)
        record.name(self.kept)
        return EpisodeEnded(self.episode, replace(outcome, record=record))

    @contextmanager
    def watch(self, choice: RecordedChoice, partial: PartialGeneration) -> Iterator[None]:
        """Say whose partial generation it is. The main process, which has the engine, looks at what it has."""
        assert self.engine is not None
        self.engine.partials[id(partial)] = (self.episode, choice)
        try:
            yield
        finally:
            del self.engine.partials[id(partial)]
