"""An environment in the Environments Hub's format, around one that verifiers bundles: it knows nothing of agentrl."""

import verifiers as vf
from verifiers.envs.integrations.reasoninggym_env import ReasoningGymEnv


def load_environment(gym: str = "gcd", num_train_examples: int = 20) -> vf.Environment:
    return ReasoningGymEnv(gym=gym, num_train_examples=num_train_examples, num_eval_examples=5, seed=3)
