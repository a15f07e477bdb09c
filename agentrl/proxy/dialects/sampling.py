"""The fields that say how replies are sampled: their types, and those of chat and text completions, with what vLLM and SGLang add."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agentrl.proxy.completion import Json
from agentrl.proxy.dialects.fields import Part, RequestBody
from agentrl.proxy.errors import invalid

Tokens = Annotated[int, Field(ge=1, lt=2**31)]
Seed = Annotated[int, Field(ge=0, lt=2**62)]
Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
TopK = Annotated[int, Field(ge=-1, lt=2**31)]
"""-1 and 0 mean all."""
Penalty = Annotated[float, Field(ge=-2, le=2)]
Count = Annotated[int, Field(ge=1, le=128)]
"""How many replies are asked for."""
_Token = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
"""A token id: the keys of a JSON object are texts."""
_Bias = Annotated[float, Field(ge=-100, le=100)]


class _StreamOptions(Part):
    include_usage: bool = False


class SampledRequest(RequestBody):
    """The body of a request for chat or text completions, but for its prompt."""

    model: str
    stream: bool | None = None
    stream_options: _StreamOptions = Field(default_factory=_StreamOptions)
    n: Count = 1
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    max_tokens: Tokens | None = None
    seed: Seed | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] = 1.0
    logit_bias: dict[_Token, _Bias] | None = None
    top_k: TopK | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0

    def sampling(self) -> Json:
        """Return what these fields say, as fields of a `CompletionRequest`.

        Raises:
            ApiError: A stop string is empty.
        """
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if not all(stop):
            raise invalid("stop", "a stop string is empty")
        bias = {int(token): bias for token, bias in (self.logit_bias or {}).items() if bias}
        alterations = {
            "top_k": self.top_k or -1,
            "min_p": self.min_p,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "repetition_penalty": self.repetition_penalty,
            "logit_bias": tuple(sorted(bias.items())),
        }
        return {
            "stop": stop,
            "max_tokens": self.max_tokens,
            "seed": self.seed,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "alterations": alterations,
        }
