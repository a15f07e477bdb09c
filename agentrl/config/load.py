"""A `RunConfig` from TOML files, from values in Python, and from dotted overrides such as those of the command line.

Later sources win, key by key: defaults < files in turn < values < overrides. A source that names another kind of a section
(`trainer.objective = "gspo"`) begins that section anew. The whole is checked once, by pydantic, when all sources are merged: which keys
go together shows only then.
"""

from __future__ import annotations

import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentrl.config.run import RunConfig
from agentrl.config.section import Key, Section, in_full, keys_of, problem_text, sections_of
from agentrl.errors import ConfigError, one_line


def config_fields() -> Iterator[Key]:
    """Yield every key of `RunConfig`."""
    return keys_of((RunConfig,), documentation="The run.")


def load_config(
    files: Path | Sequence[Path] = (), overrides: Mapping[str, Any] | None = None, **values: Any
) -> RunConfig:
    """Return the configuration of the TOML `files` in turn, then `values` (non-empty), then `overrides`.

    Args:
        files: TOML files. A table of a later one adds to that of an earlier one.
        overrides: values by their dotted keys, such as {"trainer.optimizer.lr": "1e-4"}. A text is read as TOML where it is TOML
            ("1e-4", "[1, 2]", "true") and its key does not hold text.
        values: sections and keys of the top level. None and "" count as not given.

    Raises:
        ConfigError: A file cannot be read, a key is unknown, or a value is wrong.
    """
    content: dict[str, Any] = {}
    texts: dict[Path, str] = {}
    for file in [files] if isinstance(files, Path) else files:
        try:
            texts[file] = file.read_text(encoding="utf-8")
            _merge(content, tomllib.loads(texts[file]), (RunConfig,))
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read the configuration {file}: {one_line(error)}") from error
    given = {name: value for name, value in values.items() if value not in (None, "")}
    _merge(content, given, (RunConfig,))
    elsewhere = [f"{key}." for key in (*given, *(overrides or {}))]
    places = {
        key: f"{file}:{line}: "
        for file, text in texts.items()
        for key, line in _lines_of(text)
        if not any(f"{key}.".startswith(other) or other.startswith(f"{key}.") for other in elsewhere)
    }
    return config_of(content, overrides, places)


def config_of(
    content: Mapping[str, Any], overrides: Mapping[str, Any] | None = None, places: Mapping[str, str] | None = None
) -> RunConfig:
    """Return the configuration that `content` holds, changed by dotted `overrides`, which are read as `load_config` reads them.

    Args:
        content: sections and keys.
        overrides: values by their dotted keys.
        places: where each dotted key was written, for messages.

    Raises:
        ConfigError: A key is unknown, or a value is wrong.
    """
    merged: dict[str, Any] = {}
    _merge(merged, content, (RunConfig,))
    keys = {key.name: key for key in config_fields()}
    in_short = {name.rpartition(".")[0]: name for name, key in keys.items() if key.short}
    changes: dict[str, Any] = {}
    for dotted, given in (overrides or {}).items():
        name, change = dotted, given
        if isinstance(given, str):
            name = in_short.get(dotted, dotted)
            change = read_value(given, keys[name].hint if name in keys else None)
        for part in reversed(name.split(".")):
            change = {part: change}
        _merge(changes, change)
    _merge(merged, changes, (RunConfig,))
    try:
        return RunConfig.model_validate(merged)
    except ValidationError as error:
        said = [problem_text(problem, RunConfig) for problem in error.errors()]
        raise ConfigError("; ".join(_place(key, places or {}) + text for key, text in said)) from None


def read_value(text: str, hint: Any = None) -> Any:
    """Read the text of one value as TOML where it is TOML. For a key that holds text (its `hint` says so), only a text in quotes is."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    holds_text = hint is str or (isinstance(hint, types.UnionType) and str in typing.get_args(hint))
    return text if holds_text and not isinstance(value, str) else value


def _place(key: str, places: Mapping[str, str]) -> str:
    """Return where a key was written, or else the table that it is in. Items of a list of tables are not told apart."""
    key = re.sub(r"\.\d+\b", "", key)
    while key and key not in places:
        key = key.rpartition(".")[0]
    return places.get(key, "")


def _lines_of(text: str) -> Iterator[tuple[str, int]]:
    """Yield the dotted tables and keys of a TOML file, each with its line, as far as they begin one."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+([\w.-]+)\]", line):
            table = f"{header[1]}."
            yield header[1], number
        elif key := re.match(r"\s*([\w.-]+)\s*=", line):
            yield table + key[1], number


def _merge(content: dict[str, Any], later: Mapping[str, Any], sections: Sequence[type[Section]] = ()) -> None:
    """Change `content` by what `later` says of the keys of a section, which may have several kinds."""
    for name, value in later.items():
        field = next((one.model_fields[name] for one in sections if name in one.model_fields), None)
        inner = sections_of(field) if field else ()
        value = in_full(field, value) if field else value
        old = content.get(name)
        if not isinstance(value, Mapping):
            content[name] = value
            continue
        if field and len(inner) > 1 and isinstance(old, dict):
            kind = old.get("kind", field.default.kind)
            old = old if value.get("kind", kind) == kind else None
        if not isinstance(old, dict):
            old = content[name] = {}
        _merge(old, value, inner)
