"""Decide what becomes of a field of a request: the fields that a dialect declares are an allow-list.

declared in the dialect's model                             honoured
not declared, and changes the prompt or the reply           refused with 400, unless its value changes nothing
anything else: labels, caching, budgets, unknown ones       ignored, named once in the log and counted

A field that is null is a field that is absent, everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_snake

from agentrl.proxy.errors import ApiError

CHANGES: dict[str, tuple[Any, ...]] = {
    # How a reply is sampled, in OpenAI's words and in those of vLLM and SGLang.
    "allowed_token_ids": (),
    "bad_words": ([],),
    "best_of": (1,),
    "ebnf": (),
    "frequency_penalty": (0,),
    "ignore_eos": (False,),
    "json_schema": (),
    "logit_bias": ({},),
    "max_completion_tokens": (),
    "max_output_tokens": (),
    "max_tokens": (),
    "min_p": (0,),
    "min_tokens": (0,),
    "n": (1,),
    "output_config": ({},),
    "output_format": (),
    "presence_penalty": (0,),
    "regex": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "stop": ([],),
    "stop_regex": ([],),
    "stop_sequences": ([],),
    "structured_outputs": ({},),
    "temperature": (),
    "text": ({}, {"format": {"type": "text"}}),
    "top_k": (-1, 0),
    "top_p": (),
    "typical_p": (1,),
    "use_beam_search": (False,),
    **dict.fromkeys(("logits_processors", "stop_token_ids"), ([],)),
    **dict.fromkeys(("guided_choice", "guided_grammar", "guided_json", "guided_regex", "seed"), ()),
    # How it comes.
    "background": (False,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
    "response_modalities": (["TEXT"], ["Text"], []),
    **dict.fromkeys(("audio", "speech_config"), ()),
    # The prompt.
    "add_generation_prompt": (True,),
    "cached_content": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "conversation": (),
    "documents": ([],),
    "echo": (False,),
    "enable_thinking": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "input": (),
    "instructions": ("",),
    "messages": (),
    "previous_response_id": (),
    "prompt": (),
    "suffix": ("",),
    "system": ("", []),
    "thread": (),
    "tool_choice": ("none", "auto", {"type": "none"}, {"type": "auto"}),
    "tools": ([],),
    "truncate_prompt_tokens": (),
}
"""Fields that would change the prompt or the reply where a dialect does not declare them, with the values at which each changes nothing."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Part(BaseModel):
    """A part of a request: null is the same as absent, and what it does not declare means nothing here."""

    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        if isinstance(value, dict) and None in value.values():
            return {name: item for name, item in value.items() if item is not None}
        return value


class RequestBody(Part):
    """The body of a request: what it declares is honoured."""

    model_config = ConfigDict(extra="allow")

    def ignored(self) -> list[str]:
        """Return the names of what the client asked for and does not get.

        Raises:
            ApiError: A field that is not honoured would change what is asked for.
        """
        known = {name: CHANGES.get(to_snake(name)) for name in self.model_extra or {}}
        for name, harmless in known.items():
            if harmless is not None and (self.model_extra or {})[name] not in harmless:
                message = f"Unsupported parameter: '{name}'. It would change the reply; leave it out."
                raise ApiError(400, message, param=name, code="unsupported_parameter")
        return plain_names(name for name, harmless in known.items() if harmless is None)


def plain_names(names: Iterable[str]) -> list[str]:
    """Return names as a line of the log can hold them: what a client makes up may be anything."""
    return sorted({name if _PLAIN_NAME.fullmatch(name) else "unnameable" for name in names})
