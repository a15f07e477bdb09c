"""The keys of the configuration by their dotted names."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from agentrl.config.run import RunConfig
from agentrl.config.section import Section, section_kinds, sections_of


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
    kinds: tuple[str, ...] = ()
    """The kinds of its section that have the key; nothing: all of them."""
    field: FieldInfo = field(default_factory=FieldInfo, repr=False)
    """The first field of this name."""
    short: bool = False
    """Whether a text in place of the section stands for it."""


REQUIRED = PydanticUndefined


def config_fields(section: type[Section] = RunConfig, prefix: str = "", documentation: str = "") -> Iterator[Key]:
    """Yield every key: first those of the section itself, then those of the sections in it.

    Args:
        section: The section.
        prefix: What stands before the names of its keys.
        documentation: Of the section, for the keys in it.

    Yields:
        Each key; one that several kinds of a section have comes once.
    """
    within: list[Iterator[Key]] = []
    for name, own in section.model_fields.items():
        sections = sections_of(own)
        if not sections:
            yield _key(f"{prefix}{name}", [(section, own)], documentation or section.__doc__ or "")
        elif len(sections) == 1:
            within.append(config_fields(sections[0], f"{prefix}{name}.", sections[0].__doc__ or ""))
        else:
            within.append(_keys_of_kinds(f"{prefix}{name}.", sections, own.description or ""))
    for keys in within:
        yield from keys


def _keys_of_kinds(prefix: str, sections: Sequence[type[Section]], documentation: str) -> Iterator[Key]:
    fields: dict[str, list[tuple[type[Section], FieldInfo]]] = {"kind": []}
    for section in sections:
        for name, own in section.model_fields.items():
            fields.setdefault(name, []).append((section, own))
    for name, all_own in fields.items():
        yield _key(prefix + name, all_own, documentation, len(sections))


def _key(name: str, fields: Sequence[tuple[type[Section], FieldInfo]], section: str, sections: int = 1) -> Key:
    last = name.rpartition(".")[2]
    first = fields[0][1]
    default, text = first.get_default(call_default_factory=True), first.description or ""
    kinds: tuple[str, ...] = ()
    hint: Any = first.annotation
    if sections > 1 and last == "kind":
        text = "Which kind of it; each has keys of its own."
    if len(fields) < sections:
        kinds = tuple(kind for one, _ in fields for kind in section_kinds(one))
        others = {
            kind: other
            for one, own in fields
            if (other := own.get_default(call_default_factory=True)) != default
            for kind in section_kinds(one)
        }
        unlike = "".join(f"; {kind}: {value:g}" for kind, value in others.items() if isinstance(value, float))
        text = f"Of {', '.join(kinds)}: {text}" + (f" Default for {unlike[2:]}." if unlike else "")
    if all(typing.get_origin(own.annotation) is Literal for _, own in fields):
        choices = dict.fromkeys(choice for _, own in fields for choice in typing.get_args(own.annotation))
        hint = Literal[tuple(choices)]
    return Key(name, hint, default, text, section, kinds, first, short=last == fields[0][0].short_key)


def config_keys() -> Iterator[str]:
    """Yield every dotted key."""
    return (key.name for key in config_fields())
