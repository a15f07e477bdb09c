"""The command line's words for what messages name.

A message of the SDK names a key of the configuration, or an argument of a function, in backquotes, as Python writes it. Here each gets
the option that a person types:

    `rollout.workers`       ->  rollout.workers (--rollout.workers)
    `base_url`              ->  --base-url
    `resume=True` in runs/a ->  --resume runs/a
    agentrl audit           ->  .venv/bin/python -m agentrl audit, where no `agentrl` is on the PATH
    pip install -e '/path/to/agentrl[docker]'   ->  the same with this Python, and the folder of this agentrl
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from agentrl.config import config_fields

COMMAND = "agentrl" if shutil.which("agentrl") else f"{sys.executable} -m agentrl"
"""The words that start the command line here."""
_ARGUMENTS = ("base_url", "api_key", "out", "admin_key")
"""Arguments of functions that are options, and no keys."""
_OTHER_WORDS = {"workflow": "WORKFLOW", "model.path": "--model"}
"""Keys that the command line has another word for."""
_NAMED = re.compile(r"`([a-z_]+(?:\.[a-z_]+)*)`|`resume=True`(?: in (\S*[^\s.,;:]))?")
_INSTALL, _SOURCE = "pip install -e '/path/to/agentrl", Path(__file__).parents[2]
_COMMAND = re.compile(
    r"\bagentrl (?=(?:train|sft|eval|serve|view|runs|episodes|audit|replay|vet|config|init|doctor)\b)"
)


def in_options(text: str) -> str:
    """Return a message with the options for the keys and arguments that it names in backquotes, and with commands that work here."""
    fields = list(config_fields())
    keys = {key.name for key in fields} | {key.name.rpartition(".")[0] for key in fields if key.short}

    def words(found: re.Match[str]) -> str:
        name = found[1]
        if name is None:
            return f"--resume {found[2] or 'RUN_DIR'}"
        option = f"--{name.replace('_', '-')}"
        if name in _ARGUMENTS:
            return option
        return f"{name} ({_OTHER_WORDS.get(name, option)})" if name in keys else found[0]

    text = _NAMED.sub(words, text).replace(_INSTALL, f"{sys.executable} -m pip install -e '{_SOURCE}")
    return _COMMAND.sub(f"{COMMAND} ", text)
