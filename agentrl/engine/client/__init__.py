"""A client of SGLang's HTTP API, over several servers."""

from agentrl.engine.client.fleet import EngineLimits
from agentrl.engine.client.weights import SGLangEngine, sglang_engine

__all__ = ["EngineLimits", "SGLangEngine", "sglang_engine"]
