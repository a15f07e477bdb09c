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
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from agentrl.errors import ToolCallError, ToolDefinitionError

F = TypeVar("F", bound=Callable[..., Any])

TOOL_MARK = "__agentrl_tool__"
MAX_COMPLAINTS = 5
"""Wrong arguments that one message names."""
MAX_SHOWN_CHARS = 80
"""How much of a wrong value is repeated to the model."""


def tool(function: F) -> F:
    """Mark a method, plain or async, as a tool of its environment.

    Its name, annotations and docstring become the schema: every parameter needs a type that pydantic knows; the docstring's
    first part describes the tool, its `Args:` (Google, NumPy or reST style) the parameters.
    """
    setattr(function, TOOL_MARK, True)
    return function


@dataclass(frozen=True)
class Tool:
    """Something a model can call: `run(**arguments)` gives the result, at once or as an awaitable."""

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
            ToolCallError: The arguments are wrong; it says so in words for the model.
        """
        try:
            given = json.loads(text or "{}")
        except (ValueError, RecursionError) as error:
            raise ToolCallError(f"the arguments are not valid JSON: {error}") from None
        if not isinstance(given, dict):
            raise ToolCallError(f"the arguments must be a JSON object, not {type(given).__name__}")
        if self.model is None:
            return given
        try:
            checked = self.model.model_validate(given)
        except ValidationError as error:
            raise ToolCallError(_complaint(error)) from None
        return {name: getattr(checked, name) for name in self.model.model_fields}


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
    model = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    content = model.model_json_schema()
    for part, schema in (content["properties"] | content.get("$defs", {})).items():
        try:
            json.dumps(schema, allow_nan=False)
        except ValueError:
            why = f"the schema of {part!r} holds a number that JSON has no form for: {schema}; use None for inf"
            raise ToolDefinitionError(f"tool {name}: {why}") from None
    parameters = {"type": "object", "properties": _untitled(content["properties"])}
    parameters |= {key: content[key] for key in ("required", "$defs") if key in content}
    return Tool(name, docstring.description or "", parameters, function, model)


def _untitled(properties: dict[str, Any]) -> dict[str, Any]:
    """Return the properties without the titles and null defaults that pydantic adds and no model needs."""
    return {
        name: {key: value for key, value in schema.items() if key != "title" and (key, value) != ("default", None)}
        for name, schema in properties.items()
    }


def _complaint(error: ValidationError) -> str:
    lines = []
    for problem in error.errors()[:MAX_COMPLAINTS]:
        where = ".".join(map(str, problem["loc"]))
        match problem["type"]:
            case "missing":
                lines.append(f"{where!r} is missing")
            case "extra_forbidden":
                lines.append(f"there is no argument {where!r}")
            case _:
                given = json.dumps(problem["input"], default=str)
                shown = given if len(given) <= MAX_SHOWN_CHARS else given[:MAX_SHOWN_CHARS] + "..."
                lines.append(f"{where} = {shown}: {problem['msg'][:1].lower()}{problem['msg'][1:]}")
    return "; ".join(lines)
