"""The fields of chat and text completions that change what is sampled from: OpenAI's, and those that vLLM and SGLang add."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agentrl.proxy.completion import Alterations
from agentrl.proxy.dialects.fields import RequestBody

TopK = Annotated[int, Field(ge=-1, lt=2**31)]
"""-1 and 0 mean all."""
_Penalty = Annotated[float, Field(ge=-2, le=2)]
_Token = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
"""A token id: the keys of a JSON object are texts."""
_Bias = Annotated[float, Field(ge=-100, le=100)]


class SamplingRequestBody(RequestBody):
    """The body of a request in a dialect that has all of these fields."""

    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    logit_bias: dict[_Token, _Bias] | None = None
    top_k: TopK | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None

    def alterations(self) -> Alterations:
        """Return what the request says of them."""
        return Alterations(
            top_k=self.top_k or -1,
            min_p=self.min_p or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            repetition_penalty=self.repetition_penalty or 1.0,
            logit_bias=tuple(
                sorted({int(token): bias for token, bias in (self.logit_bias or {}).items() if bias}.items())
            ),
        )
