"""The messages between the main process and a worker process: JSON frames over a socket pair, each after its length.

    main ──► worker                                    worker ──► main
    Start         what to run, and how                 Ready, Refused    whether it can
    Run, Cancel   an episode                           Beat              its event loop turns
    EngineState   what the engine can do               EpisodeEnded      an episode, with its outcome
    Progress      what a growing reply gained          Generate, Keep, Health, CancelCall, EndSession
    Generated, Done, Failed   the answer to a call

Nothing is pickled: a frame is rebuilt from plain JSON values, field by field.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import anyio
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteReceiveStream

from agentrl.engine.protocol import Sampling
from agentrl.episode import Task
from agentrl.errors import AgentRLError
from agentrl.proxy import SamplingDefaults
from agentrl.record.recorded_choice import RecordedChoice
from agentrl.record.tokens import Generation, ImageSpan
from agentrl.record.trajectory import TokenRecord
from agentrl.rollout.outcome import Outcome

MAX_FRAME_BYTES = 2**28
LENGTH_BYTES = 4
GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError)
"""What sending raises when the other end is gone."""


class FrameTooLargeError(AgentRLError):
    """A value takes more bytes than one frame may have."""


@dataclass(frozen=True)
class EngineState:
    """The facts of the engine that a worker's proxy has to know."""

    version: int
    has_grammar: bool
    takes_images: bool
    vocabulary: int | None


@dataclass(frozen=True)
class Start:
    """The first frame: what to run."""

    config: dict[str, Any]
    state: EngineState
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
class Generate:
    """`Engine.generate`, for an episode. `choice` says which reply it will be."""

    call: int
    episode: int
    choice: RecordedChoice
    input_ids: list[int]
    sampling: Sampling
    session: str
    images: list[ImageSpan]
    start: Generation | None
    """Tokens that the reply has already."""
    progress: bool
    """Whether to send what it gains as it grows."""
    adapter: str
    """The role whose adapter answers."""


@dataclass(frozen=True)
class Keep:
    """Keep a whole reply, which the main process has, with the ids of its tool calls; answered when it is safe."""

    call: int
    episode: int
    completion_id: str
    index: int
    """Which of the request's replies."""
    tool_call_ids: list[str]


@dataclass(frozen=True)
class Health:
    """`Engine.health`."""

    call: int


@dataclass(frozen=True)
class CancelCall:
    """Nobody waits for the answer to this call any more."""

    call: int


@dataclass(frozen=True)
class EndSession:
    """`Engine.end_session`."""

    session: str


@dataclass(frozen=True)
class Progress:
    """A growing reply: its first `kept` ids are as before, and `ids` follow."""

    call: int
    kept: int
    ids: list[int]


@dataclass(frozen=True)
class Generated:
    """The answer to Generate."""

    call: int
    generation: Generation


@dataclass(frozen=True)
class Done:
    """The answer to Keep and Health."""

    call: int


@dataclass(frozen=True)
class Failed:
    """The answer to a call that the engine could not carry out."""

    call: int
    error: str


Answer = Generated | Done | Failed
ToWorker = Start | Run | Cancel | EngineState | Progress | Answer
ToMain = Ready | Refused | Beat | EpisodeEnded | Generate | Keep | Health | CancelCall | EndSession
Frame = ToWorker | ToMain


@dataclass(eq=False)
class Channel:
    """One end of the channel."""

    stream: ByteStream
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


def _generation(values: dict[str, Any] | None) -> Generation | None:
    return None if values is None else Generation.from_json(values)


def _choice(values: dict[str, Any]) -> RecordedChoice:
    return RecordedChoice(**{**values, "generation": _generation(values["generation"])})


def _outcome(values: dict[str, Any]) -> Outcome:
    return Outcome(**{**values, "record": TokenRecord.from_json(values["record"])})


_KINDS: Mapping[str, Callable[..., Any]] = {
    kind.__name__: kind for union in (ToWorker, ToMain) for kind in union.__args__
}
_NESTED: Mapping[str, Callable[[Any], Any]] = {
    "state": lambda values: EngineState(**values),
    "defaults": lambda values: SamplingDefaults(**values),
    "sampling": lambda values: Sampling(
        **{**values, "logit_bias": [(token, bias) for token, bias in values["logit_bias"]]}
    ),
    "recorded": lambda rows: [_choice(values) for values in rows],
    "choice": _choice,
    "images": lambda rows: [ImageSpan(**values) for values in rows],
    "start": _generation,
    "generation": _generation,
    "outcome": _outcome,
}
"""Functions that rebuild the fields which hold more than plain JSON values, by the fields' names."""


def is_json(value: object) -> bool:
    """Whether a value arrives in a worker as it was sent."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError, RecursionError):
        return False
