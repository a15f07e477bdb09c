"""Tool environments on gymnasium's `Env`. Importing this package registers `agentrl/...` with gymnasium."""

from importlib import import_module

import gymnasium
from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id

from agentrl.envs.async_env import AsyncToolEnv
from agentrl.envs.gym_env import GymEnv
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
    "registered",
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


def registered(env_id: str) -> str:
    """Return an id of gymnasium's registry, `ID` or `MODULE:ID`, if there is an environment of that id.

    Raises:
        gymnasium.error.Error: There is none.
        ImportError: There is no such module.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        import_module(module)
    namespace, name, version = parse_env_id(name)
    newest = find_highest_version(namespace, name) if version is None else version
    gymnasium.spec(get_env_id(namespace, name, newest))
    return env_id


for env_id, entry_point in _ENVIRONMENTS.items():
    # Without gymnasium's wrappers, a ToolEnv is stepped on the event loop and not in a thread.
    gymnasium.register(env_id, entry_point=entry_point, order_enforce=False, disable_env_checker=True)
