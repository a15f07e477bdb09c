"""The OpenAI-compatible server that records what the policy said, token by token."""

from agentrl.proxy.chat_format import ChatFormat, load_chat_format
from agentrl.proxy.server import Proxy, open_proxy
from agentrl.proxy.session import SamplingDefaults, Session
from agentrl.proxy.sessions import ProxyLimits

__all__ = ["ChatFormat", "Proxy", "ProxyLimits", "SamplingDefaults", "Session", "load_chat_format", "open_proxy"]
