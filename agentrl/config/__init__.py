"""The configuration of a run: one typed value, `RunConfig`, and how it is read."""

from agentrl.config.keys import close_key, config_fields, config_keys
from agentrl.config.load import complaints, config_of, load_config, read_value
from agentrl.config.proxy import ProxyConfig
from agentrl.config.run import (
    EngineConfig,
    EvalConfig,
    ModelConfig,
    RolloutConfig,
    RunConfig,
    SandboxConfig,
    check_groups,
    check_set,
)
from agentrl.config.trainer import TrainerConfig

__all__ = [
    "EngineConfig",
    "EvalConfig",
    "ModelConfig",
    "ProxyConfig",
    "RolloutConfig",
    "RunConfig",
    "SandboxConfig",
    "TrainerConfig",
    "check_groups",
    "check_set",
    "close_key",
    "complaints",
    "config_fields",
    "config_keys",
    "config_of",
    "load_config",
    "read_value",
]
