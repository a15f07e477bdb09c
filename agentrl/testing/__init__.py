"""Tools for users to test their own: a scripted model, and checks of environments and workflows."""

from agentrl.testing.check_env import check_env
from agentrl.testing.check_workflow import check_workflow
from agentrl.testing.exercise import exercise
from agentrl.testing.scripted_model import Refusal, Reply, Request, ScriptedModel, ToolCall, scripted_episode

__all__ = [
    "Refusal",
    "Reply",
    "Request",
    "ScriptedModel",
    "ToolCall",
    "check_env",
    "check_workflow",
    "exercise",
    "scripted_episode",
]
