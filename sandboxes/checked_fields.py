"""Values that are checked where they are made: what is wrong with one is told by the name of its field, and not by whoever meets it first.

A task set has tests by the thousand, so each field has a few quick functions of its own, made once from its annotation.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, Union

from agentrl.errors import ConfigError, one_line

LARGEST_LIMIT = 2**31
"""The kernel takes no larger ones of some, in bytes."""


class Values(Protocol):
    """A dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


class Rule(NamedTuple):
    """What a field may hold."""

    allows: Callable[[Any], bool]
    words: str
    """After "must be"."""


def check_fields(value: Values) -> None:
    """Raise ConfigError where a field of a dataclass holds what its annotation does not allow: call it in `__post_init__`.

    A Rule in an annotation, as in `AboveZero`, has to allow the value too, and says in its own words what must be.

    Raises:
        ConfigError: A field has a value that its annotation does not allow.
    """
    kind = type(value)
    for name, allows, words in _rules(kind):
        given = getattr(value, name)
        if not allows(given):
            raise ConfigError(f"{kind.__name__}.{name} = {shown(given)} must be {words}")


def check_argument(name: str, given: object, hint: Any) -> None:
    """Check an argument of a function against `hint`, which is written as a field's annotation is.

    Raises:
        ConfigError: It is none of `hint`.
    """
    rule = _rule_of(hint)
    if not rule.allows(given):
        raise ConfigError(f"{name} = {shown(given)} must be {rule.words}")


def shown(given: object) -> str:
    """Return a wrong value in a few words, with its type where its text does not tell it."""
    text = one_line(repr(given) if isinstance(given, str | bytes | float) else given, 80)
    plain = isinstance(given, str | bytes | float | int | list | tuple | dict | type) or given is None
    return text if plain else f"{text} ({type(given).__name__})"


@cache
def _rules(kind: type[Values]) -> tuple[tuple[str, Callable[[Any], bool], str], ...]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple((field.name, *_rule_of(hints[field.name])) for field in fields(kind))


@cache
def _rule_of(hint: Any) -> Rule:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        kind, own = _rule_of(arguments[0]), arguments[1]
        return Rule(lambda given: kind.allows(given) and own.allows(given), own.words)
    if origin in (Union, types.UnionType):
        return _any_of(tuple(map(_rule_of, arguments)))
    if origin is Literal:
        return Rule(lambda given: isinstance(given, str) and given in arguments, " or ".join(map(repr, arguments)))
    if origin is tuple and arguments[-1] is not Ellipsis:
        parts = [_rule_of(part) for part in arguments]
        return Rule(
            lambda given: (
                isinstance(given, tuple)
                and len(given) == len(parts)
                and all(part.allows(one) for part, one in zip(parts, given, strict=True))
            ),
            f"({', '.join(part.words for part in parts)})",
        )
    if origin is tuple:
        item = _rule_of(arguments[0])
        return Rule(lambda given: isinstance(given, tuple) and all(map(item.allows, given)), f"a tuple of {item.words}")
    if origin in (Sequence, Mapping, dict):
        return _collection(arguments)
    return _simple(hint)


def _any_of(rules: Sequence[Rule]) -> Rule:
    first, second, *more = [rule.allows for rule in rules]
    words = " or ".join(rule.words for rule in rules)
    if more:
        return Rule(lambda given: any(rule.allows(given) for rule in rules), words)
    return Rule(lambda given: first(given) or second(given), words)


def _collection(arguments: tuple[Any, ...]) -> Rule:
    *keys, values = map(_rule_of, arguments)
    if keys:
        key = keys[0]
        return Rule(
            lambda given: (
                isinstance(given, Mapping) and all(key.allows(k) and values.allows(v) for k, v in given.items())
            ),
            f"a dict of {key.words} to {values.words}",
        )
    if arguments == (Any,):
        return Rule(lambda given: isinstance(given, Sequence) and not isinstance(given, str | bytes), "a list")
    return Rule(
        lambda given: isinstance(given, Sequence) and not isinstance(given, str) and all(map(values.allows, given)),
        f"a list of {values.words}",
    )


def _simple(hint: Any) -> Rule:
    if hint is Any:
        return Rule(lambda given: True, "anything")
    if hint is float:
        return Rule(
            lambda given: type(given) is float or (isinstance(given, float | int) and not isinstance(given, bool)),
            "a number",
        )
    if hint is int:
        return Rule(lambda given: isinstance(given, int) and not isinstance(given, bool), "a whole number")
    words = {str: "text", bytes: "bytes", bool: "True or False", type(None): "None"}
    if hint in words:
        return Rule(lambda given: isinstance(given, hint), words[hint])
    if getattr(hint, "_is_protocol", False):
        return Rule(lambda given: callable(given) and not isinstance(given, type), f"a {hint.__name__}")
    return Rule(lambda given: isinstance(given, hint), f"a {hint.__name__}")


_above_zero = Rule(lambda given: 0 < given <= LARGEST_LIMIT, f"a number above 0, of at most {LARGEST_LIMIT}")
AboveZero = Annotated[float, _above_zero]
WholeAboveZero = Annotated[int, Rule(_above_zero.allows, f"a whole number above 0, of at most {LARGEST_LIMIT}")]
Tolerance = Annotated[float, Rule(lambda given: 0 <= given < math.inf, "a number of at least 0, and finite")]
