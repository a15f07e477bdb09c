"""The messages between the main process and a worker process: JSON frames over a socket pair, each after its length.

    main ──► worker                                    worker ──► main
    Start         what to run, and how                 Ready, Refused    whether it can
    Run, Cancel   an episode                           Beat              its event loop turns
    EngineChanged what it must know of the engine      EpisodeEnded      an episode, with its outcome
    Done, Failed  the answer to Keep                   Keep, Grew        a whole reply, and what a growing one has gained
                                                       FollowerReport, LossReport    what it knows of the engine, and counts

Nothing is pickled: a frame is rebuilt from plain JSON values, field by field.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import anyio
from anyio.abc import SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from agentrl.engine.client.fleet_state import FleetState, FollowerReport, LossReport
from agentrl.episode import Task
from agentrl.errors import AgentRLError
from agentrl.proxy import SamplingDefaults
from agentrl.record.recorded_choice import RecordedChoice
from agentrl.record.tokens import Generation
from agentrl.record.trajectory import TokenRecord
from agentrl.rollout.outcome import Outcome

MAX_FRAME_BYTES = 2**28
LENGTH_BYTES = 4
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
    recorded: list[RecordedChoice]


@dataclass(frozen=True)
class Cancel:
    """End an episode, whose outcome nobody waits for any more."""

    episode: int


@dataclass(frozen=True)
class EpisodeEnded:
    """The outcome of an episode."""

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
    choice: RecordedChoice


@dataclass(frozen=True)
class Grew:
    """What a growing reply has gained: its first `kept` tokens are as before, and those of `choice` follow."""

    episode: int
    kept: int
    choice: RecordedChoice


@dataclass(frozen=True)
class Done:
    """The answer to Keep."""

    call: int


@dataclass(frozen=True)
class Failed:
    """The answer to Keep where it could not be done."""

    call: int
    error: str


Answer = Done | Failed
ToWorker = Start | Run | Cancel | EngineChanged | Answer
ToMain = Ready | Refused | Beat | EpisodeEnded | Keep | Grew | FollowerReport | LossReport
Frame = ToWorker | ToMain


@dataclass(eq=False)
class Channel:
    """One end of the channel."""

    stream: SocketStream
    _sending: anyio.Lock = field(default_factory=anyio.Lock)

    def __post_init__(self) -> None:
        self._received = BufferedByteReceiveStream(self.stream)

    async def send(self, frame: Frame) -> None:
        """Send a frame.

        It waits for an other end that is slow to read. Cancelled, it has sent the whole frame or none of it. When the other end is gone,
        an error of `GONE` comes out.

        Raises:
            FrameTooLargeError: The frame has more than MAX_FRAME_BYTES.
        """
        content = encode(frame)
        async with self._sending:
            await self.stream.send(len(content).to_bytes(LENGTH_BYTES) + content)

    async def receive(self) -> Frame | None:
        """Return the next frame; None when the other end is gone, or cannot be understood."""
        try:
            size = int.from_bytes(await self._received.receive_exactly(LENGTH_BYTES))
            if size > MAX_FRAME_BYTES:
                return None
            return decode(await self._received.receive_exactly(size))
        except (anyio.IncompleteRead, anyio.EndOfStream, *GONE):
            return None
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return None


def encode(frame: Frame) -> bytes:
    """Return a frame as bytes.

    Raises:
        FrameTooLargeError: It has more than MAX_FRAME_BYTES.
    """
    content = json.dumps({"frame": type(frame).__name__, **vars(frame)}, default=_plain).encode()
    if len(content) > MAX_FRAME_BYTES:
        raise FrameTooLargeError(f"it takes {len(content)} bytes, more than the {MAX_FRAME_BYTES} of one frame")
    return content


def decode(content: bytes) -> Frame:
    """Read a frame that `encode` wrote."""
    values: dict[str, Any] = json.loads(content)
    kind = _KINDS[values.pop("frame")]
    return kind(**{name: _NESTED.get(name, _same)(value) for name, value in values.items()})  # type: ignore[no-any-return]


def _plain(value: object) -> Any:
    if isinstance(value, TokenRecord):
        return value.to_json()
    if is_dataclass(value):
        return vars(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _same(value: Any) -> Any:
    return value


def _choice(values: dict[str, Any]) -> RecordedChoice:
    return RecordedChoice(**{**values, "generation": Generation.from_json(values["generation"])})


def _outcome(values: dict[str, Any]) -> Outcome:
    return Outcome(**{**values, "record": TokenRecord.from_json(values["record"])})


_KINDS: Mapping[str, Callable[..., Any]] = {
    kind.__name__: kind for union in (ToWorker, ToMain) for kind in union.__args__
}
_NESTED: Mapping[str, Callable[[Any], Any]] = {
    "state": FleetState.from_json,
    "defaults": lambda values: SamplingDefaults(**values),
    "recorded": lambda rows: [_choice(values) for values in rows],
    "choice": _choice,
    "outcome": _outcome,
}
"""Functions that rebuild the fields which hold more than plain JSON values, by the fields' names."""


def is_json(value: object) -> bool:
    """Whether a value arrives in a worker as it was sent."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError, RecursionError):
        return False
