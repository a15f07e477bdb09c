"""Decide what becomes of a field of a request: the fields that a dialect declares are an allow-list.

declared in the dialect's model                             honoured
not declared, and changes the prompt or the reply           refused with 400, unless its value changes nothing
anything else: labels, caching, budgets, unknown ones       ignored, named once in the log and counted

A field that is null is a field that is absent, everywhere.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_snake

from agentrl.proxy.errors import ApiError

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
