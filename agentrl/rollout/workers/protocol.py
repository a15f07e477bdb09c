"""The frames between the main process and a worker, over any stream of bytes.

    main ──► worker                                   worker ──► main
    Start         what to run, and how                Report         it takes episodes, its event loop turns; what it has counted, and
    FleetChanged  the servers and their weights                      which state of the fleet it has taken over
    Run, Cancel   an episode, with its calls so far   EpisodeResult  an episode has ended; calls that were committed are only named
    Committed     a call that is in the store         SendCall       a reply, which its workflow gets when it is in the store
                                                      ServerFailed   a server that it cannot use

A frame is its length (uint32, network order) and msgpack. Replies and records are the bytes of the store, which the main process writes
and does not decode. Nothing is pickled, and what is no frame ends the connection.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import anyio
import msgspec
from anyio.abc import ByteStream
from msgspec.msgpack import Decoder, Encoder

from agentrl.engine.client.replica import FailureReport, FleetState, ReplicaReport
from agentrl.episode import Task
from agentrl.errors import EpisodeError
from agentrl.proxy import SamplingDefaults
from agentrl.record.recorded_choice import Key
from agentrl.record.trajectory import RecordFigures, TokenRecord
from agentrl.store.outcome import Outcome
from agentrl.store.rows import CallRow, PackedRecord

MAX_FRAME_BYTES = 2**28
"""A longer one is not sent."""
LENGTH_BYTES = 4
READ_BYTES = 2**18
"""At most so much is read at once."""
GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError)
"""Errors of a stream whose other end is gone."""
T = TypeVar("T")


class Frame(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The base of all frames."""


class Start(Frame, frozen=True):
    """The first frame: what to run."""

    config: dict[str, Any]
    fleet: FleetState
    import_path: list[str]
    """`sys.path` of the main process, so that the workflow finds the same modules."""
    training: bool
    """Whether what the episodes record is to be trained on."""
    hang_timeout_s: float
    """How long a line of a workflow may block the event loop before the worker ends itself."""


class Run(Frame, frozen=True):
    """Run an episode, with the replies that it had before."""

    episode: int
    task: str
    """The task as JSON, which has texts and numbers that msgpack has not."""
    seed: int
    group_seed: int | None
    defaults: SamplingDefaults
    calls: list[CallRow]
    made_here: list[Key]
    """Those of `calls` that this start of the run had made, in a worker that was lost."""
    trace: dict[str, str] = {}
    """The trace that it belongs to, as headers."""


class Cancel(Frame, frozen=True):
    """End an episode, whose outcome is of no use any more."""

    episode: int


class SendCall(Frame, frozen=True):
    """Commit a reply to the store; answered when it is there."""

    number: int
    episode: int
    call: CallRow


class Committed(Frame, frozen=True):
    """The answer to the `SendCall` of this number."""

    number: int


class EpisodeResult(Frame, frozen=True):
    """The outcome of an episode, whose record comes as the store holds it."""

    episode: int
    ended: Outcome
    columns: bytes
    prompt_ids: bytes
    calls: list[CallRow]
    figures: RecordFigures

    @classmethod
    def of(cls, episode: int, outcome: Outcome, record: PackedRecord) -> EpisodeResult:
        """Return the result of an episode with this record."""
        ended = replace(outcome, record=TokenRecord())
        return cls(episode, ended, record.columns, record.prompt_ids, list(record.calls), record.figures())

    def outcome(self, committed: Mapping[Key, CallRow]) -> Outcome:
        """Return the outcome with its record. Raises KeyError when a call that it only names is not in `committed`."""
        record = PackedRecord(self.columns, self.prompt_ids, self.calls, self.figures)
        record.fill(committed)
        return replace(self.ended, record=record)


class FleetChanged(Frame, frozen=True):
    """All that a worker must know of the fleet, which is not what it was."""

    fleet: FleetState


class Report(Frame, frozen=True):
    """The worker takes episodes, and its event loop turns. `metrics` are sums since it began."""

    metrics: dict[str, float]
    replica: ReplicaReport


class ServerFailed(Frame, frozen=True):
    """The worker cannot use a server."""

    report: FailureReport


ToWorker = Start | Run | Cancel | Committed | FleetChanged
ToMain = SendCall | EpisodeResult | Report | ServerFailed


ENCODER = Encoder()
TO_WORKER: Decoder[ToWorker] = Decoder(ToWorker)
TO_MAIN: Decoder[ToMain] = Decoder(ToMain)


def unsendable(task: Task, name: str = "the task") -> str | None:
    """Return why a task, of this name, cannot be sent to a worker process, as it is no plain JSON; None: it can."""
    for key, value in task.items():
        try:
            same = json.loads(json.dumps({key: value})) == {key: value}
        except (TypeError, ValueError, RecursionError):
            same = False
        if not same:
            return (
                f"{name} cannot be sent to a worker process: its field {key!r} ({type(value).__name__}) is not plain JSON; write it as JSON "
                "values, or set `rollout.workers` = 0"
            )
    return None


@dataclass(eq=False)
class Connection(Generic[T]):
    """One end of a stream of frames. `decoder` reads those of the other end."""

    stream: ByteStream
    decoder: Decoder[T]
    _outbox: bytearray = field(default_factory=bytearray)
    _filled: anyio.Event = field(default_factory=anyio.Event)

    def send(self, frame: Frame) -> None:
        """Put a frame into the outbox. It is dropped when the other end is gone.

        Raises:
            EpisodeError: It is longer than `MAX_FRAME_BYTES`.
        """
        content = ENCODER.encode(frame)
        if len(content) > MAX_FRAME_BYTES:
            raise EpisodeError(
                f"{type(frame).__name__} is {len(content):,} bytes long, and at most {MAX_FRAME_BYTES:,} pass between the main process and a "
                "worker; make the task, or the images of the conversation, smaller, or set `rollout.workers` = 0"
            )
        self._outbox += len(content).to_bytes(LENGTH_BYTES) + content
        self._filled.set()

    async def send_all(self) -> None:
        """Send what comes into the outbox, all that waits in one piece, until cancelled."""
        while True:
            await self._filled.wait()
            content, self._outbox, self._filled = self._outbox, bytearray(), anyio.Event()
            with suppress(*GONE):
                await self.stream.send(bytes(content))

    async def frames(self) -> AsyncIterator[T]:
        """Yield what arrives, until the other end is gone or sends what is no frame."""
        arrived = bytearray()
        with suppress(anyio.EndOfStream, *GONE, msgspec.MsgspecError, ValueError, LookupError):
            while True:
                start, body = 0, LENGTH_BYTES
                while len(arrived) >= body and len(arrived) >= (end := body + int.from_bytes(arrived[start:body])):
                    yield self.decoder.decode(arrived[body:end])
                    start, body = end, end + LENGTH_BYTES
                del arrived[:start]
                if len(arrived) > MAX_FRAME_BYTES + LENGTH_BYTES:
                    return
                arrived += await self.stream.receive(READ_BYTES)
