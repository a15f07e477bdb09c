"""The options that commands share: every key of the configuration, made from `RunConfig`, and the files that hold keys.

    section of RunConfig   ->  group of the help page
    rollout.batch_size     ->  --rollout.batch-size INT, its line of documentation, its default
    trainer.objective.kind ->  --trainer.objective too, as everywhere where a text is short for a section

A command gets the keys that were typed as nested values, not as a configuration: `load_config` merges them with the files, and
the whole is checked once.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from cyclopts import Group, Parameter, Token
from cyclopts.help import ColumnSpec, DefaultFormatter, HelpEntry, NameRenderer
from cyclopts.help.specs import get_default_parameter_columns
from pydantic import SkipValidation

from agentrl.config.load import config_fields, read_value
from agentrl.config.section import REQUIRED, Key

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions


def _value(hint: Any, tokens: Sequence[Token] | Mapping[str, Any]) -> Any:
    """Read what was typed for one key; a list is one option a value, or one value in TOML."""
    if isinstance(tokens, Mapping):
        return {name: _value(Any, below) for name, below in tokens.items()}
    texts = [token.value for token in tokens]
    if typing.get_origin(hint) is list:
        whole = read_value(texts[0], hint) if len(texts) == 1 else None
        return whole if isinstance(whole, list) else texts
    return read_value(texts[-1], hint)


def _option(key: Key, group: Group, *, shown: bool) -> Any:
    """Return the option of one key as cyclopts takes it: its type, and what the help page shows of it."""
    hint: Any = key.hint
    if hint is bool:
        hint = bool | Literal["true", "false"]  # a switch, which a value may follow
    if typing.get_origin(hint) is list and hasattr(typing.get_args(hint)[0], "model_fields"):
        hint = list[Any]  # sections, which are written in TOML as in a file
    takes_one = typing.get_origin(hint) in (Literal, types.UnionType)
    name = f"--{key.name.replace('_', '-')}"
    return Annotated[
        SkipValidation[hint],  # type: ignore[misc]  # `load_config` checks the whole
        Parameter(
            name=name,
            alias=name.rpartition(".")[0] if key.short else None,
            help=key.documentation,
            group=group,
            show=shown,
            converter=_value,
            show_default=False if key.default in (None, REQUIRED, "", [], {}) else json.dumps(key.default),
            negative=None if key.hint is bool else (),
            n_tokens=1 if takes_one else None,
            json_list=False,  # what it looks like is TOML's to say
        ),
    ]


def _columns(console: Console, options: ConsoleOptions, entries: list[HelpEntry]) -> tuple[ColumnSpec, ...]:
    """Return the columns of a section's keys. No name is broken, however narrow the terminal is: it is copied and searched for."""
    names, description = get_default_parameter_columns(console, options, entries)
    longest = max(len(label) for entry in entries for label in entry.display_labels_with_metavar)
    width = max(longest, names.max_width or 0)
    return names.copy(renderer=NameRenderer(max_width=width), max_width=width), description


OF_TRAINING = (
    *("trainer.", "steps", "run_dir", "data.order", "data.epochs", "eval.every", "eval.stop_at"),
    *(f"rollout.{name}" for name in ("batch_size", "group_size", "max_staleness", "window", "temperature")),
    *(f"rollout.{name}" for name in ("retries", "max_failed_share", "drop_uniform_groups")),
)
"""How the names of keys begin that an evaluation does not use."""


def options_of(*sections: str, hidden: tuple[str, ...] = ()) -> Any:
    """Return the type of a parameter that takes the keys of these sections as options; of all sections when none is named.

    Args:
        sections: The names of the sections, or of keys.
        hidden: Beginnings of the names of keys that the help page leaves out: a file for another command has them too.
    """
    groups: dict[str, Group] = {}
    options: dict[str, Any] = {}
    for key in config_fields():
        name = key.name.rpartition(".")[0]
        if not sections or name in sections or key.name in sections:
            if name not in groups:
                groups[name] = Group.create_ordered(
                    name or "run", help=key.section, help_formatter=DefaultFormatter(column_specs=_columns)
                )
            options[key.name] = _option(key, groups[name], shown=not key.name.startswith(hidden))
    return Annotated[TypedDict("Keys", options, total=False), Parameter(name="*")]  # type: ignore[operator]


if TYPE_CHECKING:
    Keys = dict[str, Any]
    EvalKeys = dict[str, Any]
    ServeKeys = dict[str, Any]
    VetKeys = dict[str, Any]
else:
    Keys = options_of()
    EvalKeys = options_of(hidden=OF_TRAINING)
    ServeKeys = options_of("seed", "model", "engine", "proxy", "trainer.lora")
    VetKeys = options_of("sandbox", "data")

Files = Annotated[
    tuple[Path, ...],
    Parameter(
        name="--config",
        show_default=False,
        help="TOML file of keys. May be given several times: later files win, and options win over all files.",
    ),
]
Workflow = Annotated[Path | None, Parameter(help="Python file with `async def run(episode)`.")]
Resume = Annotated[
    Path | None,
    Parameter(
        help="Go on with the run in this directory, with the configuration that it has. Keys change single values of it."
    ),
]
Flag = Annotated[bool, Parameter(show_default=False)]
ViewFlag = Annotated[
    bool,
    Parameter(name="--view", show_default=False, help="Show it on a page while it goes on; its address is printed."),
]
JsonFlag = Annotated[bool, Parameter(name="--json", show_default=False)]

NO_KEYS: dict[str, Any] = {}
