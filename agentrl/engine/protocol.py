"""The protocol of an engine, as the rest of agentrl knows it: token ids in, token ids with logprobs and weight versions out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from agentrl.record.tokens import Generation, ImageSpan

PauseMode = Literal["retract", "in_place", "abort"]
"""How a weight update interrupts replies in flight.

`retract`: they stay open and their KV cache is recomputed under the new weights. `in_place`: they stay open and keep the
old KV cache. `abort`: the server hands back what it has, and the client resubmits prompt + partial ids.
"""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the tokens of one reply are drawn.

    Penalties, in the order of the fields, and then `logit_bias` change the logits; `temperature` divides them; `top_p`, `top_k` and `min_p`
    cut what is drawn from, each by the probabilities of the whole distribution. The reported logprobs are those after the
    temperature and before any cut.
    """

    max_new_tokens: int
    temperature: float = 1.0
    """0 is greedy decoding."""
    top_p: float = 1.0
    top_k: int = -1
    """So many of the likeliest tokens alone are drawn from; -1: all. 1 is greedy decoding, as temperature 0 is."""
    min_p: float = 0.0
    """Only tokens with at least this share of the likeliest token's probability are drawn from."""
    frequency_penalty: float = 0.0
    """Taken off a token's logit once for every time that this reply holds it already."""
    presence_penalty: float = 0.0
    """Taken off the logit of every token that this reply holds already."""
    repetition_penalty: float = 1.0
    """Divides the logit of every token that this reply holds already, or multiplies it where it is negative."""
    logit_bias: Sequence[tuple[int, float]] = ()
    """(token id, what is added to its logit), each id once."""
    stop: Sequence[str] = ()
    """Strings that end the reply; the ids up to and including the match are returned."""
    stop_token_ids: Sequence[int] = ()
    seed: int | None = None
    top_logprobs: int = 0
    """How many of the most likely tokens to report at every position."""
    json_schema: str | None = None
    """A JSON schema, as JSON, that the reply's text must satisfy; for engines with a grammar. The reported logprobs are
    those of the constrained distribution."""

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken every time. It is then reported at temperature 1."""
        return self.temperature == 0 or self.top_k == 1

    @property
    def has_penalties(self) -> bool:
        """Whether what the reply holds already changes how it goes on."""
        return (self.frequency_penalty, self.presence_penalty, self.repetition_penalty) != (0, 0, 1)

    @property
    def altered(self) -> bool:
        """Whether tokens are drawn from another distribution than softmax(logits / temperature), by another cut than top_p."""
        return self.has_penalties or self.top_k != -1 or self.min_p != 0 or bool(self.logit_bias)

    @property
    def in_one_piece(self) -> bool:
        """Whether a server must make the reply from its first token on: what it starts from elsewhere, it takes for the prompt."""
        return self.has_penalties or self.json_schema is not None


OnProgress = Callable[[list[int]], None]
"""Called with all output ids so far, while a reply grows. The reply keeps them, or fails."""


class Engine(Protocol):
    """A source of tokens, whose weights something else may change while replies are in flight."""

    @property
    def version(self) -> int:
        """The weight version that serves new tokens."""

    @property
    def vocabulary(self) -> int | None:
        """Rows of the served model's output layer; None: not known."""

    @property
    def context_length(self) -> int | None:
        """Tokens that a prompt and its reply may have together, where servers hold fewer than the model could; None: not known."""

    @property
    def has_grammar(self) -> bool:
        """Whether it can hold a reply to `Sampling.json_schema`."""

    @property
    def takes_images(self) -> bool:
        """Whether the model that it serves sees images."""

    async def generate(
        self,
        input_ids: list[int],
        sampling: Sampling,
        session: str,
        on_progress: OnProgress | None = None,
        *,
        images: Sequence[ImageSpan] = (),
        adapter: str = "",
    ) -> Generation:
        """Continue `input_ids`. Cancelling the call aborts the generation on the server.

        Args:
            input_ids: Ids of the prompt.
            sampling: How to sample.
            session: Calls of one session prefer one server, for its prefix cache.
            on_progress: Called with all output ids so far while the reply grows; None: nobody looks.
            images: Those whose tokens are in `input_ids`, in order.
            adapter: The role whose LoRA adapter answers, where roles have adapters of their own; "": whatever is served.

        Returns:
            One uninterrupted, sound reply (`agentrl.record.soundness`), whatever weight updates happen meanwhile.

        Raises:
            EngineError: The servers refuse or fail.
        """

    def end_session(self, session: str) -> None:
        """Forget a session: no more calls of it will come."""

    async def health(self) -> None:
        """Return when every server answers; raise EngineError when one does not."""


class UpdatableEngine(Engine, Protocol):
    """A source of tokens whose weights can change while replies are in flight."""

    async def update_weights(self, checkpoint: Path, version: int) -> float:
        """Load `checkpoint` as `version` into every server, interrupting replies in flight.

        Returns the pause in seconds.
        """

    async def pause(self, mode: PauseMode) -> None:
        """Stop producing tokens until `resume`."""

    async def resume(self) -> None:
        """Produce tokens again."""
