"""A `RunConfig` from TOML files, from values in Python, and from dotted overrides such as those of the command line.

Later sources win, key by key: defaults < files in turn < values < overrides. A source that names another kind of a section
(`trainer.objective = "gspo"`) begins that section anew. An unknown key or a wrong value is a ConfigError that names it. The whole is
checked once, by pydantic, when all sources are merged: which keys go together shows only then.
"""

from __future__ import annotations

import json
import tomllib
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from agentrl.config.keys import config_fields
from agentrl.config.run import RunConfig
from agentrl.config.section import Section, in_full, kinds_of, sections_of
from agentrl.errors import ConfigError, one_line
from agentrl.system.failure_text import without_secrets


def load_config(
    files: Path | Sequence[Path] = (), overrides: Mapping[str, Any] | None = None, **values: Any
) -> RunConfig:
    """Return the configuration of the TOML `files` in turn, then `values` (non-empty), then `overrides`.

    Args:
        files: TOML files. A table of a later one adds to that of an earlier one.
        overrides: values by their dotted keys, such as {"trainer.lr": "1e-4"}. A text is read as TOML where it is TOML
            ("1e-4", "[1, 2]", "true") and its key does not hold text.
        values: sections and keys of the top level. None and "" count as not given.

    Raises:
        ConfigError: A file cannot be read, a key is unknown, or a value is wrong.
    """
    content: dict[str, Any] = {}
    read: list[tuple[Path, Mapping[str, Any]]] = []
    for file in [files] if isinstance(files, Path) else files:
        try:
            read.append((file, tomllib.loads(file.read_text(encoding="utf-8"))))
            _merge(content, read[-1][1], RunConfig)
        except OSError as error:
            raise ConfigError(f"cannot read the configuration {file}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{file} is not UTF-8: {one_line(error)}; save it as UTF-8") from error
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise ConfigError(f"{file} is not TOML: {one_line(error)}") from error
    given = {name: value for name, value in values.items() if value not in (None, "")}
    _merge(content, given, RunConfig)
    elsewhere = (*given, *(overrides or {}))

    def file_of(key: str) -> str:
        """Return the last file that sets a key, or one in a section, unless what is no file sets it too."""
        if any(f"{one}.".startswith(f"{key}.") or f"{key}.".startswith(f"{one}.") for one in elsewhere):
            return ""
        return next((str(file) for file, content in reversed(read) if _sets(content, key)), "")

    return config_of(content, overrides, file_of)


def config_text(config: RunConfig) -> str:
    """Return what config.json holds: all but where the run lies, so that a run which is copied or moved is the one in its new place."""
    return config.model_dump_json(indent=2, exclude={"run_dir"}) + "\n"


def config_of(
    content: dict[str, Any], overrides: Mapping[str, Any] | None = None, file_of: Callable[[str], str] = lambda key: ""
) -> RunConfig:
    """Return the configuration that `content` holds, changed by dotted `overrides`, which are read as `load_config` reads them.

    Args:
        content: sections and keys.
        overrides: values by their dotted keys.
        file_of: the file that sets a key, which is named where the key is wrong; nothing: none does.

    Raises:
        ConfigError: A key is unknown, or a value is wrong.
    """
    merged: dict[str, Any] = {}
    _merge(merged, content, RunConfig)
    keys = {key.name: key for key in config_fields()}
    changes: dict[str, Any] = {}
    for dotted, given in (overrides or {}).items():
        key = next((name for name in keys if name.rpartition(".")[0] == dotted and keys[name].short), dotted)
        hint = keys[key].hint if key in keys else None
        value: Any = read_value(given, hint) if isinstance(given, str) else given
        *parents, name = (key if isinstance(given, str) else dotted).split(".")
        inner = changes
        for parent in parents:
            if not isinstance(inner.get(parent), dict):
                inner[parent] = {}
            inner = inner[parent]
        inner[name] = value
    _merge(merged, changes, RunConfig)
    try:
        return RunConfig.model_validate(merged)
    except ValidationError as error:
        raise ConfigError("; ".join(complaints(error, file_of=file_of))) from None


def read_value(text: str, hint: Any = None) -> Any:
    """Read the text of one value as TOML where it is TOML. For a key that holds text (its `hint` says so), only a text in quotes is."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    holds_text = hint is str or (isinstance(hint, types.UnionType) and str in typing.get_args(hint))
    return text if holds_text and not isinstance(value, str) else value


def complaints(
    error: ValidationError, within: str = "", file_of: Callable[[str], str] = lambda key: ""
) -> Iterator[str]:
    """Yield a line for each thing that is wrong: the file that says so, its key, its value, and what to do.

    Args:
        error: what pydantic says.
        within: the key that all of it is of. Default: the keys are in the error.
        file_of: the file that sets a key; nothing: none does.
    """
    for problem in error.errors():
        place = _place(problem["loc"])
        file = file_of(place[0])
        yield (f"{file}: " if file else "") + _complaint(problem, within or place[0], *place[1:])


def _complaint(problem: ErrorDetails, key: str, section: str, kind: str) -> str:
    """Return what is wrong with a key of a section of a kind."""
    shown = one_line(without_secrets(json.dumps(problem["input"], default=str)), 100)
    of_kind = f'{section}.kind = "{kind}"'
    match problem["type"]:
        case "extra_forbidden" if kind and (kinds := _kinds_with(key)):
            return f"{key} = {shown}: {of_kind} has no such key; leave it out, or use {' or '.join(kinds)}"
        case "extra_forbidden":
            return f"unknown configuration key {key!r}; `agentrl train --help` shows all keys"
        case "missing":
            return f"{key} is missing: {of_kind if kind else section} needs it"
        case "union_tag_invalid":
            tag, known = problem["ctx"]["tag"], problem["ctx"]["expected_tags"]
            return f'{key}.kind = "{tag}": it should be one of {known}'
        case "value_error":
            return f"{key}: {problem['msg'].removeprefix('Value error, ')}".removeprefix(": ")
        case _:
            return f"{key} = {shown}: {problem['msg'].replace('Input should', 'it should')}"


def _place(loc: Sequence[int | str]) -> tuple[str, str, str]:
    """Return (the dotted key, its section, the kind of that): pydantic puts the kind of a section into the place of an error."""
    parts: list[str] = []
    section: type[Section] | None = RunConfig
    kind, kinds = "", list[str]()
    for part in map(str, loc):
        if part in kinds:
            kind, kinds = part, []
            continue
        field = section.model_fields.get(part) if section else None
        sections = sections_of(field) if field else ()
        section = sections[0] if len(sections) == 1 else None
        kind, kinds = (kind if not field else ""), (kinds_of(field) if field else [])
        parts.append(part)
    return ".".join(parts), ".".join(parts[:-1]), kind


def _sets(content: Any, key: str) -> bool:
    """Whether the content of a file sets a key, or one in it where it is a section, or the whole of its section by a value."""
    for name in key.split("."):
        if not isinstance(content, Mapping):
            return True
        if name not in content:
            return False
        content = content[name]
    return True


def _kinds_with(key: str) -> tuple[str, ...]:
    """Return the kinds of its section that have the key."""
    return next((known.kinds for known in config_fields() if known.name == key), ())


def _merge(content: dict[str, Any], later: Mapping[str, Any], section: type[Section] | None = None) -> None:
    """Change `content` by what `later` says of the keys of a section."""
    for name, value in later.items():
        field = section.model_fields.get(name) if section else None
        sections = sections_of(field) if field else ()
        if field is not None:
            value = in_full(field, value)
        old = content.get(name)
        if not isinstance(value, Mapping):
            content[name] = value
            continue
        if not isinstance(old, dict) or (
            len(sections) > 1 and field is not None and _is_another_kind(old, value, field)
        ):
            old = content[name] = {}
        _merge(old, value, sections[0] if len(sections) == 1 else None)


def _is_another_kind(old: Mapping[str, Any], new: Mapping[str, Any], field: FieldInfo) -> bool:
    default = field.default.kind
    return "kind" in new and new["kind"] != old.get("kind", default)
