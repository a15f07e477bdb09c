"""A table of coding agents that people use. A row says what to install, what to run, and where the answer stands.

A row of your own is a `Harness` in `HARNESSES`, or the same fields as JSON in a task.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from agentrl.rollout.task_folders import DEFAULT_AGENT

AGENTS_INSIDE = "/opt/agents"
"""Where a sandbox sees `installed_agents()`."""
INSTALL = "scripts/install_agents.sh installs it"


class Harness(BaseModel):
    """How one agent is run.

    `command` is a line of sh, run in the folder of the repository, with the prompt on its standard input. It finds the model in
    `OPENAI_BASE_URL`, `OPENAI_API_KEY`, `OPENAI_MODEL` and the same for `ANTHROPIC`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    program: str = Field(min_length=1)
    """What must be on the PATH of the sandbox, /opt/agents/bin and /opt/agents/node_modules/.bin included."""
    command: str = Field(min_length=1)
    install: str = "install it in the image, or in the folder that AGENTRL_AGENTS names"
    """What to do where the program is missing."""
    environment: Mapping[str, str] = Field(default_factory=dict)
    """Further variables. `{url}` in a value becomes the address of the model, without /v1, and `{model}` its name."""
    answer: str | None = None
    """The file in which it leaves its answer, relative to its home; None: what it prints."""


_OPENCODE = {
    "provider": {
        "agentrl": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": "{url}/v1", "apiKey": "{env:OPENAI_API_KEY}"},
            "models": {"{model}": {}},
        }
    },
    "autoupdate": False,
    "share": "disabled",
    "permission": "allow",
}
_GEMINI = {
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "privacy": {"usageStatisticsEnabled": False},
    "general": {"enableAutoUpdate": False},
}
_LAST_SAID = (
    'import json, os; said = json.load(open(os.environ["HOME"] + "/run.json"))["messages"];'
    ' print([one.get("content") or "" for one in said if one.get("role") == "assistant"][-1])'
)
"""Prints the last words of a run of mini-swe-agent, whose log has all that it saw too."""
HARNESSES: dict[str, Harness] = {
    "claude-code": Harness(
        program="claude",
        command='exec claude -p --model "$ANTHROPIC_MODEL" --dangerously-skip-permissions',
        install=INSTALL,
        environment={"IS_SANDBOX": "1", "DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
    ),
    "codex": Harness(
        program="codex",
        command=(
            "exec codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox"
            ' -c model="\\"$OPENAI_MODEL\\"" -c model_provider=\'"agentrl"\''
            ' -c model_providers.agentrl="{name=\\"agentrl\\",base_url=\\"$OPENAI_BASE_URL\\",env_key=\\"OPENAI_API_KEY\\",wire_api=\\"responses\\"}"'
            ' -o "$HOME/answer.txt" -'
        ),
        install=INSTALL,
        answer="answer.txt",
    ),
    "opencode": Harness(
        program="opencode",
        command='exec opencode run --model "agentrl/$OPENAI_MODEL"',
        install=INSTALL,
        environment={
            "OPENCODE_CONFIG_CONTENT": json.dumps(_OPENCODE),
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        },
    ),
    "gemini": Harness(
        program="gemini",
        command=(
            'mkdir -p "$HOME/.gemini"; printf %s "$GEMINI_SETTINGS" > "$HOME/.gemini/settings.json";'
            ' GEMINI_API_KEY="$OPENAI_API_KEY" exec gemini --model "$OPENAI_MODEL" --yolo --skip-trust'
        ),
        install=INSTALL,
        environment={"GOOGLE_GEMINI_BASE_URL": "{url}", "GEMINI_SETTINGS": json.dumps(_GEMINI)},
    ),
    "mini-swe-agent": Harness(
        program="mini",
        command=(
            'mini --yolo --exit-immediately --cost-limit 0 --model "openai/$OPENAI_MODEL" --task "$(cat)" --output "$HOME/run.json"; code=$?;'
            f" python3 -c '{_LAST_SAID}' > \"$HOME/answer.txt\"; exit $code"
        ),
        install=INSTALL,
        environment={
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        answer="answer.txt",
    ),
}
"""Known agents by name. Add your own."""


def find_harness(given: Any) -> Any:
    """Return the row of a name, and None for "shell"; what is no name is returned as it is.

    Raises:
        ValueError: No row has that name.
    """
    if not isinstance(given, str):
        return given
    if given == DEFAULT_AGENT:
        return None
    if given in HARNESSES:
        return HARNESSES[given]
    meant = difflib.get_close_matches(given, [DEFAULT_AGENT, *HARNESSES], n=1)
    hint = f"; did you mean {meant[0]!r}?" if meant else "."
    known = ", ".join([DEFAULT_AGENT, *HARNESSES])
    raise ValueError(
        f"there is no harness {given!r}{hint} Use {known}, or a row of your own: {{'program': ..., 'command': ...}}"
    )


NamedHarness = Annotated[Harness | None, BeforeValidator(find_harness)]
"""A harness, which a task may name; None: the agent of `shell_agent.py`."""


def installed_agents() -> Path:
    """Return the folder of this machine with the agents: what AGENTRL_AGENTS names, else where scripts/install_agents.sh puts them."""
    named = os.environ.get("AGENTRL_AGENTS")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(named).absolute() if named else cache / "agentrl" / "agents"
