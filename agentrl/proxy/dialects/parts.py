"""Parts that requests of several dialects have: texts, images, and the form of a reply.

Chat completions nest what a part says under the name of its type, and responses do not; both are read:

{"type": "image_url", "image_url": {"url": "data:..."}}        {"type": "input_image", "image_url": "data:..."}

Parts of messages are typed dictionaries, which pydantic checks three times as fast as models: a conversation of fifty turns has hundreds.
What they do not declare means nothing here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, AliasPath, BaseModel, Field
from typing_extensions import TypedDict

from agentrl.proxy.completion import OBJECT_SCHEMA, Json


class Text(TypedDict):
    """A text, also one that is a thought."""

    type: Literal["text", "input_text", "output_text", "reasoning_text"]
    text: str


class Image(TypedDict):
    """An image."""

    type: Literal["image_url", "input_image"]
    url: Annotated[str, Field(validation_alias=AliasChoices(AliasPath("image_url", "url"), "image_url"))]


Content = str | Annotated[list[Annotated[Text | Image, Field(discriminator="type")]], Field(fail_fast=True)]
"""The content of a message of OpenAI's."""


def joined(content: str | Sequence[Mapping[str, Any]]) -> str | list[Json]:
    """Return the content of a message as chat completions write it: its parts as one text, unless some are images.

    Args:
        content: A text, or parts, each with a `text`, or with the `url` of an image.
    """
    if isinstance(content, str):
        return content
    if all("text" in part for part in content):
        return "".join(part["text"] for part in content)
    return [
        {"type": "text", "text": part["text"]}
        if "text" in part
        else {"type": "image_url", "image_url": {"url": part["url"]}}
        for part in content
    ]


_SCHEMA = AliasChoices("schema", AliasPath("json_schema", "schema"))


class Format(BaseModel):
    """The form of a reply: a text, JSON of any object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: Annotated[Json | None, Field(validation_alias=_SCHEMA, serialization_alias="schema")] = None


def schema_text(wanted: Format | None) -> str | None:
    """Return the JSON schema that a reply must satisfy, as JSON; None for text."""
    if wanted is None or wanted.type == "text":
        return None
    return OBJECT_SCHEMA if wanted.schema_ is None else json.dumps(wanted.schema_)
