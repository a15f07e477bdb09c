"""Tools that are no plain function, shown to the model as functions: those are what policies learn to call.

custom: takes free text                   a function with one argument, `input`
namespace of functions (responses)        each of its functions, as NAMESPACE__NAME
what the service itself would run         left out, and named among what is ignored: web search, files, code interpreters
"""

from __future__ import annotations

import json
from typing import Any, Literal

from agentrl.proxy.completion import Json
from agentrl.proxy.dialects.fields import Part
from agentrl.proxy.json_text import read_json

_INPUT: Json = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


class CustomFormat(Part):
    """What a custom tool's text looks like. A grammar is shown to the model, and its text is not held to it."""

    type: Literal["text", "grammar"] = "text"
    syntax: str = ""
    definition: str = ""


def tool_kind(tool: Any) -> str:
    """Return the kind of a tool as its client wrote it: "function", "custom", "namespace", or "other"."""
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    return kind if kind in ("function", "custom", "namespace") else "other"


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
