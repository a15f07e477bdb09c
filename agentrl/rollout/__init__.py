"""The rollout side: running episodes, and the staleness gate."""
