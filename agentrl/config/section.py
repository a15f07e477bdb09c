"""The base class of the configuration's sections, and their short form."""

from __future__ import annotations

import typing
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema

Positive = Annotated[int, Field(ge=1)]
TwoAtLeast = Annotated[int, Field(ge=2)]
NotNegative = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A section: unknown keys are refused, and nothing changes after it is read.

    A field holds a value, a section, a section or None (`trainer.lora`), or one of several kinds of a section (`trainer.objective`),
    which their key `kind` tells apart. A text in place of a section is short for its `short_key`: `trainer.objective = "gspo"`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    short_key: ClassVar[str] = "kind"
    """The key that a text in place of the section stands for, where the section has it."""

    @model_validator(mode="before")
    @classmethod
    def _in_full(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        fields = cls.model_fields
        return {name: _in_full(fields[name], value) if name in fields else value for name, value in content.items()}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the schema in which a section may be written in short, and a kind that is the default left out."""
        schema = handler(core)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, field in cls.model_fields.items():
            if short_key(field) is not None and name in properties:
                own = properties[name]
                kinds = own.pop("oneOf", None) or [{"$ref": own.pop("$ref")}]
                own.pop("discriminator", None)
                known = kinds_of(field)
                own["anyOf"] = [{"type": "string"} | ({"enum": known} if known else {}), *kinds]
        return schema


def sections_of(field: FieldInfo) -> tuple[type[Section], ...]:
    """Return the section that a field holds, those of its kinds in turn, or nothing where it holds a value."""
    if typing.get_origin(field.annotation) is list:
        return ()  # a list of sections is a value, which later sources replace as a whole
    held = typing.get_args(field.annotation) or (field.annotation,)
    return tuple(one for one in held if isinstance(one, type) and issubclass(one, Section))


def short_key(field: FieldInfo) -> str | None:
    """Return the key that a text in place of a field's section stands for; None where there is none."""
    sections = sections_of(field)
    if not sections or sections[0].short_key not in sections[0].model_fields:
        return None
    return sections[0].short_key


def kinds_of(field: FieldInfo) -> list[str]:
    """Return the kinds that a section may have, where there are several; else nothing."""
    sections = sections_of(field)
    return [kind for section in sections for kind in section_kinds(section)] if len(sections) > 1 else []


def section_kinds(section: type[Section]) -> tuple[str, ...]:
    """Return the kinds that are written with the keys of one of several sections."""
    return typing.get_args(section.model_fields["kind"].annotation)


def in_full(field: FieldInfo, value: Any) -> Any:
    """Return `value` with a text that is short for a section as that section."""
    key = short_key(field)
    return {key: value} if key is not None and isinstance(value, str) else value


def _in_full(field: FieldInfo, value: Any) -> Any:
    """Return `value` in full; where it may be of several kinds and does not say which, it is of the default one."""
    value = in_full(field, value)
    if kinds_of(field) and isinstance(value, dict) and "kind" not in value:
        return {"kind": field.default.kind, **value}
    if isinstance(value, bool) and {int, float} & {field.annotation, *typing.get_args(field.annotation)}:
        return str(value).lower()  # Python takes true for 1; as a text it is refused, by its key
    return value
