"""Errors of the command line: words that are no command, option or value."""

from __future__ import annotations

from cyclopts import (
    CycloptsError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
    ValidationError,
)
from pydantic import ValidationError as WrongValue

from agentrl.config import complaints, config_keys
from agentrl.errors import ConfigError, UsageError, one_line


def usage_error(error: CycloptsError) -> UsageError:
    """Return the error that says in one line what is wrong with the words of a command, and what to do."""
    command = " ".join(("agentrl", *(error.command_chain or ())))
    argument = error.argument
    if isinstance(error, UnknownOptionError):
        return ConfigError(_unknown_option(error, command))
    if isinstance(error, MissingArgumentError) and argument is not None:
        lacks = "needs a value" if argument.name.startswith("--") else "is missing"
        return ConfigError(f"{argument.name} {lacks}; see {command} --help")
    if isinstance(error, UnusedCliTokensError):
        return ConfigError(f"unexpected words: {one_line(' '.join(error.unused_tokens or ()))}; see {command} --help")
    if isinstance(error, ValidationError) and isinstance(error.__cause__, WrongValue) and argument is not None:
        return ConfigError(next(complaints(error.__cause__, argument.name.removeprefix("--").replace("-", "_"))))
    said = one_line(error)
    if isinstance(error, UnknownCommandError):
        said = said.partition(" Available commands")[0].replace(". Did you", "; did you")
    return ConfigError(f"{said[:1].lower()}{said[1:].rstrip('.')}; see {command} --help")


def _unknown_option(error: UnknownOptionError, command: str) -> str:
    option = str(error.token.keyword or error.token.value).partition("=")[0]
    key = option.lstrip("-").replace("-", "_")
    here = [name for argument in error.argument_collection for name in argument.names if name.startswith("--")]
    if key in set(config_keys()):
        return f"{command.removeprefix('agentrl ')} takes no {option}; see {command} --help"
    if below := next((name for name in here if name.startswith(f"--{option.lstrip('-')}.")), None):
        return f"{option} is a section; give one of its keys, as in {below} VALUE"
    _, _, near = str(error).partition(" Did you mean ")
    word = key.rpartition(".")[2]
    near = next((f"{name}?" for name in here if name[2:].replace("-", "_").rpartition(".")[2] == word), near)
    hint = f"did you mean {near}" if near else f"see {command} --help"
    return f"unknown option {one_line(option, 100)}; {hint}"
