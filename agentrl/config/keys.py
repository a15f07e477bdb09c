"""The keys of the configuration by their dotted names, and which of them was probably meant."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from agentrl.config.run import RunConfig
from agentrl.config.section import Section, section_kinds, sections_of

OTHER_NAMES = {
    "learning_rate": "lr",
    "num_epochs": "epochs",
    "num_train_epochs": "epochs",
    "max_steps": "steps",
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "num_generations": "group_size",
    "beta": "kl_coef",
    "output_dir": "run_dir",
    "model_name": "path",
    "model_path": "path",
}
"""What other libraries call a key of this one, by the last part of its name."""
CLOSE = 0.7
"""Share of the letters that a misspelt name has in common with the right one, at least."""


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


def close_key(key: str, among: Iterable[str] | None = None) -> str | None:
    """Return the key of the configuration that was probably meant by `key`, or None.

    Names are compared by their last part, since a key is often written without its section or in a wrong one: first what is
    called so here or elsewhere (`learning_rate` is `trainer.optimizer.lr`), then what has all its words (`batch` is
    `rollout.batch_size`), its section's among them (`lora_rank` is `trainer.lora.rank`), then what is spelt much like it. Of several,
    one in the same section comes first, then one that begins alike.

    Args:
        key: what was written, with `_` or `-`.
        among: the keys to choose from. Default: all.
    """
    section, _, name = key.replace("-", "_").rpartition(".")
    name = OTHER_NAMES.get(name, name)
    known = list(config_keys() if among is None else among)
    if section in known:
        return section  # a key below a value
    known.sort(key=lambda one: (one.rpartition(".")[0] != section, not one.startswith(f"{section}.")))
    words = [word for word in name.split("_") if word]
    same = [one for one in known if _last(one) == name or _with_section(one) == name]
    alike = [one for one in known if words and all(_has_word(_last(one), word) for word in words)]
    beginning = [one for one in alike if _last(one).startswith(name)]
    across = [one for one in known if words and all(_has_word(one.replace(".", "_"), word) for word in words)]
    names = [spelling(one) for one in known for spelling in (_last, _with_section)]
    spelt = difflib.get_close_matches(name, names, n=1, cutoff=CLOSE)
    found = [one for one in known if {_last(one), _with_section(one)} & set(spelt)]
    return next(iter(same or beginning or alike or across or found), None)


def fields_of_item(key: str) -> list[str]:
    """Return the fields that stand beside a key of a table in a list (`data.sources.0.weight`); none where it is no such key."""
    *above, _ = key.split(".")
    if not any(part.isdigit() for part in above):
        return []
    models: list[type[BaseModel]] = [RunConfig]
    for part in above:
        if not part.isdigit():
            found = [model.model_fields[part].annotation for model in models if part in model.model_fields]
            models = [model for annotation in found for model in _models_in(annotation)]
    return list(dict.fromkeys(name for model in models for name in model.model_fields))


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in typing.get_args(annotation) for model in _models_in(argument)]


def close_section(key: str) -> str | None:
    """Return the section that was probably meant by `key`: one that is spelt much like it, one in the same section before others."""
    parent, _, name = key.replace("-", "_").rpartition(".")
    parts = (known.split(".")[:-1] for known in config_keys())
    known = dict.fromkeys(".".join(part[: depth + 1]) for part in parts for depth in range(len(part)))
    spelt = difflib.get_close_matches(name, {_last(one) for one in known}, n=1, cutoff=CLOSE)
    found = sorted((one for one in known if _last(one) in spelt), key=lambda one: one.rpartition(".")[0] != parent)
    return next(iter(found), None)


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _with_section(key: str) -> str:
    """Return the name of a key with that of its innermost section before it: `lora_rank`."""
    return "_".join(key.split(".")[-2:])


def _has_word(name: str, word: str) -> bool:
    """Whether a word of `name` is `word`, or begins with it."""
    return any(part == word or (len(word) > 2 and part.startswith(word)) for part in name.split("_"))
