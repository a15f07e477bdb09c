"""Parts that requests of several dialects have: texts and images, the form of a reply, tools and their calls.

Chat completions nest what a part says under the name of its type, and responses do not; both are read:

{"type": "image_url", "image_url": {"url": "data:..."}}        {"type": "input_image", "image_url": "data:..."}
{"type": "function", "function": {"name": "add"}}              {"type": "function", "name": "add"}

Policies learn to call functions:

namespace of functions                                     each of its functions, as NAMESPACE__NAME
what the service itself would run (web search, files),     left out, and named among what is ignored
and custom tools, which take free text
what its client runs, under a type that the service        refused: no policy is shown it, and the client would wait for calls
has been trained on                                        that cannot come

Parts of messages are typed dictionaries, which pydantic checks three times as fast as models: a conversation of fifty turns has hundreds.
What they do not declare means nothing here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, AliasGenerator, AliasPath, BaseModel, ConfigDict, Field, model_validator
from typing_extensions import TypedDict

from agentrl.proxy.completion import OBJECT_SCHEMA, Json, NamedTool
from agentrl.proxy.dialects.fields import RequestBody
from agentrl.proxy.errors import ApiError, invalid

_RUN_BY_CLIENT = re.compile(
    r"(bash|text_editor|computer|memory)_[0-9]+|local_shell|shell|apply_patch|computer(_use(_preview)?)?|computerUse"
)
"""Types of tools that Anthropic's, OpenAI's and Google's clients run themselves."""
_SCHEMA = AliasChoices("schema", AliasPath("json_schema", "schema"))


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


def _nested(kind: str) -> ConfigDict:
    """Return the configuration of a part whose fields may be nested under `kind`."""
    generator = AliasGenerator(validation_alias=lambda name: AliasChoices(name, AliasPath(kind, name)))
    return ConfigDict(alias_generator=generator)


class Tool(BaseModel):
    """A tool of any type. That OpenAI would constrain a function's arguments (`strict`) is not shown to the policy."""

    model_config = _nested("function")

    type: str = "function"
    name: str = ""
    namespace: Annotated[str | None, Field(exclude=True)] = None
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None
    tools: list[Tool] = Field(default_factory=list, fail_fast=True)
    """Those of a namespace."""

    @model_validator(mode="after")
    def _named(self) -> Tool:
        for tool in self.tools:
            tool.namespace = self.name
        return self

    @property
    def shown_name(self) -> str:
        """The name that the model is shown."""
        return shown_name(self.namespace, self.name)

    def said_again(self) -> Json:
        """Return it as a response of OpenAI's says it again, which leaves out no field of a function."""
        unsaid = {"parameters": {}, "strict": False} if self.type == "function" else {}
        return {**unsaid, **self.model_dump(exclude_unset=True, exclude_none=True)}


class _ChosenTool(BaseModel):
    model_config = _nested("function")

    type: Literal["function"]
    name: str


class _AllowedTools(BaseModel):
    """Only some of the tools may be called: the others are not shown."""

    model_config = _nested("allowed_tools")

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] = "auto"
    tools: list[_ChosenTool]


class ToolsRequest(RequestBody):
    """The body of a request of OpenAI's that may offer tools."""

    tools: list[Tool] = Field(default_factory=list, fail_fast=True)
    tool_choice: Literal["auto", "none", "required"] | _ChosenTool | _AllowedTools = "auto"
    parallel_tool_calls: bool = True

    @cached_property
    def functions(self) -> dict[str, Tool]:
        """The functions that the model is shown, by the names that it is shown."""
        functions = {tool.shown_name: tool for tool in self._flat_tools() if tool.type == "function"}
        if not isinstance(self.tool_choice, _AllowedTools):
            return functions
        allowed = {chosen.name for chosen in self.tool_choice.tools}
        return {name: tool for name, tool in functions.items() if name in allowed}

    def calling(self) -> Json:
        """Return what these fields say, as fields of a `CompletionRequest`."""
        choice = self.tool_choice.mode if isinstance(self.tool_choice, _AllowedTools) else self.tool_choice
        return {
            "tools": [function_tool(name, tool.description, tool.parameters) for name, tool in self.functions.items()],
            "tool_choice": NamedTool(choice.name) if isinstance(choice, _ChosenTool) else choice,
            "parallel_tool_calls": self.parallel_tool_calls,
        }

    def ignored(self) -> list[str]:
        """Return the names of the fields, and the kinds of tools, that are asked for and not given."""
        return [*super().ignored(), *left_out(tool.type for tool in self._flat_tools() if tool.type != "function")]

    def _flat_tools(self) -> Iterator[Tool]:
        for tool in self.tools:
            yield from tool.tools if tool.type == "namespace" else [tool]


def left_out(types: Iterable[str]) -> list[str]:
    """Return the names under which tools of some types are ignored, as the service itself would run them.

    Raises:
        ApiError: One is run by its client, which would wait for calls that cannot come.
    """
    types = list(types)
    for kind in types:
        if _RUN_BY_CLIENT.fullmatch(kind):
            message = f"Unsupported tool: the model is not shown tools of type '{kind}', and would never call it; send it as a function tool."
            raise ApiError(400, message, param="tools", code="unsupported_value")
    return [f"tools.{kind}" for kind in types]


def shown_name(namespace: str | None, name: str) -> str:
    """Return the name of a function as the model is shown it."""
    return f"{namespace}__{name}" if namespace else name


def function_tool(name: str, description: str | None, parameters: Any) -> Json:
    """Return a function as the model is shown it.

    Raises:
        ApiError: It has no name.
    """
    if not name:
        raise invalid("tools", "a function needs 'name'")
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


def function_call(call_id: str, name: str, arguments: str | Json) -> Json:
    """Return a tool call as chat completions write it, with its arguments as JSON text."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}
