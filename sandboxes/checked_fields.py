"""Values that are checked where they are made: a wrong one is named by its field, and not by whoever meets it first. pydantic checks."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model
from pydantic_core import PydanticCustomError

from agentrl.errors import ConfigError, one_line

LARGEST_LIMIT = 2**31
"""The kernel takes no larger ones of some, in bytes."""


def must_be(words: str, allows: Callable[[Any], bool]) -> BeforeValidator:
    """Return an annotation of what a value has to be, of any type, before its type is looked at; a message says `words` after "must be"."""

    def check(value: Any) -> Any:
        if not allows(value):
            raise PydanticCustomError("rule", "{words}", {"words": words})
        return value

    return BeforeValidator(check)


class Checked:
    """A dataclass whose fields are checked against their annotations.

    Raises:
        ConfigError: A field has a value that its annotation does not allow.
    """

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, hint in _hints(kind).items():
            check_argument(name, getattr(self, name), hint, f"{kind.__name__}.")


def check_argument(name: str, given: object, hint: Any, where: str = "") -> None:
    """Check an argument of a function against `hint`, which is written as a field's annotation is.

    Raises:
        ConfigError: It is none of `hint`.
    """
    try:
        _model(hint).__pydantic_validator__.validate_python({"given": given})
    except ValidationError as error:
        first = error.errors()[0]
        part = "" if first["input"] is given else f", whose {shown(first['input'])}"
        messages = dict.fromkeys(one["msg"].removeprefix("Input should be ") for one in error.errors())
        raise ConfigError(f"{where}{name} = {shown(given)}{part} must be {' or '.join(messages)}") from None


def shown(given: object) -> str:
    """Return a wrong value in a few words, with its type where its text does not tell it."""
    text = one_line(repr(given) if isinstance(given, str | bytes | float) else given, 80)
    plain = isinstance(given, str | bytes | float | int | list | tuple | dict | type) or given is None
    return text if plain else f"{text} ({type(given).__name__})"


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {name: hint for name, hint in hints.items() if typing.get_origin(hint) is not typing.ClassVar}


@cache
def _model(hint: Any) -> type[BaseModel]:
    strict = ConfigDict(strict=True, arbitrary_types_allowed=True)
    if typing.get_origin(hint) is Sequence:  # a text is none: no user means one
        (item,) = typing.get_args(hint)
        hint = list[item] | tuple[item, ...]  # type: ignore[valid-type]
    return create_model("Checked", __config__=strict, given=(hint, ...))


AboveZero = Annotated[float, Field(gt=0, le=LARGEST_LIMIT)]
WholeAboveZero = Annotated[int, Field(gt=0, le=LARGEST_LIMIT)]
Tolerance = Annotated[float, Field(ge=0, allow_inf_nan=False)]
