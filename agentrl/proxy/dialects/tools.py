"""Tools as OpenAI's clients write them, and as the model is shown them: policies learn to call functions.

custom: takes free text                   a function with one argument, `input`
namespace of functions                    each of its functions, as NAMESPACE__NAME
what the service itself would run         left out, and named among what is ignored: web search, files, code interpreters
what its client runs, under a type that   refused: no policy is shown it, and the client would wait for calls that cannot come
the service has been trained on
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Annotated, Literal

from pydantic import AliasChoices, BeforeValidator, Field, model_validator

from agentrl.proxy.completion import Json, NamedTool
from agentrl.proxy.dialects.fields import RequestBody, plain_names
from agentrl.proxy.dialects.parts import Nested
from agentrl.proxy.errors import ApiError
from agentrl.proxy.json_text import read_json

CallText = Annotated[str, BeforeValidator(lambda value: json.dumps(value) if isinstance(value, dict) else value)]
"""The arguments of a call: JSON. Some clients keep it as an object, as chat templates have it."""
_INPUT: Json = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
_RUN_BY_CLIENT = re.compile(
    r"(bash|text_editor|computer|memory)_[0-9]+|local_shell|shell|apply_patch|computer(_use(_preview)?)?|computerUse"
)
"""Types of tools that Anthropic's, OpenAI's and Google's clients run themselves."""


class Callee(Nested):
    """The name of a tool, in a namespace of responses or in none."""

    name: str
    namespace: Annotated[str | None, Field(exclude=True)] = None

    @property
    def shown_name(self) -> str:
        """The name that the model is shown."""
        return f"{self.namespace}__{self.name}" if self.namespace else self.name


class _CustomFormat(Nested):
    """The form of a custom tool's text. A grammar is shown to the model, and its text is not held to it."""

    type: Literal["text", "grammar"] = "text"
    syntax: str = ""
    definition: str = ""


class Tool(Callee):
    """A tool of any type. That OpenAI would constrain a function's arguments (`strict`) is not shown to the policy."""

    type: str = "function"
    name: str = ""
    description: str | None = None
    parameters: Json | None = None
    format: _CustomFormat | None = None
    tools: list[Tool] = Field(default_factory=list, fail_fast=True)
    """Those of a namespace."""

    @model_validator(mode="after")
    def _named(self) -> Tool:
        if self.is_shown and not self.name:
            raise ValueError(f"a tool of type '{self.type}' needs 'name'")
        for tool in self.tools:
            tool.namespace = self.name
        return self

    @property
    def is_shown(self) -> bool:
        """Whether the model is shown it."""
        return self.type in ("function", "custom")

    def to_json(self) -> Json:
        """Return the function that the model is shown."""
        description, parameters = self.description, self.parameters
        if self.type == "custom":
            parameters = _INPUT
        if self.format is not None and self.format.type == "grammar":
            grammar = f"The input follows this {self.format.syntax} grammar:\n{self.format.definition}"
            description = f"{description}\n\n{grammar}" if description else grammar
        function = {"name": self.shown_name, "description": description, "parameters": parameters}
        return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


class _ChosenTool(Callee):
    type: Literal["function", "custom"]


class _AllowedTools(Nested):
    """Only some of the tools may be called: the others are not shown."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] = "auto"
    tools: list[_ChosenTool]


class ToolsRequest(RequestBody):
    """The body of a request of OpenAI's that may offer tools."""

    tools: list[Tool] = Field(default_factory=list, fail_fast=True)
    tool_choice: Literal["auto", "none", "required"] | _ChosenTool | _AllowedTools = "auto"
    parallel_tool_calls: bool = True

    @cached_property
    def shown_tools(self) -> dict[str, Tool]:
        """The tools that the model is shown, by the names that it is shown."""
        shown = {tool.shown_name: tool for tool in self._flat_tools() if tool.is_shown}
        if not isinstance(self.tool_choice, _AllowedTools):
            return shown
        allowed = {chosen.shown_name for chosen in self.tool_choice.tools}
        return {name: tool for name, tool in shown.items() if name in allowed}

    def calling(self) -> Json:
        """Return what these fields say, as fields of a `CompletionRequest`."""
        choice = self.tool_choice.mode if isinstance(self.tool_choice, _AllowedTools) else self.tool_choice
        return {
            "tools": [tool.to_json() for tool in self._flat_tools() if tool.shown_name in self.shown_tools],
            "tool_choice": NamedTool(choice.shown_name) if isinstance(choice, _ChosenTool) else choice,
            "parallel_tool_calls": self.parallel_tool_calls,
        }

    def custom_text(self, call: Json) -> str | None:
        """Return the text that the client has of a call of a custom tool; None for a call of a function."""
        tool = self.shown_tools.get(call["function"]["name"])
        return custom_input(call["function"]["arguments"]) if tool and tool.type == "custom" else None

    def ignored(self) -> list[str]:
        """Return the names of the fields, and the kinds of tools, that are asked for and not given."""
        return [*super().ignored(), *left_out(tool.type for tool in self._flat_tools() if not tool.is_shown)]

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
    return plain_names(f"tools.{kind}" for kind in types)


class Call(Callee):
    """A call of a function or of a custom tool, in a message of the assistant's, or as an item of responses."""

    type: Literal["function", "custom", "function_call", "custom_tool_call"] = "function"
    call_id: Annotated[str, Field(validation_alias=AliasChoices("call_id", "id"))]
    text: Annotated[CallText, Field(validation_alias=AliasChoices("arguments", "input"))]

    def to_json(self) -> Json:
        """Return it as it is recorded."""
        arguments = custom_arguments(self.text) if self.type.startswith("custom") else self.text
        return called(self.call_id, self.shown_name, arguments)


def called(call_id: str, name: str, arguments: str) -> Json:
    """Return a tool call as chat completions write it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def custom_arguments(text: str) -> str:
    """Return the arguments of a call of a custom tool, from the text that its client has of it."""
    return json.dumps({"input": text}, ensure_ascii=False)


def custom_input(arguments: str) -> str:
    """Return the text that a client has of a call of a custom tool. The policy may have written other arguments: as they are."""
    try:
        value = read_json(arguments)
    except ValueError:
        return arguments
    found = value.get("input") if isinstance(value, dict) and len(value) == 1 else None
    return found if isinstance(found, str) else arguments
