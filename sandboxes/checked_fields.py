"""Values that are checked where they are made: a wrong one is named by its field, and not by whoever meets it first. pydantic checks."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError, create_model
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from agentrl.errors import ConfigError, one_line

LARGEST_LIMIT = 2**31
"""The kernel takes no larger ones of some, in bytes."""


class Values(Protocol):
    """A dataclass."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


@dataclasses.dataclass(frozen=True)
class Rule:
    """In an annotation: what a value has to be beside its type, and how messages call that."""

    allows: Callable[[Any], bool]
    words: str
    """After "must be"."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of the type, and of this."""
        return core_schema.no_info_wrap_validator_function(self._check, handler(source))

    def _check(self, value: Any, of_type: Callable[[Any], Any]) -> Any:
        try:
            if self.allows(of_type(value)):
                return value
        except ValidationError:
            pass
        raise PydanticCustomError("rule", "{words}", {"words": self.words})


def check_fields(value: Values) -> None:
    """Check each field of a dataclass against its annotation: call it in `__post_init__`.

    Raises:
        ConfigError: A field has a value that its annotation does not allow.
    """
    kind = type(value)
    _check(f"{kind.__name__}.", _model_of(kind), vars(value))


def check_argument(name: str, given: object, hint: Any) -> None:
    """Check an argument of a function against `hint`, which is written as a field's annotation is.

    Raises:
        ConfigError: It is none of `hint`.
    """
    _check("", _model(((name, hint),)), {name: given})


def shown(given: object) -> str:
    """Return a wrong value in a few words, with its type where its text does not tell it."""
    text = one_line(repr(given) if isinstance(given, str | bytes | float) else given, 80)
    plain = isinstance(given, str | bytes | float | int | list | tuple | dict | type) or given is None
    return text if plain else f"{text} ({type(given).__name__})"


def _check(prefix: str, model: type[BaseModel], values: Mapping[str, object]) -> None:
    try:
        model.__pydantic_validator__.validate_python(values)
    except ValidationError as error:
        first, *others = error.errors()
        name = str(first["loc"][0])
        part = "" if first["input"] is values[name] else f", whose {shown(first['input'])}"
        messages = [first["msg"], *(one["msg"] for one in others if one["loc"][0] == name)]
        words = " or ".join(dict.fromkeys(message.removeprefix("Input should be ") for message in messages))
        raise ConfigError(f"{prefix}{name} = {shown(values[name])}{part} must be {words}") from None


@cache
def _model_of(kind: type[Values]) -> type[BaseModel]:
    return _model(tuple(typing.get_type_hints(kind, include_extras=True).items()))


@cache
def _model(hints: tuple[tuple[str, Any], ...]) -> type[BaseModel]:
    fields: dict[str, Any] = {name: (_no_text(hint), ...) for name, hint in hints}
    return create_model("Checked", __config__=ConfigDict(strict=True, arbitrary_types_allowed=True), **fields)


def _no_text(hint: Any) -> Any:
    """Return a hint for sequences that a text is none of: no user means one."""
    if typing.get_origin(hint) is not Sequence:
        return hint
    (item,) = typing.get_args(hint)
    return list[item] | tuple[item, ...]  # type: ignore[valid-type]


AboveZero = Annotated[float, Field(gt=0, le=LARGEST_LIMIT)]
WholeAboveZero = Annotated[int, Field(gt=0, le=LARGEST_LIMIT)]
Tolerance = Annotated[float, Field(ge=0, allow_inf_nan=False)]
