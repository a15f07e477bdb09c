"""The base class of the configuration's sections: their short form, their keys by dotted names, and the words for a wrong value."""

from __future__ import annotations

import difflib
import json
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from agentrl.errors import one_line
from agentrl.system.failure_text import without_secrets

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
REQUIRED = PydanticUndefined


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
        return {name: _with_kind(fields[name], value) if name in fields else value for name, value in content.items()}


def sections_of(field: FieldInfo) -> tuple[type[Section], ...]:
    """Return the section that a field holds, those of its kinds in turn, or nothing where it holds a value."""
    if typing.get_origin(field.annotation) is list:
        return ()  # a list of sections is a value, which later sources replace as a whole
    return _sections_in(field.annotation)


def _sections_in(annotation: Any) -> tuple[type[Section], ...]:
    held = typing.get_args(annotation) or (annotation,)
    return tuple(one for one in held if isinstance(one, type) and issubclass(one, Section))


def section_kinds(section: type[Section]) -> tuple[str, ...]:
    """Return the kinds that are written with the keys of one of several sections."""
    return typing.get_args(section.model_fields["kind"].annotation)


def in_full(field: FieldInfo, value: Any) -> Any:
    """Return `value` with a text that is short for a section as that section."""
    sections = sections_of(field)
    is_short = isinstance(value, str) and sections and sections[0].short_key in sections[0].model_fields
    return {sections[0].short_key: value} if is_short else value


def _with_kind(field: FieldInfo, value: Any) -> Any:
    """Return `value` in full; where it may be of several kinds and does not say which, it is of the default one."""
    value = in_full(field, value)
    if len(sections_of(field)) > 1 and isinstance(value, dict):
        return {"kind": field.default.kind, **value}
    return value


@dataclass(frozen=True)
class Key:
    """One key of the configuration."""

    name: str
    """Dotted: `rollout.batch_size`."""
    hint: Any
    """The type of its values."""
    default: Any
    """Its default; `REQUIRED` where it has none."""
    documentation: str
    section: str
    """What its section is for."""
    short: bool
    """Whether a text in place of the section stands for it."""
    kinds: tuple[str, ...]
    """The kinds of its section that have the key; nothing: all of them."""


def keys_of(sections: Sequence[type[Section]], prefix: str = "", documentation: str = "") -> Iterator[Key]:
    """Yield every key of a section: first its own, then those of the sections in it.

    Args:
        sections: The section, or its kinds in turn. A key that several kinds have comes once.
        prefix: What stands before the names of its keys.
        documentation: What the section is for.

    Yields:
        Each key.
    """
    fields: dict[str, list[tuple[type[Section], FieldInfo]]] = {"kind": []} if len(sections) > 1 else {}
    for section in sections:
        for name, field in section.model_fields.items():
            fields.setdefault(name, []).append((section, field))
    for name, found in fields.items():
        if not sections_of(found[0][1]):
            yield _key(prefix, name, found, len(sections), documentation)
    for name, found in fields.items():
        if within := sections_of(found[0][1]):
            yield from keys_of(within, f"{prefix}{name}.", found[0][1].description or within[0].__doc__ or "")


def _key(prefix: str, name: str, found: Sequence[tuple[type[Section], FieldInfo]], sections: int, about: str) -> Key:
    section, field = found[0]
    default, text = field.get_default(call_default_factory=True), field.description or ""
    hint: Any = field.annotation
    if sections > 1 and name == "kind":
        text = "Which kind of it; each has keys of its own."
    kinds: tuple[str, ...] = ()
    if len(found) < sections:
        kinds = tuple(kind for one, _ in found for kind in section_kinds(one))
        text = f"Of {', '.join(kinds)}: {text}"
        others = {section_kinds(one)[0]: own.default for one, own in found if own.default != default}
        unlike = ", ".join(f"{kind}: {value:g}" for kind, value in others.items() if isinstance(value, float))
        text += f" Default for {unlike}." if unlike else ""
    if all(typing.get_origin(own.annotation) is Literal for _, own in found):
        hint = Literal[tuple(dict.fromkeys(choice for _, own in found for choice in typing.get_args(own.annotation)))]
    return Key(prefix + name, hint, default, text, about, name == section.short_key, kinds)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known dotted name whose last word is most like that of another, and of those the likest as a whole; None: none is."""
    last_words = {one: one.rpartition(".")[2] for one in known}
    near = difflib.get_close_matches(name.rpartition(".")[2], set(last_words.values()), 1, 0.8)
    return next(
        iter(difflib.get_close_matches(name, [one for one, word in last_words.items() if word in near], 1, 0)), None
    )


def problem_text(problem: ErrorDetails, root: type[Section]) -> tuple[str, str]:
    """Return the dotted key that something is wrong with, and a sentence: the key, its value, and what is wrong.

    Args:
        problem: One of the errors of pydantic's ValidationError.
        root: What was checked.
    """
    parts: list[str] = []
    beside: tuple[type[Section], ...] = ()
    sections: tuple[type[Section], ...] = (root,)
    for part in map(str, problem["loc"]):
        if len(sections) > 1:  # after a section that has kinds, pydantic names the kind
            sections = tuple(one for one in sections if part in section_kinds(one))
            continue
        parts.append(part)
        if not part.isdecimal():  # the number of an item in a list of sections
            beside = sections
            field = sections[0].model_fields.get(part) if sections else None
            sections = _sections_in(field.annotation) if field else ()
    key, value = ".".join(parts), problem["input"]
    shown = "" if isinstance(value, dict) else f" = {one_line(without_secrets(json.dumps(value, default=str)), 100)}"
    said = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        said = "unknown key; " + _remedy(key, beside, {known.name: known for known in keys_of((root,))})
    return key, f"{key}{shown}: {said}" if key else said


def _remedy(key: str, beside: Sequence[type[Section]], known: Mapping[str, Key]) -> str:
    """Return what to write in place of an unknown key. `beside`: the section that it is in, or its kinds."""
    if key in known:
        return f"it is one of {', '.join(known[key].kinds)}"
    section = key.rpartition(".")[0]
    siblings = [f"{section}.{name}".lstrip(".") for one in beside for name in one.model_fields]
    near = nearest(key, [*known, *(name.rpartition(".")[0] for name in known), *siblings])
    return f"did you mean {near}?" if near else "`agentrl config` shows all keys"
