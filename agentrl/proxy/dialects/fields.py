"""Decide what becomes of a field of a request: the fields that a dialect declares are an allow-list.

declared in the dialect's model                             honoured
not declared, and changes the prompt or the reply           refused with 400, unless its value changes nothing
anything else: labels, caching, budgets, unknown ones       ignored, named once in the log and counted

A field that is null is a field that is absent, everywhere.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_snake

from agentrl.proxy.completion import Json
from agentrl.proxy.errors import ApiError

Tokens = Annotated[int, Field(ge=1, lt=2**31)]
Seed = Annotated[int, Field(ge=0, lt=2**62)]
Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
TopK = Annotated[int, Field(ge=-1, lt=2**31)]
"""-1 and 0 mean all."""
Penalty = Annotated[float, Field(ge=-2, le=2)]
Count = Annotated[int, Field(ge=1, le=128)]
"""How many replies are asked for."""
Stop = Annotated[str, Field(min_length=1)]
_Token = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
"""A token id: the keys of a JSON object are texts."""
_Bias = Annotated[float, Field(ge=-100, le=100)]

CHANGES: dict[str, list[Any]] = {
    name: harmless
    for names, harmless in (
        ("best_of n repetition_penalty typical_p", [1]),
        ("frequency_penalty min_p min_tokens presence_penalty", [0]),
        ("top_k", [-1, 0]),
        ("background continue_final_message echo ignore_eos use_beam_search", [False]),
        ("add_generation_prompt parallel_tool_calls", [True]),
        ("instructions suffix", [""]),
        ("system", ["", []]),
        ("chat_template_kwargs logit_bias output_config structured_outputs", [{}]),
        ("bad_words documents functions logits_processors stop stop_regex stop_sequences stop_token_ids tools", [[]]),
        ("response_format", [{"type": "text"}]),
        ("text", [{}, {"format": {"type": "text"}}]),
        ("modalities response_modalities", [["text"], ["TEXT"], ["Text"]]),
        ("function_call tool_choice", ["none", "auto", {"type": "none"}, {"type": "auto"}]),
        ("allowed_token_ids ebnf guided_choice guided_grammar guided_json guided_regex json_schema regex seed", []),
        ("max_completion_tokens max_output_tokens max_tokens output_format temperature top_p", []),
        ("cached_content chat_template conversation enable_thinking input messages previous_response_id prompt", []),
        ("audio speech_config thread truncate_prompt_tokens", []),
    )
    for name in names.split()
}
"""Fields that change the prompt or the reply, also in the words of vLLM and SGLang, with the values at which each changes nothing: where a dialect does not declare one, others are refused."""


class RequestBody(BaseModel):
    """The body of a request: what it declares is honoured."""

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        return {name: item for name, item in value.items() if item is not None} if isinstance(value, dict) else value

    def ignored(self) -> list[str]:
        """Return the names of what the client asked for and does not get.

        Raises:
            ApiError: A field that is not honoured would change what is asked for.
        """
        names = []
        for name, value in (self.model_extra or {}).items():
            harmless = CHANGES.get(to_snake(name))
            if harmless is None:
                names.append(name)
            elif value not in harmless:
                message = f"Unsupported parameter: '{name}'. It would change the reply; leave it out."
                raise ApiError(400, message, param=name, code="unsupported_parameter")
        return names


class _StreamOptions(BaseModel):
    include_usage: bool | None = None


class SampledRequest(RequestBody):
    """The body of a request for chat or text completions, but for its prompt."""

    model: str
    stream: bool = False
    stream_options: _StreamOptions = _StreamOptions()
    n: Count = 1
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] = Field(default_factory=list)
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
        """Return what these fields say, as fields of a `CompletionRequest`."""
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
            "stop": [self.stop] if isinstance(self.stop, str) else self.stop,
            "max_tokens": self.max_tokens,
            "seed": self.seed,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "alterations": alterations,
        }
