"""Environments in the Environments Hub's format, one of each kind that rolls out by itself: they know nothing of agentrl."""

from typing import Any

import verifiers as vf
from datasets import Dataset

ROWS = [{"question": f"Say {n}.", "answer": str(n), "info": {"limit": n}, "level": n} for n in range(3)]


def right(completion: Any, answer: str) -> float:
    return float(completion[-1]["content"] == answer)


class Again(vf.MultiTurnEnv):
    """A wrong answer is asked for once more."""

    async def env_response(self, messages: vf.Messages, state: vf.State, **_: Any) -> vf.Messages:
        return [{"role": "user", "content": f"No. Level {state['input']['level']}, limit {state['info']['limit']}."}]

    @vf.stop
    async def was_right(self, state: vf.State) -> bool:
        last = state["trajectory"][-1] if state["trajectory"] else None
        return last is not None and last["completion"][-1]["content"] == state["answer"]


def add(number: int, total: list[int]) -> str:
    """Add a number to the total.

    Args:
        number: The number.
        total: The numbers so far.
    """
    total.append(number)
    return str(sum(total))


class Sum(vf.StatefulToolEnv):
    """The tool's total is the episode's own."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.add_tool(add, args_to_skip=["total"])

    async def setup_state(self, state: vf.State, **given: Any) -> vf.State:
        state["total"] = []
        return await super().setup_state(state, **given)

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: Any, state: vf.State, **_: Any
    ) -> Any:
        return {**tool_args, "total": state["total"]}


def load_environment(kind: str = "single") -> vf.Environment:
    def compared(completions: Any) -> list[float]:
        return [float(len(completions))] * len(completions)

    rubric = vf.Rubric(funcs=[compared if kind == "compared" else right])
    rows = Dataset.from_list(ROWS)
    if kind == "many":
        return Again(dataset=rows, rubric=rubric, max_turns=3)
    if kind == "stateful":
        return Sum(dataset=rows, rubric=rubric, max_turns=4)
    if kind == "held-out":
        return vf.SingleTurnEnv(eval_dataset=rows, rubric=rubric)
    return vf.SingleTurnEnv(dataset=rows, system_prompt="Be brief.", rubric=rubric)
