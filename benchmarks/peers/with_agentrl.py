"""The calculator job as a user of agentrl writes it: `python with_agentrl.py MODEL TASKS OUT STEPS LEARNING_RATE SEED [STALENESS]`."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from arithmetic import evaluate, reward

import agentrl
from agentrl.envs import ToolEnv, tool

MODEL, TASKS, OUT, STEPS, LEARNING_RATE, SEED, STALENESS = (*sys.argv[1:], "2")[:7]


class Calculator(ToolEnv):
    max_turns = 4

    def on_reset(self, task: Any) -> str:
        self.answer = task["answer"]
        return str(task["question"])

    @tool
    def calculator(self, expression: str) -> str:
        """Evaluate an arithmetic expression."""
        return evaluate(expression)

    def on_answer(self, content: str) -> float:
        return reward(content, self.answer)


async def run(episode: agentrl.Episode) -> float:
    return await episode.env(Calculator).play(episode)


config = agentrl.RunConfig(
    model=MODEL,
    run_dir=OUT,
    steps=int(STEPS),
    seed=int(SEED),
    rollout={"batch_size": 64, "group_size": 8, "max_tokens": 64, "max_staleness": int(STALENESS)},
    trainer={
        "minibatches": 2,
        "optimizer": {"lr": float(LEARNING_RATE), "warmup_steps": 3},
        "checkpoint": {"every": 2, "keep": 1000},
    },
)
tasks = [json.loads(line) for line in Path(TASKS).read_text().splitlines()]
asyncio.run(agentrl.train(config, workflow=run, tasks=tasks))
