"""The rollout side: running episodes, the staleness gate, the store."""
