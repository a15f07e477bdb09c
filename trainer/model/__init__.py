"""The model that is trained: its logprobs on prefix trees, on one process or several, and its checkpoints."""
