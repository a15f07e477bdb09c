"""Tools: typed Python functions as the JSON schema that a model reads, and the model's JSON as a call of them.

@tool methods of a class ──► tools_of(instance) ──► [Tool] ──► Tool.schema (what the model sees)
                                                          └──► Tool.arguments(text) (what the function gets), or ToolCallError
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeVar, get_type_hints

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema

from agentrl.errors import ToolCallError, ToolDefinitionError
from agentrl.tasks.task_type import problems_of

F = TypeVar("F", bound=Callable[..., Any])

TOOL_MARK = "__agentrl_tool__"
_ANY_ARGUMENTS = TypeAdapter(dict[str, Any])


def tool(function: F) -> F:
    """Mark a method, plain or async, as a tool of its environment.

    Its name, annotations and docstring become the schema: every parameter needs a type that pydantic knows; the docstring's
    first part describes the tool, its `Args:` (Google, NumPy or reST style) the parameters.
    """
    setattr(function, TOOL_MARK, True)
    return function


@dataclass(frozen=True)
class Tool:
    """A function that a model can call: `run(**arguments)` gives the result, at once or as an awaitable."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments."""
    run: Callable[..., Any]
    model: type[BaseModel] | None = field(default=None, repr=False)
    """Checks the arguments. None: they go to `run` as they came."""

    @property
    def schema(self) -> dict[str, Any]:
        """The tool in the form of OpenAI's `tools`."""
        described = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": described}

    def arguments(self, text: str | None) -> dict[str, Any]:
        """Return the arguments in a call's JSON text.

        Raises:
            ToolCallError: The arguments are wrong; it says so in pydantic's words, for the model.
        """
        try:
            if self.model is None:
                return _ANY_ARGUMENTS.validate_json(text or "{}")
            return dict(self.model.model_validate_json(text or "{}"))
        except ValidationError as error:
            raise ToolCallError(problems_of(error)) from None


def tools_of(instance: object) -> list[Tool]:
    """Return the methods of `instance` that are marked as tools, in the order in which its classes define them."""
    names: dict[str, None] = {}
    for cls in reversed(type(instance).__mro__):
        names |= {name: None for name, value in vars(cls).items() if hasattr(value, TOOL_MARK)}
    return [tool_of(getattr(instance, name)) for name in names if hasattr(getattr(instance, name), TOOL_MARK)]


def tool_of(function: Callable[..., Any]) -> Tool:
    """Return a typed function as a tool.

    Raises:
        ToolDefinitionError: A parameter without a type, *args or **kwargs.
    """
    return replace(_definition(getattr(function, "__func__", function)), run=function)


def typed_tool(name: str, description: str, fields: Mapping[str, Any], run: Callable[..., Any]) -> Tool:
    """Return a tool whose parameters are `fields` in pydantic's form: name -> (type, default or Field).

    Raises:
        ToolDefinitionError: A default is a number that JSON cannot say, such as inf.
    """
    model = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    schema = model.model_json_schema(schema_generator=_UntitledSchema)
    try:
        json.dumps(schema, allow_nan=False)
    except ValueError:
        raise ToolDefinitionError(f"tool {name}: JSON has no inf and no nan; use None as the default") from None
    kept = ("type", "properties", "required", "$defs")
    return Tool(name, description, {key: schema[key] for key in kept if key in schema}, run, model)


@lru_cache(maxsize=1024)
def _definition(function: Callable[..., Any]) -> Tool:
    """Return the tool of a function that is bound to no instance: every episode makes instances, and their tools are the same.

    Raises:
        ToolDefinitionError: A parameter has no type, cannot be given by name, or has a default such as inf.
    """
    name = function.__name__
    docstring = docstring_parser.parse(inspect.getdoc(function) or "")
    described = {parameter.arg_name: parameter.description for parameter in docstring.params}
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue  # the method of a class, not of an instance
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ToolDefinitionError(f"tool {name}: {parameter.name!r} cannot be given by name; use plain parameters")
        if parameter.name not in hints:
            raise ToolDefinitionError(f"tool {name}: the parameter {parameter.name!r} has no type; annotate it")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], Field(default, description=described.get(parameter.name)))
    return typed_tool(name, docstring.description or "", fields, function)


class _UntitledSchema(GenerateJsonSchema):
    """A schema without the titles that pydantic makes of names and no model needs."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return False."""
        return False
