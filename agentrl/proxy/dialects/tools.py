"""Tools as OpenAI's clients write them, and as the model is shown them: policies learn to call functions.

namespace of functions                    each of its functions, as NAMESPACE__NAME
what the service itself would run, and    left out, and named among what is ignored: web search, files, code interpreters
custom tools, which take free text
what its client runs, under a type that   refused: no policy is shown it, and the client would wait for calls that cannot come
the service has been trained on

Chat completions nest what a tool, a choice or a call says under the name of its type, and responses do not; both are read:

{"type": "function", "function": {"name": "add"}}        {"type": "function", "name": "add"}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, AliasGenerator, AliasPath, BaseModel, ConfigDict, Field, model_validator

from agentrl.proxy.completion import Json, NamedTool
from agentrl.proxy.dialects.fields import RequestBody
from agentrl.proxy.errors import ApiError

_RUN_BY_CLIENT = re.compile(
    r"(bash|text_editor|computer|memory)_[0-9]+|local_shell|shell|apply_patch|computer(_use(_preview)?)?|computerUse"
)
"""Types of tools that Anthropic's, OpenAI's and Google's clients run themselves."""


def _nested(kind: str) -> ConfigDict:
    """Return the configuration of a part whose fields may be nested under `kind`."""
    generator = AliasGenerator(validation_alias=lambda name: AliasChoices(name, AliasPath(kind, name)))
    return ConfigDict(alias_generator=generator)


class Callee(BaseModel):
    """The name of a tool, in a namespace of responses or in none."""

    model_config = _nested("function")

    name: str = ""
    namespace: Annotated[str | None, Field(exclude=True)] = None

    @property
    def shown_name(self) -> str:
        """The name that the model is shown."""
        return shown_name(self.namespace, self.name)


class Tool(Callee):
    """A tool of any type. That OpenAI would constrain a function's arguments (`strict`) is not shown to the policy."""

    type: str = "function"
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None
    tools: list[Tool] = Field(default_factory=list, fail_fast=True)
    """Those of a namespace."""

    @model_validator(mode="after")
    def _named(self) -> Tool:
        if self.type == "function" and not self.name:
            raise ValueError("a function needs 'name'")
        for tool in self.tools:
            tool.namespace = self.name
        return self

    def to_json(self) -> Json:
        """Return the function that the model is shown."""
        return function_tool(self.shown_name, self.description, self.parameters)

    def said_again(self) -> Json:
        """Return it as a response of OpenAI's says it again, which leaves out no field of a function."""
        unsaid = {"parameters": {}, "strict": False} if self.type == "function" else {}
        return {**unsaid, **self.model_dump(exclude_unset=True, exclude_none=True)}


class _ChosenTool(Callee):
    type: Literal["function"]


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
        allowed = {chosen.shown_name for chosen in self.tool_choice.tools}
        return {name: tool for name, tool in functions.items() if name in allowed}

    def calling(self) -> Json:
        """Return what these fields say, as fields of a `CompletionRequest`."""
        choice = self.tool_choice.mode if isinstance(self.tool_choice, _AllowedTools) else self.tool_choice
        return {
            "tools": [tool.to_json() for tool in self.functions.values()],
            "tool_choice": NamedTool(choice.shown_name) if isinstance(choice, _ChosenTool) else choice,
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
    """Return a function as the model is shown it."""
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


def function_call(call_id: str, name: str, arguments: str | Json) -> Json:
    """Return a tool call as chat completions write it, with its arguments as JSON text."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}
