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


def double(number: int) -> int:
    """Return twice a number.

    Args:
        number: The number.
    """
    return 2 * number


def scored() -> dict[str, vf.Environment]:
    """Return environments that differ in how they score: weights, groups of rubrics, parsers, columns without a value, sampling."""

    def length(completion: Any, state: vf.State) -> float:
        return len(completion) / 7 + state["example_id"]

    async def answered(parser: vf.Parser, completion: Any, answer: str) -> float:
        return float(parser.parse_answer(completion) == answer)

    def has_answer(answer: Any, info: Any) -> float:
        return float(answer is None) + 2 * float(info is None)

    def raises(completion: Any) -> float:
        raise ValueError(completion)

    rows = Dataset.from_list(ROWS)
    xml = vf.XMLParser(["think", "answer"], answer_field="answer")
    weighed = vf.Rubric(funcs=[right, length], weights=[0.5, -0.25])
    weighed.add_metric(raises)
    parsed = vf.Rubric(funcs=[answered, xml.get_format_reward_func()], weights=[1.0, 0.2], parser=xml)
    thought = vf.ThinkParser()
    return {
        "weights": vf.SingleTurnEnv(dataset=rows, rubric=weighed),
        "group": Again(dataset=rows, rubric=vf.RubricGroup([weighed, parsed]), max_turns=3),
        "parser": vf.SingleTurnEnv(dataset=rows, rubric=parsed, parser=xml, system_prompt="Think."),
        "think": vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([answered], parser=thought), parser=thought),
        "none": vf.SingleTurnEnv(
            dataset=Dataset.from_list([{"question": "?", "answer": None, "info": None} for _ in range(3)]),
            rubric=vf.Rubric([has_answer]),
        ),
        "sampling": vf.SingleTurnEnv(
            dataset=rows,
            rubric=vf.Rubric([right, length]),
            sampling_args={"temperature": 0.5, "stop": ["!"], "max_tokens": 9, "extra_body": {"top_k": 3}},
            few_shot=[{"role": "user", "content": "Say 9."}, {"role": "assistant", "content": "9"}],
        ),
        "tool": vf.ToolEnv(dataset=rows, tools=[double], rubric=vf.Rubric([right, length]), max_turns=3),
    }


def load_environment(kind: str = "single") -> vf.Environment:
    def compared(completions: Any) -> list[float]:
        return [float(len(completions))] * len(completions)

    environments = scored()
    if kind == "mixture":
        return vf.EnvGroup([*environments.values()], env_names=[*environments])
    if kind in environments:
        return environments[kind]
    if kind == "compared-mixture":
        single = vf.SingleTurnEnv(dataset=Dataset.from_list(ROWS), rubric=vf.Rubric([compared]))
        return vf.EnvGroup([environments["weights"], single])
    rubric = vf.Rubric(funcs=[compared if kind == "compared" else right])
    rows = Dataset.from_list(ROWS)
    if kind == "many":
        return Again(dataset=rows, rubric=rubric, max_turns=3)
    if kind == "stateful":
        return Sum(dataset=rows, rubric=rubric, max_turns=4)
    if kind == "held-out":
        return vf.SingleTurnEnv(eval_dataset=rows, rubric=rubric)
    return vf.SingleTurnEnv(dataset=rows, system_prompt="Be brief.", rubric=rubric)
