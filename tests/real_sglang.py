"""Where the tests find SGLang, and how they start it: with the settings of workflows/sglang_cpu.toml."""

from __future__ import annotations

import os
from pathlib import Path

import agentrl.workflows
from agentrl.config import EngineConfig, load_config
from agentrl.engine.launch import LocalServer
from agentrl.system.host import free_port
from tests.components import missing

SETTINGS = Path(agentrl.workflows.__path__[0]) / "sglang_cpu.toml"


def sglang_config(**changes: object) -> EngineConfig:
    """The engine section for SGLang on a CPU. Skips the test where SGLang is not installed; fails it in CI."""
    config = load_config(SETTINGS).engine
    python = os.environ.get("AGENTRL_SGLANG_PYTHON", os.path.expanduser(config.python))
    if not Path(python).exists():
        missing(f"SGLang is not installed at {python}; install it with `make sglang`")
    return config.model_copy(update={"python": python, **changes})


def sglang_command(model_path: Path) -> list[str]:
    """The command of one server, at a free port."""
    command = LocalServer(0, model_path, sglang_config(), Path(os.devnull), seed=0).command(model_path)
    command[command.index("--port") + 1] = str(free_port())
    return command
