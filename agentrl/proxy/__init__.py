"""The OpenAI-compatible server that records what the policy said, token by token."""

from agentrl.proxy.app import Proxy
from agentrl.proxy.chat_format import ChatFormat
from agentrl.proxy.limits import ProxyLimits
from agentrl.proxy.model_renderer import load_chat_format
from agentrl.proxy.server import open_proxy
from agentrl.proxy.session import SamplingDefaults, Session
from agentrl.record.recorded_choice import CallLog

__all__ = [
    "CallLog",
    "ChatFormat",
    "Proxy",
    "ProxyLimits",
    "SamplingDefaults",
    "Session",
    "load_chat_format",
    "open_proxy",
]
