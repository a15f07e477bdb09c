"""A `RunConfig` from TOML files, from values in Python, and from dotted overrides such as those of the command line.

Later sources win, key by key: defaults < files in turn < values < overrides. An unknown key or a wrong value is a ConfigError that
names it. The whole is checked once, by pydantic, when all sources are merged: which keys go together shows only then.
"""

from __future__ import annotations

import json
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentrl.config.keys import close_key, config_fields
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, one_line
from agentrl.machine.privacy import without_secrets


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
    for file in [files] if isinstance(files, Path) else files:
        try:
            _merge(content, _with_model(tomllib.loads(file.read_text(encoding="utf-8"))))
        except OSError as error:
            raise ConfigError(f"cannot read the configuration {file}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{file} is not UTF-8: {one_line(error)}; save it as UTF-8") from error
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise ConfigError(f"{file} is not TOML: {one_line(error)}") from error
    _merge(content, _with_model({name: value for name, value in values.items() if value not in (None, "")}))
    return config_of(content, overrides)


def config_of(content: dict[str, Any], overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """Return the configuration that `content` holds, changed by dotted `overrides`, which are read as `load_config` reads them.

    Raises:
        ConfigError: A key is unknown, or a value is wrong.
    """
    content = _with_model(content)
    hints = {key: field.annotation for key, _, field in config_fields()}
    for dotted, given in (overrides or {}).items():
        *parents, name = dotted.split(".")
        value: Any = read_value(given, hints.get(dotted)) if isinstance(given, str) else given
        for parent in reversed([*parents, name]):
            value = {parent: value}
        _merge(content, value)
    try:
        return RunConfig.model_validate(content)
    except ValidationError as error:
        raise ConfigError("; ".join(complaints(error))) from None


def read_value(text: str, hint: Any = None) -> Any:
    """Read the text of one value as TOML where it is TOML. For a key that holds text (its `hint` says so), only a text in quotes is."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    holds_text = hint is str or (isinstance(hint, types.UnionType) and str in typing.get_args(hint))
    return text if holds_text and not isinstance(value, str) else value


def complaints(error: ValidationError, within: str = "") -> Iterator[str]:
    """Yield a line for each thing that is wrong: its key, its value, and what to do. Keys are relative to the key `within`."""
    for problem in error.errors():
        key = within or ".".join(map(str, problem["loc"]))
        if problem["type"] == "extra_forbidden":
            close = close_key(key)
            yield f"unknown configuration key {key!r}" + (f"; did you mean {close!r}?" if close else "")
        else:
            message = problem["msg"].removeprefix("Value error, ")
            shown = one_line(without_secrets(json.dumps(problem["input"], default=str)), 100)
            if problem["type"] == "list_type":
                message += '; a list is written ["A", "B"]'
            yield f"{key}: {message}" if problem["type"] == "value_error" else f"{key} = {shown}: {message}"


def _with_model(content: dict[str, Any]) -> dict[str, Any]:
    """Return `content` with `model = "nano"` as the section that it is short for, so that another source can add to it."""
    model = content.get("model")
    return content | {"model": {"path": model}} if isinstance(model, str) else content


def _merge(content: dict[str, Any], later: Mapping[str, Any]) -> None:
    for name, value in later.items():
        if isinstance(value, Mapping) and isinstance(content.get(name), dict):
            _merge(content[name], value)
        else:
            content[name] = value
