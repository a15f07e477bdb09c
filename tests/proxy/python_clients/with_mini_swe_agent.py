"""mini-swe-agent: its agent in a local shell."""

from __future__ import annotations

import os
from typing import Any

os.environ["MSWEA_SILENT_STARTUP"] = "1"
os.environ["MSWEA_COST_TRACKING"] = "ignore_errors"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

from pathlib import Path

import minisweagent
import yaml
from asking import ANSWER, URL, hold, say
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

CONFIG: Any = yaml.safe_load((Path(minisweagent.__file__).parent / "config" / "default.yaml").read_text())
SUBMIT = f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo '{ANSWER}'"


def solve(key: str, *steps: Any, name: str = "openai/gpt-5.4", base: str = f"{URL}/v1") -> str:
    options: Any = {"api_base": base, "api_key": key, "max_retries": 0, "drop_params": False}
    settings = {**CONFIG.get("model", {}), "model_name": name, "model_kwargs": options}
    agent = DefaultAgent(LitellmModel(**settings), LocalEnvironment(**CONFIG.get("environment", {})), **CONFIG["agent"])
    return str(agent.run(say(*steps)))


LOOK, END = [("bash", {"command": "echo sunny"})], [("bash", {"command": SUBMIT})]
hold(
    chat=lambda key: solve(key, LOOK, END),
    chat_three_steps=lambda key: solve(key, LOOK, LOOK, END),
    anthropic=lambda key: solve(key, LOOK, END, name="anthropic/claude-opus-4-5", base=URL),
)
