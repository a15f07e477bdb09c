"""Tool environments on gymnasium's `Env`. Importing this package registers `agentrl/...` with gymnasium."""

import gymnasium

from agentrl.envs.async_env import AsyncToolEnv
from agentrl.envs.gym_env import GymEnv, maker_of
from agentrl.envs.tool_env import Message, MessageSpace, Result, ToolEnv
from agentrl.envs.tools import Tool, tool, tool_of

__all__ = [
    "AsyncToolEnv",
    "GymEnv",
    "Message",
    "MessageSpace",
    "Result",
    "Tool",
    "ToolEnv",
    "maker_of",
    "tool",
    "tool_of",
]

_ENVIRONMENTS = {
    "agentrl/Calculator-v0": "agentrl.envs.calculator_env:CalculatorEnv",
    "agentrl/Gym-v0": "agentrl.envs.gym_env:GymEnv",
    "agentrl/MCP-v0": "agentrl.envs.mcp_env:MCPEnv",
    "agentrl/OpenEnv-v0": "agentrl.envs.open_env:OpenEnv",
    "agentrl/ReasoningGym-v0": "agentrl.envs.reasoning:ReasoningEnv",
}


for env_id, entry_point in _ENVIRONMENTS.items():
    # Without gymnasium's wrappers, a ToolEnv is stepped on the event loop and not in a thread.
    gymnasium.register(env_id, entry_point=entry_point, order_enforce=False, disable_env_checker=True)
