"""agentrl: reinforcement learning of language-model agents written as plain async Python."""

from agentrl.episode import Episode, Reward, Role

__all__ = ["Episode", "Reward", "Role"]
