"""What a field of a request means decides what becomes of it, whether we know the field or not.

declared in a dialect's model                            honoured
changes what is sampled, or the prompt (`CHANGES`)       refused with 400, unless its value changes nothing
anything else: labels, caching, budgets, unknown ones    ignored, and named once a session

A field that is null is a field that is absent, everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from agentrl.proxy.api_error import ApiError

CHANGES: dict[str, tuple[Any, ...]] = {
    # What is sampled.
    "best_of": (1,),
    "bad_words": ([],),
    "ebnf": (),
    "frequency_penalty": (0,),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "ignore_eos": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "presence_penalty": (0,),
    "regex": (),
    "repetition_penalty": (1,),
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "top_a": (0,),
    "top_k": (-1, 0),
    "typical_p": (1,),
    "use_beam_search": (False,),
    # What the prompt is.
    "add_generation_prompt": (True,),
    "audio": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "conversation": (),
    "echo": (False,),
    "prompt": (),
    "suffix": ("",),
    # How the reply comes.
    "background": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
}
"""Fields that no dialect declares and that would change the reply, with the values at which each changes nothing."""

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
            ApiError: A field would change the reply.
        """
        asked = self.model_extra or {}
        for name, value in asked.items():
            if name in CHANGES and value not in CHANGES[name]:
                message = f"Unsupported parameter: '{name}'. It would change the reply; leave it out."
                raise ApiError(400, message, param=name, code="unsupported_parameter")
        return plain_names(name for name in asked if name not in CHANGES)


def plain_names(names: Iterable[str]) -> list[str]:
    """Return names as a header can hold them: what a client makes up may be anything."""
    return sorted({name if _PLAIN_NAME.fullmatch(name) else "unnameable" for name in names})
