"""Tool environments on gymnasium's `Env`. Importing this package registers `agentrl/...` with gymnasium."""

import gymnasium

from agentrl.envs.async_env import AsyncToolEnv
from agentrl.envs.tool_env import Message, MessageSpace, ToolEnv

__all__ = ["AsyncToolEnv", "Message", "MessageSpace", "ToolEnv"]

if "agentrl/Calculator-v0" not in gymnasium.registry:
    gymnasium.register("agentrl/Calculator-v0", entry_point="agentrl.envs.calculator:CalculatorEnv")
