"""Parts that requests of several dialects have: texts, images, and the form of a reply.

Chat completions nest what a part says under the name of its type, and responses do not; both are read:

{"type": "image_url", "image_url": {"url": "data:..."}}        {"type": "input_image", "image_url": "data:..."}
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Literal, Protocol

from pydantic import AliasChoices, AliasPath, Field

from agentrl.proxy.completion import OBJECT_SCHEMA, Json
from agentrl.proxy.dialects.fields import Part


class Text(Part):
    """A text, also one that is a thought."""

    type: Literal["text", "input_text", "output_text", "reasoning_text"]
    text: str

    def shown(self) -> Json:
        """Return it as chat completions write it."""
        return {"type": "text", "text": self.text}


class Image(Part):
    """An image."""

    type: Literal["image_url", "input_image"]
    url: Annotated[str, Field(validation_alias=AliasChoices(AliasPath("image_url", "url"), "image_url"))]

    def shown(self) -> Json:
        """Return it as chat completions write it."""
        return image(self.url)


class _Shown(Protocol):
    def shown(self) -> Json: ...


Content = str | Annotated[list[Annotated[Text | Image, Field(discriminator="type")]], Field(fail_fast=True)]
"""The content of a message of OpenAI's."""


def image(url: str) -> Json:
    """Return an image as chat completions write it."""
    return {"type": "image_url", "image_url": {"url": url}}


def joined(content: str | Sequence[_Shown]) -> str | list[Json]:
    """Return the content of a message, its parts without images as one text."""
    if isinstance(content, str):
        return content
    parts = [part.shown() for part in content]
    return parts if any(part["type"] == "image_url" for part in parts) else "".join(part["text"] for part in parts)


_SCHEMA = AliasChoices("schema", AliasPath("json_schema", "schema"))


class Format(Part):
    """The form of a reply: a text, JSON of any object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: Annotated[Json | None, Field(validation_alias=_SCHEMA, serialization_alias="schema")] = None


def schema_text(wanted: Format | None) -> str | None:
    """Return the JSON schema that a reply must satisfy, as JSON; None for text."""
    if wanted is None or wanted.type == "text":
        return None
    return OBJECT_SCHEMA if wanted.schema_ is None else json.dumps(wanted.schema_)
