"""Google's schemas as JSON schemas: types in capitals, `nullable`, and whole numbers as texts."""

from __future__ import annotations

from typing import Any

from agentrl.proxy.completion import Json

_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_NOT_SHOWN = ("nullable", "propertyOrdering", "property_ordering")


def json_schema(schema: Json) -> Json:
    """Return the JSON schema that a schema of Google's stands for; one that is a JSON schema already is as it was."""
    shown: Json = {}
    for name, value in schema.items():
        if value is not None and name not in _NOT_SHOWN:
            shown[name] = _shown(name, value)
    if schema.get("nullable") is True and isinstance(kind := shown.get("type"), str):
        shown["type"] = [kind, "null"]
    return shown


def _shown(name: str, value: Any) -> Any:
    match name, value:
        case "type", str():
            return value.lower()
        case (("properties" | "$defs" | "definitions" | "defs"), dict()):
            return {key: _schema(one) for key, one in value.items()}
        case (("anyOf" | "any_of" | "oneOf" | "allOf" | "prefixItems"), list()):
            return [_schema(one) for one in value]
        case (("items" | "additionalProperties" | "not"), dict()):
            return json_schema(value)
    return int(value) if name in _COUNTS and isinstance(value, str) and value.isdecimal() else value


def _schema(value: Any) -> Any:
    return json_schema(value) if isinstance(value, dict) else value
