"""Where tokens come from: the `Engine` protocol, the SGLang client, and the embedded server."""

from agentrl.engine.protocol import Engine, Generation, PauseMode, Sampling, VersionSpan

__all__ = ["Engine", "Generation", "PauseMode", "Sampling", "VersionSpan"]
