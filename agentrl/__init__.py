"""agentrl: reinforcement learning of language-model agents written as plain async Python."""

from agentrl.episode import Branch, Episode, Reward

__all__ = ["Branch", "Episode", "Reward"]
