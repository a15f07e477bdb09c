"""Decide what becomes of a field of a request by what it means, whether we know the field or not.

declared in the dialect's model                          honoured
changes the prompt or the reply (`CHANGES`)              refused with 400, unless its value changes nothing: that of another dialect too
anything else: labels, caching, budgets, unknown ones    ignored, and named once a session

A field that is null is a field that is absent, everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

from agentrl.proxy.errors import ApiError

_Harmless = dict[str, tuple[Any, ...]]
"""Fields, with the values at which each changes nothing where the dialect does not declare it."""

REPLY: _Harmless = {
    # What is sampled.
    "best_of": (1,),
    "frequency_penalty": (0,),
    "json_schema": (),
    "logit_bias": ({},),
    "max_completion_tokens": (),
    "max_output_tokens": (),
    "max_tokens": (),
    "min_p": (0,),
    "n": (1,),
    "output_config": ({},),
    "output_format": (),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "seed": (),
    "stop": ([],),
    "stop_sequences": ([],),
    "temperature": (),
    "text": ({}, {"format": {"type": "text"}}),
    "top_k": (-1, 0),
    "top_p": (),
    # How the reply comes.
    "background": (False,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
}
"""Fields that would change how a reply is sampled, or how it comes."""

PROMPT: _Harmless = {
    "add_generation_prompt": (True,),
    "audio": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "conversation": (),
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
}
"""Fields that would change the prompt."""

CHANGES = {**PROMPT, **REPLY}

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

    refused: ClassVar[_Harmless] = CHANGES

    def ignored(self) -> list[str]:
        """Return the names of what the client asked for and does not get.

        Raises:
            ApiError: A field that is not honoured would change what is asked for.
        """
        asked = self.model_extra or {}
        for name, value in asked.items():
            if name in self.refused and value not in self.refused[name]:
                message = f"Unsupported parameter: '{name}'. It would change the reply; leave it out."
                raise ApiError(400, message, param=name, code="unsupported_parameter")
        return plain_names(name for name in asked if name not in CHANGES and name not in self.refused)


def plain_names(names: Iterable[str]) -> list[str]:
    """Return names as a header can hold them: what a client makes up may be anything."""
    return sorted({name if _PLAIN_NAME.fullmatch(name) else "unnameable" for name in names})
