"""Coding agents that people use: `harnesses.toml` is their table. A row says what to install, what to run, and where the answer stands.

A row of your own is a `Harness` in `HARNESSES`, or the same fields as JSON in a task.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from agentrl.rollout.task_folders import DEFAULT_AGENT

AGENTS_INSIDE = "/opt/agents"
"""Where a container sees `installed_agents()`."""


class Harness(BaseModel):
    """How one agent is run.

    `command` is a line of sh, run in the folder of the repository, with the prompt on its standard input. It finds the model in
    `OPENAI_BASE_URL`, `OPENAI_API_KEY`, `OPENAI_MODEL` and the same for `ANTHROPIC`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    program: str = Field(min_length=1)
    """What must be on the PATH of the container, /opt/agents/bin and /opt/agents/node_modules/.bin included."""
    command: str = Field(min_length=1)
    install: str = "install it in the image, or in the folder that AGENTRL_AGENTS names, as scripts/install_agents.sh does with the known agents"
    """What to do where the program is missing."""
    environment: Mapping[str, str] = Field(default_factory=dict)
    """Further variables. `{url}` in a value becomes the address of the model, without /v1, and `{model}` its name."""
    answer: str | None = None
    """The file in which it leaves its answer, relative to its home; None: what it prints."""


HARNESSES: dict[str, Harness] = {
    name: Harness.model_validate(row)
    for name, row in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items()
}
"""Known agents by name. Add your own."""


def find_harness(given: Any) -> Any:
    """Return the row of a name, and None for "shell"; what is no name is returned as it is.

    Raises:
        ValueError: No row has that name.
    """
    if not isinstance(given, str) or given == DEFAULT_AGENT:
        return None if given == DEFAULT_AGENT else given
    if given in HARNESSES:
        return HARNESSES[given]
    names = [DEFAULT_AGENT, *HARNESSES]
    hint = "".join(f"; did you mean {name!r}?" for name in difflib.get_close_matches(given, names, n=1))
    raise ValueError(
        f"there is no harness {given!r}{hint or '.'} Use {', '.join(names)}, or a row of your own: {{'program': ..., 'command': ...}}"
    )


NamedHarness = Annotated[Harness | None, BeforeValidator(find_harness)]
"""A harness, which a task may name; None: the agent of `shell_agent.py`."""


def installed_agents() -> Path:
    """Return the folder of this machine with the agents: what AGENTRL_AGENTS names, else where scripts/install_agents.sh puts them."""
    named = os.environ.get("AGENTRL_AGENTS")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(named).absolute() if named else cache / "agentrl" / "agents"
