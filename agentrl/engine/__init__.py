"""The source of tokens: the `Engine` protocol, the SGLang client, and the embedded server."""

from agentrl.engine.protocol import Engine, PauseMode, Sampling, UpdatableEngine

__all__ = ["Engine", "PauseMode", "Sampling", "UpdatableEngine"]
