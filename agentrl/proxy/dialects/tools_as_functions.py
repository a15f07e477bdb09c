"""Tools that are no plain function, shown to the model as functions: those are what policies learn to call.

custom: takes free text                   a function with one argument, `input`
namespace of functions (responses)        each of its functions, as NAMESPACE__NAME
what the service itself would run         left out, and named among what is ignored: web search, files, code interpreters
what its client runs, under a type that   refused: no policy is shown it, and the client would wait for calls that cannot come
the service has been trained on
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Discriminator, Tag

from agentrl.proxy.completion import Json
from agentrl.proxy.dialects.fields import Part, plain_names
from agentrl.proxy.errors import ApiError
from agentrl.proxy.json_text import read_json

FunctionT = TypeVar("FunctionT")
CustomT = TypeVar("CustomT")
NamespaceT = TypeVar("NamespaceT")
_INPUT: Json = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


_RUN_BY_CLIENT = re.compile(
    r"(bash|text_editor|computer|memory)_[0-9]+|local_shell|shell|apply_patch|computer(_use_preview)?"
)
"""Types of tools that Anthropic's and OpenAI's clients run themselves."""
_MAX_SHOWN = 64


class _Environment(Part):
    type: str = ""


class OtherTool(Part):
    """A tool of a type that is neither a function nor a custom one."""

    type: str
    environment: _Environment | str | None = None
    """Where a shell is: in a container of the service, or with the client."""

    @property
    def is_run_by_client(self) -> bool:
        """Whether the client is told to run it."""
        where = self.environment.type if isinstance(self.environment, _Environment) else ""
        return _RUN_BY_CLIENT.fullmatch(self.type) is not None and not where.startswith("container")


def left_out(tools: Iterable[Any]) -> list[str]:
    """Return the names under which those of `tools` are ignored that a service would run.

    Raises:
        ApiError: One is run by its client, which would wait for calls that cannot come.
    """
    others = [tool for tool in tools if isinstance(tool, OtherTool)]
    for tool in others:
        if tool.is_run_by_client:
            message = (
                f"Unsupported tool: the model is not shown tools of type '{tool.type[:_MAX_SHOWN]}', and would never call "
                "it; send it as a function tool."
            )
            raise ApiError(400, message, param="tools", code="unsupported_value")
    return plain_names(f"tools.{tool.type}" for tool in others)


class CustomFormat(Part):
    """The form of a custom tool's text. A grammar is shown to the model, and its text is not held to it."""

    type: Literal["text", "grammar"] = "text"
    syntax: str = ""
    definition: str = ""


def _kind(tool: Any) -> str:
    """Return the kind of a tool as its client wrote it: "function", "custom", "namespace", or "other"."""
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    return kind if kind in ("function", "custom", "namespace") else "other"


AnyTool = Annotated[
    Annotated[FunctionT, Tag("function")]
    | Annotated[CustomT, Tag("custom")]
    | Annotated[NamespaceT, Tag("namespace")]
    | Annotated[OtherTool, Tag("other")],
    Discriminator(_kind),
]
"""A tool as OpenAI's clients write it: `AnyTool[FUNCTION, CUSTOM, NAMESPACE]`, the classes of one dialect. Where it has no namespaces,
one is an `OtherTool`."""


def custom_function(name: str, description: str | None, wanted: CustomFormat | None) -> Json:
    """Return the function that a custom tool is shown as."""
    parts = [description] if description else []
    if wanted is not None and wanted.type == "grammar":
        parts.append(f"The input follows this {wanted.syntax} grammar:\n{wanted.definition}")
    function: Json = {"name": name, "parameters": _INPUT}
    return {"type": "function", "function": {**function, "description": "\n\n".join(parts)} if parts else function}


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
