"""The OpenAI-compatible server that records what the policy said, token by token."""

from agentrl.proxy.chat_format import ChatFormat, load_chat_format
from agentrl.proxy.server import Proxy, open_proxy
from agentrl.proxy.session import SamplingDefaults, Session

__all__ = ["ChatFormat", "Proxy", "SamplingDefaults", "Session", "load_chat_format", "open_proxy"]
