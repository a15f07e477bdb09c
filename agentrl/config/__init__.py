"""The configuration of a run: one typed value, `RunConfig`, and how it is read."""

from agentrl.config.data import DataConfig, TaskSource
from agentrl.config.load import config_fields, load_config
from agentrl.config.run import (
    ClusterConfig,
    EngineConfig,
    EvalConfig,
    ModelConfig,
    ProxyConfig,
    RolloutConfig,
    RunConfig,
    SandboxConfig,
    TrackingConfig,
)
from agentrl.config.trainer import TrainerConfig

__all__ = [
    "ClusterConfig",
    "DataConfig",
    "EngineConfig",
    "EvalConfig",
    "ModelConfig",
    "ProxyConfig",
    "RolloutConfig",
    "RunConfig",
    "SandboxConfig",
    "TaskSource",
    "TrackingConfig",
    "TrainerConfig",
    "config_fields",
    "load_config",
]
