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
from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from agentrl.proxy.completion import Json, NamedTool
from agentrl.proxy.dialects.fields import Part, RequestBody, plain_names
from agentrl.proxy.dialects.parts import Nested
from agentrl.proxy.errors import ApiError
from agentrl.proxy.json_text import read_json

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


class FunctionTool(Callee):
    """A function. That OpenAI would constrain its arguments (`strict`) is not shown to the policy."""

    type: Literal["function"] = "function"
    description: str | None = None
    parameters: Json | None = None

    def to_json(self) -> Json:
        """Return the function that the model is shown."""
        function = self.model_dump(exclude_none=True, exclude={"type"})
        return {"type": "function", "function": {**function, "name": self.shown_name}}


class _CustomFormat(Nested):
    """The form of a custom tool's text. A grammar is shown to the model, and its text is not held to it."""

    type: Literal["text", "grammar"] = "text"
    syntax: str = ""
    definition: str = ""


class CustomTool(Callee):
    """A tool that takes free text."""

    type: Literal["custom"]
    description: str | None = None
    format: _CustomFormat | None = None

    def to_json(self) -> Json:
        """Return the function that the model is shown."""
        parts = [self.description] if self.description else []
        if self.format is not None and self.format.type == "grammar":
            parts.append(f"The input follows this {self.format.syntax} grammar:\n{self.format.definition}")
        function: Json = {"name": self.shown_name, "parameters": _INPUT}
        return {"type": "function", "function": {**function, "description": "\n\n".join(parts)} if parts else function}


class OtherTool(Part):
    """A tool of another type."""

    type: str


def _kind(tool: Any) -> str:
    kind = tool.get("type", "function") if isinstance(tool, dict) else getattr(tool, "type", None)
    return kind if kind in ("function", "custom", "namespace") else "other"


_PlainTool = Annotated[
    Annotated[FunctionTool, Tag("function")]
    | Annotated[CustomTool, Tag("custom")]
    | Annotated[OtherTool, Tag("other")],
    Discriminator(_kind),
]


class _Namespace(Part):
    type: Literal["namespace"]
    name: str
    description: str | None = None
    tools: Annotated[list[_PlainTool], Field(fail_fast=True)]


_Tool = Annotated[
    Annotated[FunctionTool, Tag("function")]
    | Annotated[CustomTool, Tag("custom")]
    | Annotated[_Namespace, Tag("namespace")]
    | Annotated[OtherTool, Tag("other")],
    Discriminator(_kind),
]


class _ChosenTool(Callee):
    type: Literal["function", "custom"]


class _AllowedTools(Nested):
    """Only some of the tools may be called: the others are not shown."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] = "auto"
    tools: list[_ChosenTool]


class ToolsRequest(RequestBody):
    """The body of a request of OpenAI's that may offer tools."""

    tools: Annotated[list[_Tool], Field(fail_fast=True)] | None = None
    tool_choice: Literal["auto", "none", "required"] | _ChosenTool | _AllowedTools = "auto"
    parallel_tool_calls: bool = True

    @cached_property
    def shown_tools(self) -> dict[str, FunctionTool | CustomTool]:
        """The tools that the model is shown, by the names that it is shown."""
        shown: list[FunctionTool | CustomTool] = []
        for tool in self.tools or []:
            inner = tool.tools if isinstance(tool, _Namespace) else [tool]
            space = {"namespace": tool.name} if isinstance(tool, _Namespace) else {}
            shown += [one.model_copy(update=space) for one in inner if isinstance(one, FunctionTool | CustomTool)]
        if isinstance(self.tool_choice, _AllowedTools):
            names = {chosen.shown_name for chosen in self.tool_choice.tools}
            shown = [tool for tool in shown if tool.shown_name in names]
        return {tool.shown_name: tool for tool in shown}

    def calling(self) -> Json:
        """Return what these fields say, as fields of a `CompletionRequest`."""
        choice = self.tool_choice.mode if isinstance(self.tool_choice, _AllowedTools) else self.tool_choice
        return {
            "tools": [tool.to_json() for tool in self.shown_tools.values()],
            "tool_choice": NamedTool(choice.shown_name) if isinstance(choice, _ChosenTool) else choice,
            "parallel_tool_calls": self.parallel_tool_calls,
        }

    def custom_text(self, call: Json) -> str | None:
        """Return the text that the client has of a call of a custom tool; None for a call of a function."""
        function = call["function"]
        is_custom = isinstance(self.shown_tools.get(function["name"]), CustomTool)
        return custom_input(function["arguments"]) if is_custom else None

    def ignored(self) -> list[str]:
        """Return the names of the fields, and the kinds of tools, that are asked for and not given."""
        tools = [one for tool in self.tools or [] for one in (tool.tools if isinstance(tool, _Namespace) else [tool])]
        return [*super().ignored(), *left_out(tool.type for tool in tools if isinstance(tool, OtherTool))]


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
