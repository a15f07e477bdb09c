"""The messages between the main process and a worker process: frames over a socket pair.

    main ──► worker                                    worker ──► main
    Start         what to run, and how                 Ready, Refused    whether it can
    Run, Cancel   an episode                           Beat              its event loop turns
    EngineChanged what it must know of the engine      EpisodeEnded      an episode, with its outcome
    Done, Failed  the answer to Keep                   Keep              a reply
                                                       FollowerReport, LossReport    what it knows of the engine, and counts

A frame is its lengths, a header of JSON, and the bytes that replies and records are in the store (`agentrl.store.rows`), which
only who asks for them decodes:

    length of the rest │ number of parts │ length of each part │ header │ bytes │ bytes ...        lengths: uint32, network order

Nothing is pickled: a frame is rebuilt from plain values, field by field.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import anyio
from anyio.abc import ByteStream

from agentrl.engine.client.fleet_state import FleetState, FollowerReport, LossReport
from agentrl.episode import Task
from agentrl.errors import AgentRLError
from agentrl.proxy import SamplingDefaults
from agentrl.record.end_reason import EndReason
from agentrl.record.record_figures import RecordFigures
from agentrl.store.outcome import Outcome
from agentrl.store.rows import CallRow, PackedRecord

MAX_FRAME_BYTES = 2**28
LENGTH_BYTES = 4
READ_BYTES = 2**18
"""At most so much is read at once."""
GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError)
"""What sending raises when the other end is gone."""


class FrameTooLargeError(AgentRLError):
    """A value takes more bytes than one frame may have."""


@dataclass(frozen=True)
class Start:
    """The first frame: what to run."""

    config: dict[str, Any]
    state: FleetState
    import_path: list[str]
    """`sys.path` of the main process, so that the workflow finds the same modules."""
    beat_s: float
    """Time between two beats."""
    training: bool
    """Whether what the episodes record is to be trained on."""


@dataclass(frozen=True)
class Ready:
    """The worker takes episodes."""


@dataclass(frozen=True)
class Refused:
    """The worker cannot start: the name of an error of `agentrl.errors`, and its text."""

    error: str
    message: str


@dataclass(frozen=True)
class Run:
    """Run an episode, with the replies that it had before."""

    episode: int
    task: Task
    seed: int
    group_seed: int | None
    defaults: SamplingDefaults
    recorded: list[CallRow]


@dataclass(frozen=True)
class Cancel:
    """End an episode, whose outcome nobody waits for any more."""

    episode: int


@dataclass(frozen=True)
class EpisodeEnded:
    """The outcome of an episode, whose record is a `PackedRecord`. Of its calls, those that the main process has kept are only named."""

    episode: int
    outcome: Outcome


@dataclass(frozen=True)
class Beat:
    """The worker's event loop turns. `metrics` are those of its runner."""

    metrics: dict[str, float]


@dataclass(frozen=True)
class EngineChanged:
    """The main process's engine is not what it was."""

    state: FleetState


@dataclass(frozen=True)
class Keep:
    """Keep a whole reply; answered when it is safe."""

    call: int
    episode: int
    reply: CallRow


@dataclass(frozen=True)
class Done:
    """The answer to Keep: to several at once, where they became safe at once."""

    calls: list[int]


@dataclass(frozen=True)
class Failed:
    """The answer to Keep where it could not be done."""

    call: int
    error: str


Answer = Done | Failed
ToWorker = Start | Run | Cancel | EngineChanged | Answer
ToMain = Ready | Refused | Beat | EpisodeEnded | Keep | FollowerReport | LossReport
Frame = ToWorker | ToMain


@dataclass(eq=False)
class Channel:
    """One end of the channel."""

    stream: ByteStream
    _sending: anyio.Lock = field(default_factory=lambda: anyio.Lock(fast_acquire=True))

    def __post_init__(self) -> None:
        self._received = bytearray()
        self._read = 0
        """Bytes of `_received` that belong to frames which were returned."""

    async def send(self, frame: Frame) -> None:
        """Send a frame.

        It waits for an other end that is slow to read. Cancelled, it has sent the whole frame or none of it. When the other end is gone,
        an error of `GONE` comes out.

        Raises:
            FrameTooLargeError: The frame has more than MAX_FRAME_BYTES.
        """
        content = encode(frame)
        async with self._sending:
            await self.stream.send(content)

    async def receive(self) -> Frame | None:
        """Return the next frame; None when the other end is gone, or cannot be understood.

        It waits only for what has not arrived yet: of what comes together, at most READ_BYTES and the rest of a frame, nobody else runs meanwhile.
        """
        try:
            while (frame := self._next()) is None:
                arrived = await self.stream.receive(READ_BYTES)
                del self._received[: self._read]
                self._read = 0
                self._received += arrived
        except (anyio.IncompleteRead, anyio.EndOfStream, *GONE):
            return None
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError, struct.error):
            return None
        return frame

    def _next(self) -> Frame | None:
        """Return the first frame that has arrived whole; None: there is none yet.

        Raises:
            ValueError: It has more than MAX_FRAME_BYTES.
        """
        start = self._read + LENGTH_BYTES
        if len(self._received) < start:
            return None
        size = int.from_bytes(self._received[self._read : start])
        if size > MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {size} bytes")
        if len(self._received) < start + size:
            return None
        self._read = start + size
        return decode(bytes(self._received[start : self._read]))


def encode(frame: Frame) -> bytes:
    """Return a frame as it is sent.

    Raises:
        FrameTooLargeError: It has more than MAX_FRAME_BYTES.
    """
    parts = [b""]

    def plain(value: object) -> Any:
        """Return what stands for a value in the header: for bytes, the number of their part.

        Raises:
            TypeError: Nothing stands for it.
        """
        if isinstance(value, bytes):
            parts.append(value)
            return len(parts) - 1
        if isinstance(value, PackedRecord):
            return value.columns, value.prompt_ids, value.calls, vars(value.figures())
        if is_dataclass(value):
            return vars(value)
        raise TypeError(f"{type(value).__name__} is no JSON value")

    parts[0] = json.dumps({"frame": type(frame).__name__, **vars(frame)}, default=plain).encode()
    lengths = struct.pack(f"!{1 + len(parts)}I", len(parts), *map(len, parts))
    size = len(lengths) + sum(map(len, parts))
    if size > MAX_FRAME_BYTES:
        raise FrameTooLargeError(f"it takes {size} bytes, more than the {MAX_FRAME_BYTES} of one frame")
    return b"".join((size.to_bytes(LENGTH_BYTES), lengths, *parts))


def decode(content: bytes) -> Frame:
    """Read a frame that `encode` wrote, without its first length.

    Raises:
        ValueError: It is none. So do LookupError, TypeError, AttributeError, RecursionError and struct.error say.
    """
    (count,) = struct.unpack_from("!I", content)
    lengths = struct.unpack_from(f"!{count}I", content, LENGTH_BYTES)
    parts, start = [], LENGTH_BYTES * (1 + count)
    for length in lengths:
        parts.append(content[start : start + length])
        start += length
    if start != len(content):
        raise ValueError(f"its parts have {start} bytes, it has {len(content)}")
    values: dict[str, Any] = json.loads(parts[0])
    kind = _KINDS[values.pop("frame")]
    rebuilt = {name: _NESTED[name](value, parts) if name in _NESTED else value for name, value in values.items()}
    return kind(**rebuilt)  # type: ignore[no-any-return]


def _call(values: list[Any], parts: Sequence[bytes]) -> CallRow:
    request, completion_id, choice_index, tool_call_ids, output_ids, logprobs, versions, finish, cached, top = values
    packed = parts[output_ids], parts[logprobs], parts[versions]
    top_logprobs = None if top is None else parts[top]
    content = (request, completion_id, choice_index, tool_call_ids, *packed, finish, cached, top_logprobs)
    return CallRow(*content)


def _outcome(values: dict[str, Any], parts: Sequence[bytes]) -> Outcome:
    columns, prompt_ids, rows, figures = values["record"]
    calls = [_call(row, parts) for row in rows]
    record = PackedRecord(parts[columns], parts[prompt_ids], calls, RecordFigures(**figures))
    return Outcome(**{**values, "status": EndReason(values["status"]), "record": record})


_KINDS: Mapping[str, Callable[..., Any]] = {
    kind.__name__: kind for union in (ToWorker, ToMain) for kind in union.__args__
}
_NESTED: Mapping[str, Callable[[Any, Sequence[bytes]], Any]] = {
    "state": lambda values, _: FleetState.from_json(values),
    "defaults": lambda values, _: SamplingDefaults(**values),
    "recorded": lambda rows, parts: [_call(values, parts) for values in rows],
    "reply": _call,
    "outcome": _outcome,
}
"""Functions that rebuild the fields which hold more than plain JSON values, by the fields' names, from these and the parts after the header."""


def is_json(value: object) -> bool:
    """Whether a value arrives in a worker as it was sent."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError, RecursionError):
        return False
