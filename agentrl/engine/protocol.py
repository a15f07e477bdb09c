"""What an engine is to the rest of agentrl: token ids in, token ids with logprobs and weight versions out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

PauseMode = Literal["retract", "in_place", "abort"]
"""How a weight update interrupts replies in flight.

`retract`: they stay open and their KV cache is recomputed under the new weights. `in_place`: they stay open and keep the
old KV cache. `abort`: the server hands back what it has, and the client resubmits prompt + partial ids.
"""

FinishReason = Literal["stop", "length", "abort"]

ADAPTER_CONFIG = "adapter_config.json"
"""A directory of published weights that holds this file is a LoRA adapter, to be put on the model that is served."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the tokens of one reply are drawn."""

    max_new_tokens: int
    temperature: float = 1.0
    """0 is greedy decoding."""
    top_p: float = 1.0
    stop: Sequence[str] = ()
    """Strings that end the reply; the ids up to and including the match are returned."""
    stop_token_ids: Sequence[int] = ()
    seed: int | None = None
    top_logprobs: int = 0
    """How many of the most likely tokens to report at every position."""
    json_schema: str | None = None
    """A JSON schema, as JSON, that the reply's text must satisfy; for engines with a grammar. The reported logprobs are
    those of the constrained distribution."""


@dataclass(frozen=True)
class VersionSpan:
    """Output tokens `start` to `end` (exclusive) were sampled under weights `version`."""

    version: int
    start: int
    end: int


@dataclass(frozen=True)
class ImageSpan:
    """An image, and the places of its tokens: ids `start` to `start + length` of the path that it is part of."""

    url: str
    """`data:image/png;base64,...`"""
    start: int
    length: int


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One reply: `T` tokens, each with the logprob and the weight version it was sampled with.

    `logprobs[t]` is log softmax(logits / temperature) at the sampled token: the behaviour policy after temperature and
    before any top-p cut. A reply that a weight update interrupted after 12 of 40 tokens has
    `versions == [VersionSpan(3, 0, 12), VersionSpan(4, 12, 40)]`.
    """

    output_ids: list[int]  # [T]
    logprobs: list[float]  # [T]
    versions: list[VersionSpan]
    finish: FinishReason
    cached_tokens: int = 0
    """Prompt tokens whose KV cache was reused."""
    top_logprobs: list[list[tuple[float, int]]] = field(default_factory=list)  # [T][K] of (logprob, id)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Generation:
        """The inverse of `dataclasses.asdict`, from JSON. Raises KeyError, TypeError or ValueError for what is none."""
        spans = [VersionSpan(**span) for span in values["versions"]]
        top = [[(logprob, token) for logprob, token in position] for position in values["top_logprobs"]]
        return cls(**{**values, "versions": spans, "top_logprobs": top})


def join(first: Generation, second: Generation) -> Generation:
    """The reply made of two parts, the second of which went on from the first's last token."""
    offset = len(first.output_ids)
    spans = list(first.versions)
    for span in second.versions:
        moved = VersionSpan(span.version, span.start + offset, span.end + offset)
        if spans and spans[-1].version == moved.version:
            spans[-1] = VersionSpan(moved.version, spans[-1].start, moved.end)
        else:
            spans.append(moved)
    return Generation(
        output_ids=first.output_ids + second.output_ids,
        logprobs=first.logprobs + second.logprobs,
        versions=spans,
        finish=second.finish,
        cached_tokens=max(first.cached_tokens, second.cached_tokens),
        top_logprobs=first.top_logprobs + second.top_logprobs,
    )


def beginning(generation: Generation, count: int, finish: FinishReason) -> Generation:
    """The first `count` tokens of a reply, as one that ended there."""
    return replace(
        generation,
        output_ids=generation.output_ids[:count],
        logprobs=generation.logprobs[:count],
        versions=[replace(span, end=min(span.end, count)) for span in generation.versions if span.start < count],
        finish=finish,
        top_logprobs=generation.top_logprobs[:count],
    )


@dataclass
class Draft:
    """A reply that is being made: where it starts from, and a look at what it has."""

    start: Generation | None = None
    """Tokens that the reply has already, to be gone on from."""
    so_far: Callable[[], Generation] | None = None
    """What the reply has now, `start` included. Set by the engine, where it can tell."""


OnProgress = Callable[[list[int]], None]
"""Called with all output ids so far, while a reply grows. The reply keeps them, or fails."""


class Engine(Protocol):
    """A source of tokens whose weights can change while replies are in flight."""

    @property
    def version(self) -> int:
        """The weight version that serves new tokens."""
        ...

    @property
    def vocabulary(self) -> int | None:
        """Rows of the served model's output layer; None: not known."""
        ...

    @property
    def has_grammar(self) -> bool:
        """Whether it can hold a reply to `Sampling.json_schema`."""
        ...

    @property
    def takes_images(self) -> bool:
        """Whether the model that it serves sees images."""
        ...

    async def generate(
        self,
        input_ids: list[int],
        sampling: Sampling,
        session: str,
        on_progress: OnProgress | None = None,
        *,
        images: Sequence[ImageSpan] = (),
        draft: Draft | None = None,
    ) -> Generation:
        """Continue `input_ids`. Calls of one `session` prefer one server, for its prefix cache.

        `images` are those whose tokens are in `input_ids`, in order. With a `draft`, the reply goes on from its start,
        which the returned reply includes.

        Returns one uninterrupted, sound reply (`agentrl.engine.soundness`), whatever weight updates happen meanwhile. Raises
        EngineError when the servers refuse or fail. Cancelling the call aborts the generation on the server.
        """
        ...

    def end_session(self, session: str) -> None:
        """Forget a session: no more calls of it will come."""
        ...

    async def update_weights(self, checkpoint: Path, version: int) -> float:
        """Load `checkpoint` as `version` into every server, interrupting replies in flight. Returns the pause in
        seconds."""
        ...

    async def pause(self, mode: PauseMode) -> None:
        """Stop producing tokens until `resume`."""
        ...

    async def resume(self) -> None:
        """Produce tokens again."""
        ...

    async def health(self) -> None:
        """Return when every server answers; raise EngineError when one does not."""
        ...
